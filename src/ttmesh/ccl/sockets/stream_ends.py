"""The two ends of a socket between ranks: headers, lanes, and what fills the FIFO.

A message is a header, sent so that the sender learns when its receive has begun, and then the lanes. What is sent and not
yet being received lies in the sender's process and counts as what fills the receiver's FIFO; a message that does not fit
is offered (its header alone) and goes when it is asked for.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from ttmesh.base.errors import MeshError
from ttmesh.ccl.sockets.rank_streams import RankStream
from ttmesh.ccl.sockets.socket_channels import Message
from ttmesh.ccl.sockets.socket_config import SocketRoutes
from ttmesh.fabric.messaging.rank_job import Done
from ttmesh.fabric.messaging.transport import Transport
from ttmesh.mesh.queue.command_queue import Cells
from ttmesh.tensor.spec.tensor_spec import TensorSpec

HEADER_BYTES = 1024  # below every engine's limit for messages that need no agreement
QUICK_LOOKS = 20  # at a receive, before its command parks: often the message has come already


@dataclass(eq=False)
class Flight:
    """A message on its way out: the operations that have not ended, in their order."""

    message: Message
    offered: bool = False  # the lanes are missing as yet: they come when its command runs
    asked_for: bool = False  # the receiver has begun to take it: it fills no FIFO any more
    running: deque[Done] = field(default_factory=deque)


class Outgoing(RankStream):
    """The sender's end."""

    def __init__(
        self,
        link: Transport,
        peer: int,
        tag: int,
        name: str,
        routes: SocketRoutes,
        nudge: Callable[[], None],
        capacity_bytes: int,
    ) -> None:
        self._capacity_bytes, self._used_bytes = capacity_bytes, 0
        self._flights: deque[Flight] = deque()
        self._offer: Flight | None = None  # of the message that stands at the head of its queue
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_send(self, message: Message) -> bool:
        """Whether there is room, or the receiver has asked for it; else it is offered."""
        if self._has_room(message):
            return True
        self._look()
        with self._changed:
            if self._has_room(message):
                return True
            if self._offer is None:
                self._offer = Flight(message, offered=True)
                self._start_send(self._offer, _header(_what(message.spec), None), until_received=True)
                self._flights.append(self._offer)
            self._link.hurry(waiting=True)
        self._look()
        return self._has_room(message)

    def put(self, message: Message, cells: Cells) -> None:
        """Hand the lanes over."""
        lanes = self.routes.select_lanes(cells[0].read(message.spec))
        with self._changed:
            self.raise_failure()
            flight = self._offer
            if flight is None or flight.message is not message:
                flight = Flight(message)
                self._flights.append(flight)
            else:
                self._offer, flight.offered = None, False
            if not flight.asked_for:
                self._used_bytes += message.size_bytes
            kind = (tuple(lanes.shape), str(lanes.dtype), lanes.is_meta)
            self._start_send(flight, _header(_what(message.spec), kind), until_received=not flight.asked_for)
            if not lanes.is_meta:
                self._start_send(flight, lanes.cpu(), until_received=False)
            self._changed.notify_all()
        self._look()

    def busy(self) -> bool:
        """Whether a message is still on its way out."""
        return bool(self._flights)

    def flush(self) -> None:
        """Return when everything sent was received, or cannot be any more."""
        self.hand_over()
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or not self.busy())

    def _has_room(self, message: Message) -> bool:
        offer = self._offer
        if self.failure is not None or (offer is not None and offer.message is message and offer.asked_for):
            return True
        return self._used_bytes + message.size_bytes <= self._capacity_bytes

    def _start_send(self, flight: Flight, tensor: torch.Tensor, *, until_received: bool) -> None:
        """Start a send; what fails is found out by the thread."""
        try:
            done = self._link.start_send(
                tensor, self._peer, tag=self._tag, until_received=until_received, operation="send_async"
            )
        except Exception as problem:  # every engine has its own
            self._trouble = problem
            self.hand_over()
        else:
            flight.running.append(done)

    def _advance(self, ended: Callable[..., bool]) -> None:
        while self._flights:
            flight = self._flights[0]
            while flight.running:
                if not ended(flight.running[0], asked_for=flight.asked_for):
                    return
                with self._changed:
                    flight.running.popleft()
                    self._mark_asked(flight)
            if flight.offered:
                if ended == self._is_over:
                    return
                self._nudge()  # now its command runs
                with self._changed:
                    self._changed.wait_for(lambda: not self._flights[0].offered)
                continue
            with self._changed:
                self._flights.popleft()
                if not self._flights:
                    self._link.mark_idle()
                self._changed.notify_all()

    def _mark_asked(self, flight: Flight) -> None:
        """The receiver has begun to take a message."""
        if not flight.asked_for:
            flight.asked_for = True
            self._link.hurry(waiting=False)
            if not flight.offered:
                self._used_bytes -= flight.message.size_bytes

    def _wait_for(self, done: Done, *, asked_for: bool) -> bool:
        # Nobody waits for a message as long as it fits: it may lie in the FIFO for ever.
        limit_s = None if asked_for else math.inf
        self._link.finish(done, self._peer, operation="send_async to", timeout_s=limit_s)
        if not asked_for:
            with self._changed:
                self._mark_asked(self._flights[0])
            self._nudge()  # there is room again
        return True


