"""One connection as the server sees it: messages in, changes of the ledger and replies out, no sockets."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable
from typing import NamedTuple

from ttmesh.base.records import Event
from ttmesh.tracking import wire
from ttmesh.tracking.address import start_ticks
from ttmesh.tracking.ledger import MAX_HELD, Ledger, Process
from ttmesh.tracking.state import Answer
from ttmesh.tracking.wire import Batch, Bye, FrameError, Hello, Query, Snapshot, Traffic, Who

MAX_HELLO = 16 << 10  # nobody has shown a token yet


class Peer(NamedTuple):
    """What the kernel says of the other end; pid 0 when it does not say."""

    pid: int
    host: str
    token_needed: str


class Session:
    """Follows one peer from its hello to its end."""

    def __init__(
        self, ledger: Ledger, peer: Peer, *, clock: Callable[[], float], answer: Callable[[Query], Answer]
    ) -> None:
        self.frames = wire.Frames(max_body=MAX_HELLO)
        self.process: Process | None = None
        self.role = ""
        self._ledger = ledger
        self._peer = peer
        self._clock = clock
        self._answer = answer
        self._orderly = False
        self._parts: list[Event] = []
        self._resync_asked = True  # the first snapshot comes unasked

    def __str__(self) -> str:
        if self.process:
            return f"PID {self.process.who.pid}"
        return f"{self.role or 'a peer'} {self._peer.pid or self._peer.host}".rstrip()

    def receive(self, kind: int, body: bytes) -> bytes:
        """Take one message; returns what to send back, often nothing. FrameError or LedgerError end the session."""
        said = wire.message(kind, body)
        if isinstance(said, Hello):
            return self._hello(said)
        if not self.role:
            raise FrameError("the first message is not a hello")
        if isinstance(said, Query):
            return wire.frame(wire.REPLY, self._answer(said))
        process = self.process
        if process is None:
            raise FrameError("a monitor sent records")
        if isinstance(said, Batch):
            return self._ask_once(self._ledger.events(process, said.first, said.records, time_ns=said.time_ns))
        if isinstance(said, Snapshot):
            self._snapshot(process, said)
        elif isinstance(said, Traffic):
            process.links = said.links
        elif isinstance(said, Bye):
            self._orderly = True
        return b""

    def end(self) -> Process | None:
        """The connection is gone; returns the process whose memory went with it."""
        process = self.process
        if process is None or process.owner is not self:
            return None
        self._ledger.leave(process, orderly=self._orderly, now_s=self._clock())
        return process

    def _hello(self, hello: Hello) -> bytes:
        if self.role:
            raise FrameError("a second hello")
        needed = self._peer.token_needed
        if needed and not hmac.compare_digest(wire.token_text(needed).encode(), hello.token.encode()):
            raise FrameError("the token is wrong")
        self.role = hello.role
        self.frames.max_body = wire.MAX_BODY
        if hello.role == "program":
            self.process = self._ledger.join(self._who(hello), hello.name, self._clock())
            self.process.owner = self
        return b""

    def _who(self, hello: Hello) -> Who:
        if self._peer.pid:  # a Unix socket: what the kernel says counts, not what the peer says
            return Who("", self._peer.pid, start_ticks(self._peer.pid) or hello.started)
        host = hello.host or self._peer.host
        return Who("" if host == socket.gethostname() else host, hello.pid, hello.started)

    def _snapshot(self, process: Process, said: Snapshot) -> None:
        if said.part == 0:
            self._parts = []
        self._parts += said.records
        if len(self._parts) > 2 * MAX_HELD:
            raise FrameError(f"a snapshot of more than {2 * MAX_HELD} records")
        if said.last:
            parts, self._parts = self._parts, []
            self._ledger.snapshot(process, said.next, parts, time_ns=said.time_ns)
            self._resync_asked = False

    def _ask_once(self, in_step: bool) -> bytes:
        if in_step or self._resync_asked:
            return b""
        self._resync_asked = True
        return wire.frame(wire.RESYNC)
