"""Sockets whose other end is in another rank: a thread per end moves messages, and sleeps when there are none.

A message is a header, sent so that the sender learns when its receive has begun, and then the lanes. What is sent and not
yet being received lies in the sender's process and counts as what fills the receiver's FIFO; a message that does not fit
is offered (its header alone) and goes when it is asked for.
"""

from __future__ import annotations

import atexit
import json
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ttmesh.base.errors import MeshError, RankError
from ttmesh.ccl.channels import Message
from ttmesh.ccl.socket_config import Routes
from ttmesh.fabric.transports.protocol import Transport
from ttmesh.mesh.command_queue import Cells
from ttmesh.tensor.spec import TensorSpec

HEADER_BYTES = 1024  # below every engine's limit for messages that need no agreement

_live: weakref.WeakSet[Stream] = weakref.WeakSet()


@dataclass(eq=False)
class Item:
    """A message in the hands of the sending thread; the lanes come when its command runs."""

    message: Message
    lanes: torch.Tensor | None = None
    asked_for: bool = False  # the receiver waits for it: it fills no FIFO


class Stream:
    """One end: its thread, its connection, and the error that ended it."""

    remote = True

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: Routes, nudge: Callable[[], None]
    ) -> None:
        self.name, self.routes = name, routes
        self.failure: Exception | None = None
        self._link, self._peer, self._tag, self._nudge = link, peer, tag, nudge
        self._changed = threading.Condition()
        self._closing = False
        if not _live:
            atexit.unregister(_flush_all)
            atexit.register(_flush_all)  # after the ranks were joined, so that it runs before they part
        _live.add(self)
        threading.Thread(target=self._work, name=f"ttmesh {name}", daemon=True).start()

    def close(self) -> None:
        """End the thread once nothing is left to do."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def busy(self) -> bool:
        """Whether a message is still on its way out."""
        return False

    def flush(self) -> None:
        """Return when everything sent was received, or cannot be any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or not self.busy())

    def raise_failure(self) -> None:
        """Raise what ended the stream, for the command that met it."""
        cause = self.failure
        if isinstance(cause, RankError):
            raise RankError(
                cause.wrong,
                expected=f"{self.name} to carry a message",
                fix="Look at the output of the ranks named; TTMESH_TIMEOUT_S sets the time.",
                ranks=cause.ranks,
            ) from cause
        if cause is not None:
            raise cause

    def _work(self) -> None:
        try:
            while self._step():
                self._nudge()
        except Exception as error:  # raised again by the command that waits for this
            self.failure = error
            with self._changed:
                self._changed.notify_all()
            self._nudge()
        self._link.close()

    def _step(self) -> bool:
        raise NotImplementedError