class Incoming(RankStream):
    """The receiver's end."""

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: SocketRoutes, nudge: Callable[[], None]
    ) -> None:
        self._asked = False  # a receive stands at the head of its queue
        self._running: Done | None = None
        self._room = torch.empty(HEADER_BYTES, dtype=torch.uint8)
        self._lanes: torch.Tensor | None = None  # being received
        self._what = ""
        self._arrived: deque[tuple[str, torch.Tensor]] = deque()
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_receive(self) -> bool:
        """Whether something arrived; else it is asked for."""
        with self._changed:
            if self._arrived or self.failure is not None:
                return True
            looks = 1 if self._asked else QUICK_LOOKS
            self._asked = True
        for _ in range(looks):
            self._look()
            if self._arrived:
                return True
        return self.failure is not None

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message, which must be what the tensor takes."""
        if not self._arrived:
            self.raise_failure()
        what, lanes = self._arrived.popleft()
        if what != _what(spec):
            raise MeshError(
                f"{self.name} brought {what}",
                expected=f"{_what(spec)}, as the tensor to fill",
                fix="Allocate the receiver's tensor with the sender's shape, dtype and layout.",
            )
        return spec, self.routes.place_lanes(lanes)

    def busy(self) -> bool:
        """Whether a receive has not been met yet."""
        return self._asked

    def _advance(self, ended: Callable[..., bool]) -> None:
        while self._asked:
            if self._running is None:
                into = self._room if self._lanes is None else self._lanes
                self._running = self._link.start_recv(into, self._peer, tag=self._tag, operation="recv_async")
            if not ended(self._running, asked_for=True):
                return
            self._running = None
            if self._lanes is None:
                said = _said(self._room.numpy().tobytes())
                if said["offered"]:
                    continue
                self._what = said["what"]
                kind, place = getattr(torch, said["dtype"].removeprefix("torch.")), "meta" if said["meta"] else "cpu"
                self._lanes = torch.empty(said["shape"], dtype=kind, device=place)
                if not said["meta"]:
                    continue
            with self._changed:
                self._arrived.append((self._what, self._lanes))
                self._lanes, self._asked = None, False
                self._link.mark_idle()

    def _wait_for(self, done: Done, *, asked_for: bool) -> bool:
        self._link.finish(done, self._peer, operation="recv_async from")
        return True


@lru_cache(maxsize=256)
def _what(spec: TensorSpec) -> str:
    """A tensor in words that both ends can compare."""
    return f"{list(spec.shape)} {spec.dtype.name} {spec.layout.name}"


@lru_cache(maxsize=256)
def _header(what: str, lanes: tuple[tuple[int, ...], str, bool] | None) -> torch.Tensor:
    """What goes before the lanes (shape, dtype, without values), or offers them."""
    said: dict[str, object] = {"what": what, "offered": lanes is None}
    if lanes is not None:
        said |= {"shape": list(lanes[0]), "dtype": lanes[1], "meta": lanes[2]}
    text = json.dumps(said).encode().ljust(HEADER_BYTES)
    assert len(text) == HEADER_BYTES, "a header is longer than its place"
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@lru_cache(maxsize=256)
def _said(header: bytes) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(header)
    return said
