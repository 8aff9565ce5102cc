"""What the two ends of a socket share when both are in one process, and what either end is to the operations."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ttmesh.base.errors import QueueError
from ttmesh.ccl.socket_config import Routes
from ttmesh.mesh.command_queue import Cells
from ttmesh.tensor.spec import TensorSpec


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
    routes: Routes
    remote: bool

    def may_send(self, message: Message) -> bool:
        """Whether there is room, or the receiver waits."""

    def put(self, message: Message, cells: Cells) -> None:
        """Send."""


class Receiving(Protocol):
    """The receiver's end."""

    name: str
    routes: Routes
    remote: bool

    def may_receive(self) -> bool:
        """Whether there is something to take."""

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message for a tensor of this spec: what was sent, and lanes of the receiver's mesh."""


@dataclass
class Channel:
    """What both ends of a socket share. Whichever end comes second finds the other one waiting."""

    name: str
    routes: Routes
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
        return message.spec, self.routes.placed(self.routes.picked(lanes))
