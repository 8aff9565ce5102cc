"""The interfaces of a socket's ends, the channel that both ends share in one process, and ends with several streams."""

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
    """A tensor that is sent: its spec, size and cells."""

    spec: TensorSpec
    size_bytes: int
    cells: Cells = ()
    taken: bool = False  # the receiver has already taken it


class Sending(Protocol):
    """The sender's end; `remote`: the other end is in another process."""

    name: str
    routes: SocketRoutes
    remote: bool

    def may_send(self, message: Message) -> bool:
        """Whether the FIFO has room, or the receiver waits."""

    def put(self, message: Message, cells: Cells) -> None:
        """Send."""


class Receiving(Protocol):
    """The receiver's end."""

    name: str
    routes: SocketRoutes
    remote: bool

    def may_receive(self) -> bool:
        """Whether a message can be taken."""

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """Take the oldest message for a tensor of this spec: the sent spec, and lanes of the receiver's mesh."""


@dataclass
class Channel:
    """The state that both ends of a socket share in one process."""

    name: str
    routes: SocketRoutes
    capacity_bytes: int  # per pair of chips
    remote: bool = False
    used_bytes: int = 0
    arrived: deque[tuple[Message, torch.Tensor]] = field(default_factory=deque)
    offered: Message | None = None  # the message of a waiting sender that does not fit into the FIFO
    receiver_waits: bool = False  # a receive found no message and waits in its queue
    lock: threading.Lock = field(default_factory=threading.Lock)

    def may_send(self, message: Message) -> bool:
        """Whether the FIFO has room, a receiver waits, or the message was already taken."""
        with self.lock:
            if message.taken or self.receiver_waits or self.used_bytes + message.size_bytes <= self.capacity_bytes:
                return True
            self.offered = message
            return False

    def may_receive(self) -> bool:
        """Whether a message arrived or is offered."""
        with self.lock:
            self.receiver_waits = not self.arrived and self.offered is None
            return not self.receiver_waits

    def put(self, message: Message, cells: Cells) -> None:
        """Send, unless the receiver has already taken the message."""
        with self.lock:
            if message.taken:
                message.taken = False  # a trace sends the same message again
                return
            self.arrived.append((message, _read_lanes(cells, message.spec)))
            self.used_bytes += message.size_bytes
            self.receiver_waits, self.offered = False, None

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """Take the oldest message."""
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
                lanes = _read_lanes(message.cells, message.spec)
        return message.spec, self.routes.to_receiver_lanes(self.routes.select_lanes(lanes))


def _read_lanes(cells: Cells, spec: TensorSpec) -> torch.Tensor:
    """What a message holds; on a GPU a copy, which leaves the memory of the sender's CUDA graph to its next launch."""
    lanes = cells[0].read(spec)
    return lanes.clone() if lanes.is_cuda else lanes


class SeveralReceivers:
    """The sender's end if several ranks receive: each rank gets the lanes that its chips are connected to."""

    def __init__(self, streams: Sequence[Sending]) -> None:
        self.streams = streams
        self.name = ", ".join(stream.name for stream in streams)
        self.remote = any(stream.remote for stream in streams)
        self.routes = _merge_routes([stream.routes for stream in streams])

    def may_send(self, message: Message) -> bool:
        """Whether every stream can send."""
        answers = [
            stream.may_send(message) for stream in self.streams
        ]  # all streams are asked, so that all offer the message
        return all(answers)

    def put(self, message: Message, cells: Cells) -> None:
        """Send on every stream."""
        for stream in self.streams:
            stream.put(message, cells)


class SeveralSenders:
    """The receiver's end if several ranks send: a message has arrived when all ranks' lanes have."""

    def __init__(self, streams: Sequence[Receiving]) -> None:
        self.streams = streams
        self.name = ", ".join(stream.name for stream in streams)
        self.remote = any(stream.remote for stream in streams)
        self.routes = _merge_routes([stream.routes for stream in streams])

    def may_receive(self) -> bool:
        """Whether all ranks' lanes have arrived."""
        answers = [
            stream.may_receive() for stream in self.streams
        ]  # all streams are asked, so that all request the message
        return all(answers)

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """Take the oldest message, merged from all streams."""
        shape = self.routes.receiver_shape
        merged: torch.Tensor | None = None
        for stream in self.streams:
            _, lanes = stream.take(spec)
            if merged is None:
                merged = lanes.expand(*shape, *lanes.shape[len(shape) :]).clone()
            else:
                for end in stream.routes.ends:
                    merged[end] = lanes.expand(*shape, *lanes.shape[len(shape) :])[end]
        assert merged is not None, "there is at least one stream"
        return spec, merged


def _merge_routes(routes: Sequence[SocketRoutes]) -> SocketRoutes:
    """The routes of all streams; with several ranks at the other end only their number is used."""
    return SocketRoutes(
        tuple(pair for stream_routes in routes for pair in stream_routes.pairs),
        routes[0].sender_shape,
        routes[0].receiver_shape,
    )
