"""The allocation server: one thread, one selector, any number of clients and monitors."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
import traceback
from collections.abc import Iterator

from ttmesh.tracking import wire
from ttmesh.tracking.address import Address
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.listening import listen, notice_loss, peer_pid, process_handle, raise_file_limit, unread_bytes
from ttmesh.tracking.process_table import MAX_BYTES, LedgerError
from ttmesh.tracking.server_log import Printer
from ttmesh.tracking.server_schedule import ServerSchedule
from ttmesh.tracking.session import Peer, Session
from ttmesh.tracking.state import ServerState
from ttmesh.tracking.wire import FrameError, Query

MAX_CONNECTIONS = 1024  # a socket and a handle of the process each
MAX_TCP = 768  # of them over TCP, so that local processes can always connect
MAX_STRANGERS = 64  # of them over TCP without a valid token yet; one more drops the oldest
SPARE_FILES = 64  # listeners, standard streams, what the interpreter opens
READ_BYTES = 64 << 10
INPUT_BYTES = 64 << 20  # of unparsed input of all connections; beyond it the one that stalled first is dropped
OUTPUT_BYTES = 64 << 20  # of unsent replies of all connections; beyond it the one that stopped reading first is dropped
HELLO_S = 5.0  # a peer must send its hello within this time
STALLED_S = 30.0  # and read its reply within this time
TURN_S = 0.003  # of work before sockets are looked at; a large reply takes a look for every 200 KB
SLICE_S = 0.0005  # of work for one connection before another is chosen
MAP_EVERY_S = 0.02  # between two steps of the map of free space while there is other work
STATISTICS_S = 10.0  # at most this often while things change, and a second after they stopped


class Connection:
    """A socket, its session and its unsent output."""

    def __init__(self, sock: socket.socket, session: Session, now_s: float) -> None:
        self.sock = sock
        self.session = session
        self.out = memoryview(b"")
        self.input_bytes = 0  # as the server counted it last
        self.since_s = now_s  # last time that input was parsed or output was sent
        self.deadline_s = now_s + HELLO_S
        self.read_s = 0.0  # when it was read last
        self.process_handle = -1
        self.last_bytes: int | None = None  # unread bytes of a dead process
        self.owner: object = session.peer.pid or session.peer.host


class Death:
    """Key of a process handle in the selector, which becomes readable when the process ends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection


class Server:
    """Listens on the given addresses until `stop()`."""

    def __init__(self, addresses: list[Address], printer: Printer, *, token: str = "", mode: int = 0o600) -> None:
        self.ledger = Ledger(printer.watch, self._end_session, printer.process_gone)
        self.connections: set[Connection] = set()
        self.listening: list[Address] = []
        self.input_bytes = self.output_bytes = 0
        self._printer = printer
        self._answers = Answers(self.ledger)
        self._token = token
        files = raise_file_limit(2 * MAX_CONNECTIONS + SPARE_FILES)
        self._room = max(2, min(MAX_CONNECTIONS, (files - min(SPARE_FILES, files // 4)) // 2))
        self._started_s = time.time()
        self._refused = self._unnoted = 0
        self._strangers: dict[Connection, None] = {}
        self._busy: ServerSchedule[Connection] = ServerSchedule()
        self._map_due_s = 0.0
        self._paused: list[tuple[socket.socket, Address]] = []  # listeners, while there is no file for another
        self._stopping = self._asked = False
        self._files = contextlib.ExitStack()
        self._selector = self._files.enter_context(selectors.DefaultSelector())
        self._wake, self._woken = map(self._files.enter_context, socket.socketpair())
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            for wanted in addresses:
                listener, address = listen(wanted, self._files, mode=mode, token=token)
                self._selector.register(listener, selectors.EVENT_READ, address)
                self.listening.append(address)
        except BaseException:  # raised again, with every socket closed
            self._files.close()
            raise

    def stop(self) -> None:
        """Make `run` return; from any thread or signal handler."""
        self._stopping = True
        self._nudge()

    def ask_statistics(self) -> None:
        """Make `run` print statistics soon; from any thread or signal handler."""
        self._asked = True
        self._nudge()

    def run(self) -> None:
        """Serve until stopped, then print statistics and close."""
        ticked = int(time.time())
        changed_s = shown_s = time.monotonic()
        changes = 0
        try:
            while not self._stopping:
                at_once = self._busy or self._answers.free_space.has_work or self.ledger.departures.has_work
                self._look_at_sockets(self._selector.select(timeout=0 if at_once else 1 - time.time() % 1))
                self._work()
                now_s = time.monotonic()
                if self._printer.changes != changes:
                    changes, changed_s = self._printer.changes, now_s
                if int(time.time()) != ticked:
                    ticked = int(time.time())
                    self._tick(ticked, now_s)
                    if changed_s > shown_s and (now_s - changed_s >= 1 or now_s - shown_s >= STATISTICS_S):
                        self._asked = self._asked or not self._printer.quiet
                if self._asked:
                    self._asked, shown_s = False, now_s
                    self._printer.statistics(self.ledger)
                self._printer.flush()
        finally:
            self._printer.statistics(self.ledger)
            self._printer.close()
            for connection in list(self.connections):
                self._end(connection, "")
            self._files.close()

    def _nudge(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # a full pipe wakes the server anyway; a closed one means that it has stopped
            self._wake.send(b"x")

    def _tick(self, wall_s: int, now_s: float) -> None:
        self.ledger.tick(wall_s)
        self._answers.free_space.refresh(wall_s)
        self._drop_stalled(now_s)
        self._busy.tick()
        for listener, address in self._paused:
            self._selector.register(listener, selectors.EVENT_READ, address)
        self._paused.clear()
        if self._unnoted:
            self._printer.note(f"⚠ Closed {self._unnoted} connections over TCP that showed no token")
            self._unnoted = 0

    def _look_at_sockets(self, ready: list[tuple[selectors.SelectorKey, int]]) -> None:
        """Accept, send and read for a bounded time; what is not read now is still there at the next look."""
        readable: list[Connection] = []
        for key, events in ready:
            if not isinstance(key.data, Connection):
                self._handle_event(key)
            elif key.data in self.connections and events & selectors.EVENT_WRITE:
                self._send(key.data)
            elif key.data in self.connections and not key.data.session.has_work:
                readable.append(key.data)
        readable.sort(key=lambda connection: (self._busy.spent_s(connection.owner), connection.read_s))
        now_s = time.monotonic()
        until_s = now_s + TURN_S / 2
        for connection in readable:
            if connection in self.connections:  # else it was closed for another one
                began_s = connection.read_s = now_s
                self._read(connection)
                now_s = time.monotonic()
                self._busy.spend(connection.owner, now_s - began_s)
            if now_s > until_s:
                break

    def _handle_event(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, Death):
            self._bury(key.data.connection)
        elif isinstance(key.data, Address) and isinstance(key.fileobj, socket.socket):
            self._accept(key.fileobj, key.data)
        else:
            self._woken.recv(4096)

    def _accept(self, listener: socket.socket, address: Address) -> None:
        try:
            sock, origin = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._selector.unregister(listener)
                self._paused.append((listener, address))
            return  # the peer has closed the connection already
        sock.setblocking(False)
        if address.is_tcp:
            notice_loss(sock)
        peer = Peer(0, str(origin[0]), self._token) if address.is_tcp else Peer(peer_pid(sock), "", "")
        session = Session(self.ledger, peer, clock=time.time, answer=self._answer)
        connection = Connection(sock, session, time.monotonic())
        self.connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if address.is_tcp:
            self._admit_stranger(connection)
        elif len(self.connections) > self._room:
            self._refuse(connection, f"there are {self._room} connections already")
        elif (handle := process_handle(peer.pid)) >= 0:
            # The end of the socket is not enough: a child forked while its parent connected may hold it open.
            connection.process_handle = handle
            self._selector.register(handle, selectors.EVENT_READ, Death(connection))

    def _admit_stranger(self, connection: Connection) -> None:
        self._strangers[connection] = None
        if len(self._strangers) > min(MAX_STRANGERS, self._room // 8 + 1):
            self._end(next(iter(self._strangers)), "")
            self._unnoted += 1
            self._refused += 1
        tcp = sum(not c.session.peer.pid for c in self.connections)
        if connection in self.connections and (
            tcp > self._room * MAX_TCP // MAX_CONNECTIONS or len(self.connections) > self._room
        ):
            self._refuse(connection, f"there are {tcp} connections over TCP already")

    def _bury(self, connection: Connection) -> None:
        """Its process has died: process what it had sent, but nothing that a forked child sends from now on."""
        if connection not in self.connections:
            return  # closed by an earlier event of this round
        self._selector.unregister(connection.process_handle)
        os.close(connection.process_handle)
        connection.process_handle = -1
        connection.last_bytes = unread_bytes(connection.sock)
        if connection.out:
            self.output_bytes -= len(connection.out)
            connection.out = memoryview(b"")
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
            self._look_at_input(connection)
            return
        if not connection.last_bytes and not connection.session.has_work:
            self._end(connection, "")

    def _read(self, connection: Connection) -> None:
        """Read what has arrived."""
        most = READ_BYTES if connection.last_bytes is None else min(READ_BYTES, connection.last_bytes)
        try:
            data = connection.sock.recv(most) if most else b""
        except (
            BlockingIOError,
            ConnectionResetError,
        ):  # a reset is reported once, before the data that arrived ahead of it
            return
        except OSError:
            data = b""
        if connection.last_bytes is not None:
            connection.last_bytes -= len(data)
        if not data:
            rest = connection.session.frames.incomplete_bytes
            self._end(connection, f"it stopped {rest} bytes into a frame" if rest else "")
            return
        connection.session.frames.feed(data)
        self._look_at_input(connection)

    def _look_at_input(self, connection: Connection) -> None:
        """Count the unparsed input; schedule the connection, or drop the one that has stalled longest."""
        waiting = connection.session.frames.incomplete_bytes
        if waiting < connection.input_bytes or not connection.input_bytes:
            connection.since_s = time.monotonic()
        self.input_bytes += waiting - connection.input_bytes
        connection.input_bytes = waiting
        if connection.session.has_work and not connection.out:
            session = connection.session
            self._busy.add(connection, connection.owner, asks=session.role == "monitor", has_begun=session.is_answering)
        else:
            self._busy.discard(connection, connection.owner)
            if connection.last_bytes == 0 and not connection.session.has_work:
                self._end(connection, "")
        while self.input_bytes > INPUT_BYTES:
            slowest = min((c for c in self.connections if c.input_bytes), key=lambda c: c.since_s)
            self._refuse(slowest, f"peers have sent {INPUT_BYTES} bytes of unfinished messages, and it is the slowest")

    def _work(self) -> None:
        """Do a bounded amount of pending work, first for owners that used the least recently."""
        departures = self.ledger.departures
        now_s = time.monotonic()
        until_s = now_s + TURN_S
        while self._busy and now_s < until_s:
            began_s = now_s
            connection = self._busy.choose()
            asks = connection.session.role == "monitor"
            has_more = True
            while has_more and now_s < began_s + SLICE_S:
                if not asks:
                    departures.advance()  # so that what is freed keeps up with what comes
                self._advance(connection)
                has_more = connection in self.connections and connection.session.has_work and not connection.out
                now_s = time.monotonic()
            self._busy.charge(connection.owner, now_s - began_s, asks=asks)
        departures.advance()
        if not self._busy or now_s >= self._map_due_s:
            self._map_due_s = now_s + MAP_EVERY_S
            self._answers.free_space.advance()

    def _advance(self, connection: Connection) -> None:
        session = connection.session
        try:
            reply = session.advance()
        except (FrameError, LedgerError) as error:
            self._refuse(connection, str(error))
            return
        except Exception as error:  # any exception here was caused by this peer's message
            self._printer.note(traceback.format_exc())
            self._refuse(connection, f"the server cannot take this message: {type(error).__name__}")
            return
        if connection not in self.connections:
            return  # it held the most memory
        if session.role:
            self._strangers.pop(connection, None)
            connection.deadline_s = float("inf")
        if reply:
            self.output_bytes += len(reply)
            connection.out, connection.since_s = memoryview(reply), time.monotonic()
            if not self._push(connection):
                return
        self._look_at_input(connection)

    def _push(self, connection: Connection) -> bool:
        """Send as much as the socket accepts; nothing more is read until all is sent, so that replies do not pile up."""
        try:
            sent = connection.sock.send(connection.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(connection, "")
            return False
        if sent:
            connection.since_s = time.monotonic()
        self.output_bytes -= sent
        connection.out = connection.out[sent:]
        if not connection.out:
            return True
        self._busy.discard(connection, connection.owner)
        connection.deadline_s = time.monotonic() + STALLED_S
        self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        while self.output_bytes > OUTPUT_BYTES:
            slowest = min((c for c in self.connections if c.out), key=lambda c: c.since_s)
            self._refuse(slowest, f"replies of {OUTPUT_BYTES} bytes wait for readers, and it is the slowest")
        return False

    def _send(self, connection: Connection) -> None:
        if self._push(connection):
            connection.deadline_s = float("inf")
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
            self._look_at_input(connection)

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._refused += 1
        with contextlib.suppress(OSError):
            connection.sock.send(wire.frame(wire.REFUSED, wire.Refused(reason[:500])))
        self._end(connection, reason)

    def _end(self, connection: Connection, reason: str) -> None:
        self.connections.discard(connection)
        self._busy.discard(connection, connection.owner)
        self._strangers.pop(connection, None)
        self.input_bytes -= connection.input_bytes
        self.output_bytes -= len(connection.out)
        connection.input_bytes, connection.out = 0, memoryview(b"")
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.process_handle >= 0:
            self._selector.unregister(connection.process_handle)
            os.close(connection.process_handle)
        if reason:
            self._printer.note(f"⚠ Closed the connection of {connection.session}: {reason}")
        connection.session.end()

    def _end_session(self, session: object, reason: str) -> None:
        for connection in [c for c in self.connections if c.session is session]:
            self._refuse(connection, reason)

    def _drop_stalled(self, now_s: float) -> None:
        for connection in [c for c in self.connections if c.deadline_s < now_s]:
            if connection in self._strangers and not connection.out:
                self._unnoted += 1
                self._refused += 1
                self._end(connection, "")
            elif connection in self.connections:
                self._refuse(connection, "it took no replies" if connection.out else "it did not say who it is")

    def _answer(self, query: Query) -> Iterator[bytes]:
        server = ServerState(
            pid=os.getpid(),
            protocol=wire.VERSION,
            started_s=self._started_s,
            now_s=time.time(),
            records=self.ledger.records_seen,
            connections=len(self.connections),
            refused=self._refused,
            bytes_held=self.ledger.bytes_held,
            bytes_allowed=MAX_BYTES,
            leftovers=self.ledger.departures.left + self.ledger.departures.finished,
        )
        for answer in self._answers.answer(query, server):
            yield wire.frame(wire.REPLY, answer) if answer is not None else b""
