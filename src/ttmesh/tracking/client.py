"""Reports this process's memory to the allocation server; the program never waits for it or fails because of it."""

from __future__ import annotations

import atexit
import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

import msgspec

from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.base.records import Allocated, Event
from ttmesh.base.signals import signals
from ttmesh.tracking import wire
from ttmesh.tracking.address import Address, choose_address, connect, start_ticks
from ttmesh.tracking.outbox import AT_ONCE, Outbox

TICK_S = 0.05
CONNECT_S = 1.0  # for the name, and again for the connection
RETRY_S = 0.2  # plus one tick: a restarted server has the full state again within a second
REFUSED_S = 10.0  # after a refusal
LOOK_MS = 50  # longest wait for a slow server before the queue is trimmed
SNAPSHOT_SHARE = 0.1  # share of the sender's time for snapshots, when records are lost repeatedly
SNAPSHOT_S = 0.5  # longest delay of a snapshot
EXIT_S = 0.5  # longest delay of a program's end by a server that reads nothing
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SITES_KEPT = 4096  # call sites whose text is remembered
_sites: dict[tuple[int, ...], tuple[str, list[CodeType]]] = {}  # by codes and instructions; the codes stay alive
FRAMES_KEPT, LONGEST_SITE = 8, 4000  # of a call site; characters, of which wire.Site allows a little more
LEAVING_S = 10.0  # and by a busy machine on which the sender does not run
# A program with the default SIGPIPE must not be killed when the server ends (macOS has no such flag).
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)

log = logging.getLogger("ttmesh.tracking")


class Client:
    """A list that the program appends to, and a thread that sends its content every TICK_S without being woken."""

    def __init__(self, address: Address, *, token: str, stacks: bool, first: tuple[int, int] = (0, 0)) -> None:
        self._sites: dict[tuple[int, int], str] = {}
        self.outbox = Outbox(lambda: signals.ask("holdings"), self._sites, first=first)
        self.stacks = stacks
        self.address = address
        self.token = token
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._sock: socket.socket | None = None
        self._frames = wire.Frames()
        self._retry_s = 0.0
        self._resync = False
        self._snapshot_not_before_s = 0.0
        self._patience_s = float("inf")  # while the server reads nothing
        self._warned = ""
        self._refused = False
        self._stop_listening: Callable[[], None] = lambda: None

    def begin(self, *, lazily: bool) -> None:
        """Start recording; with `lazily` the thread starts and connects at the first record."""
        if not lazily:
            self._start_thread()
        self._listen(self._hear_first if lazily else self._listener())

    def end(self) -> None:
        """Send the remaining records, if the server accepts them, and stop."""
        self._stop_listening()
        self._patience_s = EXIT_S
        self._stopping.set()
        if self._thread:
            self._thread.join(LEAVING_S)

    def abandon(self) -> None:
        """In a forked child: drop the parent's state without using its connection."""
        self._stop_listening()
        if self._sock:
            self._sock.close()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ttmesh-tracking", daemon=True)
        self._thread.start()

    def _listen(self, listener: Callable[[Event], None]) -> None:
        self._stop_listening = signals.listen(listener, crossings=self.outbox.crossings.extend)

    def _listener(self) -> Callable[[Event], None]:
        append = self.outbox.queue.append
        sites = self._sites

        def hear_where(record: Event) -> None:
            if isinstance(record, Allocated):
                record.site = sites[record.mesh_id, record.buffer_id] = call_site()
            append(record)

        return hear_where if self.stacks else append

    def _hear_first(self, record: Event) -> None:
        self._stop_listening()
        try:
            self._start_thread()
        except RuntimeError:  # the interpreter is shutting down
            return
        if util := sys.modules.get("multiprocessing.util"):  # its children exit without atexit
            util.Finalize(None, stop, exitpriority=0)
        listener = self._listener()
        self._listen(listener)
        listener(record)

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping.is_set()
                try:
                    self._turn(leaving=stopping)
                except (OSError, wire.FrameError, msgspec.MsgspecError) as error:
                    self._disconnect(str(error))
                except Exception as error:  # an exception, ours or the program's, must not end tracking
                    self._warn_once(f"{type(error).__name__}: {error}", "could not be sent all records")
                    self._disconnect(str(error))
                if stopping:
                    break
                self._stopping.wait(TICK_S)
        finally:
            self._stop_listening()  # nothing empties the queue any more
            if self._sock:
                self._sock.close()

    def _turn(self, *, leaving: bool) -> None:
        if self._sock is None and time.monotonic() >= self._retry_s:
            self._connect()
        if self._sock is None:
            self.outbox.drop()
            return
        self._read()
        self._empty_queue(leaving=leaving)
        if (self.outbox.gap or self._resync) and (leaving or time.monotonic() >= self._snapshot_not_before_s):
            self._send_snapshot()
        if traffic := self.outbox.traffic():
            self._send(traffic)
        if leaving:
            self._send(wire.frame(wire.BYE, (self.outbox.next,)))

    def _connect(self) -> None:
        self._retry_s = time.monotonic() + RETRY_S
        sock = connect(self.address, timeout_s=CONNECT_S, waiting=self._wait_for_name)
        sock.setblocking(False)
        pid, token = os.getpid(), wire.token_text(self.token)
        hello = wire.Hello("program", pid, start_ticks(pid), program_name(), socket.gethostname(), token)
        self._sock, self._refused = sock, False
        self._frames = wire.Frames()
        self._send(wire.frame(wire.HELLO, hello))
        self.outbox.resend_traffic()
        self._resync = True
        self._snapshot_not_before_s = 0.0

    def _wait_for_name(self) -> None:
        self.outbox.limit()
        if self._stopping.is_set():
            raise TimeoutError("the program ends before the server's name was found")

    def _disconnect(self, reason: str) -> None:
        self._retry_s = time.monotonic() + (REFUSED_S if self._refused else RETRY_S)
        if self._sock:
            self._sock.close()
            self._sock = None
            log.info("lost the allocation server at %s: %s", self.address, reason)

    def _empty_queue(self, *, leaving: bool) -> None:
        waiting = len(self.outbox.queue)  # records that arrive meanwhile are for the next turn
        while waiting > 0 or (leaving and self.outbox.queue):
            waiting -= AT_ONCE
            for frame in self.outbox.take():
                self._send(frame)

    def _send_snapshot(self) -> None:
        start = time.monotonic()
        try:
            frames = self.outbox.snapshot()
        except RuntimeError:  # a table changed while it was read: try again in the next turn
            self._resync = True
            return
        self._resync = False
        now = time.monotonic()
        self._snapshot_not_before_s = now + min((now - start) / SNAPSHOT_SHARE, SNAPSHOT_S)
        for frame in frames:
            self._send(frame)

    def _read(self) -> None:
        assert self._sock is not None, "reads only while connected"
        try:
            data = self._sock.recv(65536)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("it closed the connection")
        self._frames.feed(data)
        while (taken := self._frames.take()) is not None:
            kind, body = taken
            if kind == wire.REFUSED:
                self._refused = True
                self._warn_once(msgspec.msgpack.decode(body, type=wire.Refused).reason)
            self._resync = self._resync or kind == wire.RESYNC

    def _send(self, data: bytes) -> None:
        assert self._sock is not None, "sends only while connected"
        rest = memoryview(data)
        waiting_since = float("inf")
        while rest:
            try:
                rest = rest[self._sock.send(rest, NO_SIGNAL) :]
                waiting_since = float("inf")
            except (
                BlockingIOError
            ):  # wait for a slow server: the queue is bounded, and a snapshot replaces dropped records
                waiting_since = min(waiting_since, time.monotonic())
                if time.monotonic() - waiting_since > self._patience_s:
                    raise TimeoutError("it reads nothing") from None
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
                poll.poll(LOOK_MS)
                self.outbox.limit()

    def _warn_once(self, reason: str, what: str = "refused this process") -> None:
        if reason != self._warned:
            self._warned = reason
            log.warning("the allocation server at %s %s: %s", self.address, what, reason)