class Outgoing(Stream):
    """The sender's end."""

    def __init__(
        self,
        link: Transport,
        peer: int,
        tag: int,
        name: str,
        routes: Routes,
        nudge: Callable[[], None],
        capacity_bytes: int,
    ) -> None:
        self._capacity_bytes, self._used_bytes = capacity_bytes, 0
        self._items: deque[Item] = deque()
        self._offered: Item | None = None  # the last item, as long as its lanes are missing
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_send(self, message: Message) -> bool:
        """Whether there is room, or the receiver has asked for it; else it is offered."""
        with self._changed:
            offered = self._offered
            if self.failure is not None or (offered and offered.message is message and offered.asked_for):
                return True
            if self._used_bytes + message.size_bytes <= self._capacity_bytes:
                return True
            if offered is None:
                self._offered = Item(message)
                self._items.append(self._offered)
                self._changed.notify_all()
            self._link.hurry(waiting=True)
            return False

    def put(self, message: Message, cells: Cells) -> None:
        """Hand the lanes over."""
        lanes = self.routes.picked(cells[0].read(message.spec))
        with self._changed:
            self.raise_failure()
            item = self._offered
            if item is None or item.message is not message:
                item = Item(message)
                self._items.append(item)
            else:
                self._offered = None
            item.lanes = lanes
            if not item.asked_for:
                self._used_bytes += message.size_bytes
            self._changed.notify_all()

    def busy(self) -> bool:
        """Whether a message is still on its way out."""
        return bool(self._items)

    def _step(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closing)
            if not self._items:
                return False
            item = self._items[0]
            lanes = item.lanes
        # Nobody waits for this one as long as it fits: it may lie in the FIFO for ever.
        self._send(_header(item.message.spec, lanes), timeout_s=math.inf, until_received=True)
        with self._changed:
            self._link.hurry(waiting=False)
            item.asked_for = True
            if item.lanes is not None:
                self._used_bytes -= item.message.size_bytes
        if lanes is None:
            lanes = self._lanes_of(item)
            self._send(_header(item.message.spec, lanes))
        if lanes.device.type != "meta":
            self._send(lanes.cpu())
        with self._changed:
            self._items.popleft()
            self._changed.notify_all()
        return True

    def _lanes_of(self, item: Item) -> torch.Tensor:
        """The lanes of a message that was only offered: now its command runs."""
        self._nudge()
        with self._changed:
            self._changed.wait_for(lambda: item.lanes is not None)
        assert item.lanes is not None, "waited for"
        return item.lanes

    def _send(self, tensor: torch.Tensor, *, timeout_s: float | None = None, until_received: bool = False) -> None:
        self._link.send(
            tensor, self._peer, tag=self._tag, timeout_s=timeout_s, until_received=until_received,
            operation="send_async",
        )  # fmt: skip


class Incoming(Stream):
    """The receiver's end."""

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: Routes, nudge: Callable[[], None]
    ) -> None:
        self._asked = False  # a receive stands at the head of its queue
        self._arrived: deque[tuple[str, torch.Tensor]] = deque()
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_receive(self) -> bool:
        """Whether something arrived; else it is asked for."""
        with self._changed:
            if self.failure is None and not self._arrived:
                self._asked = True
                self._changed.notify_all()
            return not self._asked or self.failure is not None

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message, which must be what the tensor takes."""
        with self._changed:
            if not self._arrived:
                self.raise_failure()
            what, lanes = self._arrived.popleft()
        if what != _what(spec):
            raise MeshError(
                f"{self.name} brought {what}",
                expected=f"{_what(spec)}, as the tensor to fill",
                fix="Allocate the receiver's tensor with the sender's shape, dtype and layout.",
            )
        return spec, self.routes.placed(lanes)

    def _step(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closing)
            if not self._asked:
                return False
        said = {"offered": True}
        while said["offered"]:
            header = self._recv(torch.empty(HEADER_BYTES, dtype=torch.uint8))
            said = json.loads(bytes(header.tolist()))
        kind = getattr(torch, str(said["dtype"]).removeprefix("torch."))
        lanes = torch.empty(said["shape"], dtype=kind, device="meta" if said["meta"] else "cpu")
        if not said["meta"]:
            self._recv(lanes)
        with self._changed:
            self._arrived.append((str(said["what"]), lanes))
            self._asked = False
        return True

    def _recv(self, into: torch.Tensor) -> torch.Tensor:
        return self._link.recv(into, self._peer, tag=self._tag, operation="recv_async")


def _what(spec: TensorSpec) -> str:
    """A tensor in words that both ends can compare."""
    return f"{list(spec.shape)} {spec.dtype.name} {spec.layout.name}"


def _header(spec: TensorSpec, lanes: torch.Tensor | None) -> torch.Tensor:
    said: dict[str, object] = {"what": _what(spec), "offered": lanes is None}
    if lanes is not None:
        said |= {"shape": list(lanes.shape), "dtype": str(lanes.dtype), "meta": lanes.device.type == "meta"}
    text = json.dumps(said).encode().ljust(HEADER_BYTES)
    assert len(text) == HEADER_BYTES, "a header is longer than its place"
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _flush_all() -> None:
    """At the end of a program that ends well: what was sent reaches its receiver before this rank leaves."""
    if getattr(sys, "last_value", None) is None:
        for stream in list(_live):
            stream.flush()
