"""One connection in the server: messages in, changes of the ledger and replies out; no sockets."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ttmesh.tracking import wire
from ttmesh.tracking.address import start_ticks
from ttmesh.tracking.holders import Process
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.wire import Batch, Bye, FrameError, Hello, Query, Snapshot, Traffic, Who

MAX_HELLO = 16 << 10  # before the token was checked
LOT = 256  # records per frame of those left for another turn


class Peer(NamedTuple):
    """What the kernel knows of the other end; pid 0 if unknown."""

    pid: int
    host: str
    token_needed: str


class Session:
    """Handles one peer from its hello to its end, with bounded work per call."""

    def __init__(
        self,
        ledger: Ledger,
        peer: Peer,
        *,
        clock: Callable[[], float],
        answer: Callable[[Query], Iterator[bytes]],
    ) -> None:
        self.frames = wire.Frames(max_body=MAX_HELLO)
        self.process: Process | None = None
        self.role = ""
        self.peer = peer
        self._ledger = ledger
        self._clock = clock
        self._answer = answer
        self._orderly = False
        self._job: Iterator[bytes] | None = None  # work that takes more than one turn
        self._resync_asked = True  # the first snapshot is sent without a request

    def __str__(self) -> str:
        if self.process:
            return f"PID {self.process.who.pid}"
        return f"{self.role or 'a peer'} {self.peer.pid or self.peer.host}".rstrip()

    @property
    def has_work(self) -> bool:
        """Whether `advance` has something to do."""
        unfinished = self.process is not None and self.process.unfinished is not None
        return unfinished or self._job is not None or self.frames.has_frame

    @property
    def is_answering(self) -> bool:
        """Whether a query is being answered, for which memory is held."""
        return self.role == "monitor" and self._job is not None

    def advance(self) -> bytes:
        """Continue unfinished work, otherwise handle the next message; returns the reply, often empty.

        FrameError or LedgerError end the session.
        """
        if self.process is not None and self.process.unfinished is not None:
            self._ledger.advance(self.process)
            return b""
        if self._job is not None:
            reply = next(self._job, None)
            if reply != b"":  # the reply is the last that there is, or there is none
                self._job = None
            return reply or b""
        taken = self.frames.take()
        return self._receive(*taken) if taken else b""

    def end(self) -> None:
        """End the session; with its last connection a process leaves."""
        self._job = None  # it refers to this session
        process = self.process
        if process is None or self not in process.owners:
            return
        process.owners.discard(self)
        if not process.owners:
            self._ledger.leave(process, orderly=self._orderly, now_s=self._clock())
        while process.unfinished is not None:  # another connection may not send anything soon
            self._ledger.advance(process)

    def _receive(self, kind: int, body: bytes) -> bytes:
        message = wire.message(kind, body)
        if isinstance(message, Hello):
            return self._hello(message)
        if not self.role:
            raise FrameError("the first message is not a hello")
        if isinstance(message, Query):
            self._job = self._answer(message)
            return b""
        process = self.process
        if process is None:
            raise FrameError("a monitor sent records")
        if isinstance(message, Batch):
            return self._events(process, message)
        if isinstance(message, Snapshot):
            self._take_snapshot(process, message)
        elif isinstance(message, Traffic):
            process.set_links(message.system, message.links)
            self._ledger.count(process)
        elif isinstance(message, Bye):
            self._orderly = True
        return b""

    def _hello(self, hello: Hello) -> bytes:
        if self.role:
            raise FrameError("a second hello")
        needed = wire.token_text(self.peer.token_needed)
        if needed and not hmac.compare_digest(needed.encode(), hello.token.encode()):
            raise FrameError("the token is wrong")
        self.role = hello.role
        self.frames.max_body = wire.MAX_BODY
        if hello.role == "program":
            self._join(self._who(hello), hello.name)
        return b""

    def _join(self, who: Who, name: str) -> None:
        known = self._ledger.processes.get(who)
        for other in known.owners if known else ():
            if isinstance(other, Session) and other.peer.host != self.peer.host:
                raise FrameError(f"process {who.pid} is connected from {other.peer.host} already")
        self.process = self._ledger.join(who, name, self._clock())
        self.process.owners.add(self)

    def _who(self, hello: Hello) -> Who:
        if self.peer.pid:  # on a Unix socket the kernel's facts count, not the peer's
            return Who("", self.peer.pid, start_ticks(self.peer.pid) or hello.started)
        host = hello.host or self.peer.host
        return Who("" if host == socket.gethostname() else host, hello.pid, hello.started)

    def _events(self, process: Process, batch: Batch) -> bytes:
        taken = self._ledger.take_events(process, batch.first, batch.records, time_ns=batch.time_ns)
        rest = batch.records[taken:]
        if rest:  # encoded again, which takes the least memory while waiting
            first = batch.first + taken
            lots = [(first + at, batch.time_ns, rest[at : at + LOT]) for at in range(0, len(rest), LOT)]
            self.frames.give_back(b"".join(wire.frame(wire.EVENTS, lot) for lot in lots))
        if process.in_step or self._resync_asked:
            return b""
        self._resync_asked = True
        return wire.frame(wire.RESYNC)

    def _take_snapshot(self, process: Process, message: Snapshot) -> None:
        taken = self._ledger.stage(process, message.records, first_part=message.part == 0)
        rest = message.records[taken:]
        if rest:
            lots = [rest[at : at + LOT] for at in range(0, len(rest), LOT)]
            last = [message.last and lot is lots[-1] for lot in lots]
            head = (message.next, message.time_ns, max(1, message.part))
            self.frames.give_back(
                b"".join(wire.frame(wire.SNAPSHOT, (*head, ends, lot)) for lot, ends in zip(lots, last, strict=True))
            )
        elif message.last:
            self._job = self._apply(process, message.next, message.time_ns)

    def _apply(self, process: Process, following: int, time_ns: int) -> Iterator[bytes]:
        for _ in self._ledger.apply_staged(process, following, time_ns=time_ns):
            yield b""
        self._resync_asked = False