_client: Client | None = None
_hooked = False


def start() -> None:
    """Report to the allocation server from now on; a second call does nothing."""
    global _client, _hooked
    if _client is not None:
        return
    try:
        address = choose_address()
    except (MeshError, OSError) as error:
        log.warning("allocations are not tracked: %s", error)
        return
    stacks = settings.get_bool("TTMESH_TRACK_STACKS")
    _client = Client(address, token=settings.get_str("TTMESH_TOKEN"), stacks=stacks)
    _client.begin(lazily=False)
    if not _hooked:
        _hooked = True
        atexit.register(stop)
        os.register_at_fork(after_in_child=_after_fork)


def stop() -> None:
    """Send the remaining records and stop reporting."""
    global _client
    client, _client = _client, None
    if client is not None:
        client.end()


def _after_fork() -> None:
    global _client
    parents = _client
    if parents is None:
        return
    parents.abandon()
    first = signals.ask("unused ids")
    own = first if isinstance(first, tuple) else (0, 0)  # no runtime yet, so the parent holds nothing
    _client = Client(parents.address, token=parents.token, stacks=parents.stacks, first=own)
    _client.begin(lazily=True)


def program_name() -> str:
    """The command line, short enough for a table."""
    command, *arguments = sys.orig_argv or ["python"]
    return " ".join([os.path.basename(command), *arguments])[:200]


def call_site() -> str:
    """The caller's frames outside ttmesh, innermost first, one "file:line in function" per line."""
    codes: list[CodeType] = []
    instructions: list[int] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(codes) < FRAMES_KEPT:
        code = frame.f_code
        if not code.co_filename.startswith((PACKAGE, "<frozen")):
            codes.append(code)
            instructions.append(frame.f_lasti)
        frame = frame.f_back
    key = (*map(id, codes), *instructions)  # not the codes: their hash is that of all their constants
    known = _sites.get(key)
    if known is None:
        if len(_sites) >= SITES_KEPT:
            _sites.clear()
        known = _sites[key] = (_print_site(codes, instructions), codes)
    return known[0]


def _print_site(codes: list[CodeType], instructions: list[int]) -> str:
    lines = []
    for code, instruction in zip(codes, instructions, strict=True):
        found = (line for start, end, line in code.co_lines() if start <= instruction < end and line is not None)
        lines.append(f"{code.co_filename}:{next(found, code.co_firstlineno)} in {code.co_name}")
    return "\n".join(lines)[:LONGEST_SITE]
