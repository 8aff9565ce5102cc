"""What either end of a socket is to the operations; what both share in one process; ends with several ways."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ttmesh.base.errors import QueueError
from ttmesh.ccl.sockets.socket_config import SocketRoutes
from ttmesh.mesh.queue.command_queue import Cells
from ttmesh.tensor.spec.tensor_spec import TensorSpec


@dataclass(eq=False)
class Message:
    """A tensor on its way: what it is, and the cells to read it from."""

    spec: TensorSpec
    size_bytes: int
    cells: Cells = ()
    taken: bool = False  # the receiver has it already


class Sending(Protocol):
    """The sender's end; `remote` when the other one is in another process."""

    name: str
    routes: SocketRoutes
    remote: bool

    def may_send(self, message: Message) -> bool:
        """Whether there is room, or the receiver waits."""

    def put(self, message: Message, cells: Cells) -> None:
        """Send."""


class Receiving(Protocol):
    """The receiver's end."""

    name: str
    routes: SocketRoutes
    remote: bool

    def may_receive(self) -> bool:
        """Whether there is something to take."""

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message for a tensor of this spec: what was sent, and lanes of the receiver's mesh."""


@dataclass
class Channel:
    """What both ends of a socket share. Whichever end comes second finds the other one waiting."""

    name: str
    routes: SocketRoutes
    capacity_bytes: int  # per pair of chips
    remote: bool = False
    used_bytes: int = 0
    arrived: deque[tuple[Message, torch.Tensor]] = field(default_factory=deque)
    offered: Message | None = None  # a sender that does not fit and stands at the head of its queue
    wanted: bool = False  # a receiver that found nothing and stands at the head of its queue
    lock: threading.Lock = field(default_factory=threading.Lock)

    def may_send(self, message: Message) -> bool:
        """Whether there is room, somebody takes it at once, or already took it."""
        with self.lock:
            if message.taken or self.wanted or self.used_bytes + message.size_bytes <= self.capacity_bytes:
                return True
            self.offered = message
            return False

    def may_receive(self) -> bool:
        """Whether something arrived or is offered."""
        with self.lock:
            self.wanted = not self.arrived and self.offered is None
            return not self.wanted

    def put(self, message: Message, cells: Cells) -> None:
        """Send, unless the receiver already took it."""
        with self.lock:
            if message.taken:
                message.taken = False  # a trace sends the same message again
                return
            self.arrived.append((message, cells[0].read(message.spec)))
            self.used_bytes += message.size_bytes
            self.wanted, self.offered = False, None

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message."""
        with self.lock:
            if self.arrived:
                message, lanes = self.arrived.popleft()
                self.used_bytes -= message.size_bytes
            elif self.offered is None:
                raise QueueError(
                    f"nothing was sent through the socket {self.name}",
                    expected="a send for every receive of a trace",
                    fix="Replay the sender's trace first.",
                )
            else:
                message, self.offered = self.offered, None
                message.taken = True
                lanes = message.cells[0].read(message.spec)
        return message.spec, self.routes.place_lanes(self.routes.select_lanes(lanes))


class ToSeveral:
    """The sender's end where several ranks receive: each gets what its chips are connected to."""

    def __init__(self, ways: Sequence[Sending]) -> None:
        self.ways = ways
        self.name = ", ".join(way.name for way in ways)
        self.remote = any(way.remote for way in ways)
        self.routes = _all_routes([way.routes for way in ways])

    def may_send(self, message: Message) -> bool:
        """Whether every way may."""
        answers = [way.may_send(message) for way in self.ways]  # every one is asked, so that every one offers
        return all(answers)

    def put(self, message: Message, cells: Cells) -> None:
        """Send on every way."""
        for way in self.ways:
            way.put(message, cells)


class FromSeveral:
    """The receiver's end where several ranks send: a message is there when all of its parts are."""

    def __init__(self, ways: Sequence[Receiving]) -> None:
        self.ways = ways
        self.name = ", ".join(way.name for way in ways)
        self.remote = any(way.remote for way in ways)
        self.routes = _all_routes([way.routes for way in ways])

    def may_receive(self) -> bool:
        """Whether every part has come."""
        answers = [way.may_receive() for way in self.ways]  # every one is asked for
        return all(answers)

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message, put together."""
        shape = self.routes.receiver_shape
        whole: torch.Tensor | None = None
        for way in self.ways:
            _, lanes = way.take(spec)
            if whole is None:
                whole = lanes.expand(*shape, *lanes.shape[len(shape) :]).clone()
            else:
                for end in way.routes.ends:
                    whole[end] = lanes.expand(*shape, *lanes.shape[len(shape) :])[end]
        assert whole is not None, "there is a way"
        return spec, whole


def _all_routes(routes: Sequence[SocketRoutes]) -> SocketRoutes:
    """What goes over all ways together; the places of several ranks' lanes at the other end are only counted."""
    return SocketRoutes(
        tuple(pair for one in routes for pair in one.pairs), routes[0].sender_shape, routes[0].receiver_shape
    )
