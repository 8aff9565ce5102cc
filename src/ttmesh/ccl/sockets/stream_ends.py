"""The two ends of a socket between ranks: headers, lanes, and the fill level of the FIFO.

A message is a header, sent so that the sender learns when its receive begins, and then the lanes. Messages that are sent
and not yet being received stay in the sender's process and count as the contents of the receiver's FIFO; a message that
does not fit is offered (its header only) and sent when the receiver requests it.
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

HEADER_BYTES = 1024  # below every engine's limit for eager messages
QUICK_POLLS = 20  # polls of a receive before its command waits: often the message has already arrived


@dataclass(eq=False)
class Flight:
    """A message that is being sent: its operations that have not ended, in order."""

    message: Message
    offered: bool = False  # the lanes are sent later, when its command runs
    requested: bool = False  # the receiver has begun to take it: it no longer counts in the FIFO
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
        self._offer: Flight | None = None  # of the message whose command waits in its queue
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_send(self, message: Message) -> bool:
        """Whether the FIFO has room or the receiver has requested the message; else the message is offered."""
        if self._has_room(message):
            return True
        self._poll()
        with self._changed:
            if self._has_room(message):
                return True
            if self._offer is None:
                self._offer = Flight(message, offered=True)
                self._start_send(self._offer, _make_header(_describe_tensor(message.spec), None), until_received=True)
                self._flights.append(self._offer)
            self._link.hurry(waiting=True)
        self._poll()
        return self._has_room(message)

    def put(self, message: Message, cells: Cells) -> None:
        """Send the lanes."""
        lanes = self.routes.select_lanes(cells[0].read(message.spec))
        with self._changed:
            self.raise_failure()
            flight = self._offer
            if flight is None or flight.message is not message:
                flight = Flight(message)
                self._flights.append(flight)
            else:
                self._offer, flight.offered = None, False
            if not flight.requested:
                self._used_bytes += message.size_bytes
            kind = (tuple(lanes.shape), str(lanes.dtype), lanes.is_meta)
            self._start_send(
                flight, _make_header(_describe_tensor(message.spec), kind), until_received=not flight.requested
            )
            if not lanes.is_meta:
                self._start_send(flight, lanes.cpu(), until_received=False)
            self._changed.notify_all()
        self._poll()

    def busy(self) -> bool:
        """Whether a message is still being sent."""
        return bool(self._flights)

    def flush(self) -> None:
        """Wait until everything sent was received, or the stream has failed."""
        self.hand_over()
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or not self.busy())

    def _has_room(self, message: Message) -> bool:
        offer = self._offer
        if self.failure is not None or (offer is not None and offer.message is message and offer.requested):
            return True
        return self._used_bytes + message.size_bytes <= self._capacity_bytes

    def _start_send(self, flight: Flight, tensor: torch.Tensor, *, until_received: bool) -> None:
        """Start a send; the stream's thread handles failures."""
        try:
            done = self._link.start_send(
                tensor, self._peer, tag=self._tag, until_received=until_received, operation="send_async"
            )
        except Exception as problem:  # exception types differ by engine
            self._trouble = problem
            self.hand_over()
        else:
            flight.running.append(done)

    def _advance(self, ended: Callable[..., bool]) -> None:
        while self._flights:
            flight = self._flights[0]
            while flight.running:
                if not ended(flight.running[0], requested=flight.requested):
                    return
                with self._changed:
                    flight.running.popleft()
                    self._mark_requested(flight)
            if flight.offered:
                if ended == self._is_done:
                    return
                self._nudge()  # so that its command runs
                with self._changed:
                    self._changed.wait_for(lambda: not self._flights[0].offered)
                continue
            with self._changed:
                if flight.running:
                    continue  # `put` was starting its sends; the memory they read must stay until they end
                self._flights.popleft()
                if not self._flights:
                    self._link.mark_idle()
                self._changed.notify_all()

    def _mark_requested(self, flight: Flight) -> None:
        """Record that the receiver has begun to take a message."""
        if not flight.requested:
            flight.requested = True
            self._link.hurry(waiting=False)
            if not flight.offered:
                self._used_bytes -= flight.message.size_bytes

    def _wait_for(self, done: Done, *, requested: bool) -> bool:
        # A message that fits may stay in the FIFO for any time: it has no deadline.
        limit_s = None if requested else math.inf
        self._link.finish(done, self._peer, operation="send_async to", timeout_s=limit_s)
        if not requested:
            with self._changed:
                self._mark_requested(self._flights[0])
            self._nudge()  # the FIFO has room again
        return True


class Incoming(RankStream):
    """The receiver's end."""

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: SocketRoutes, nudge: Callable[[], None]
    ) -> None:
        self._requested = False  # a receive waits in its queue
        self._running: Done | None = None
        self._header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device="cpu")
        self._lanes: torch.Tensor | None = None  # being received
        self._description = ""
        self._arrived: deque[tuple[str, torch.Tensor]] = deque()
        super().__init__(link, peer, tag, name, routes, nudge)

    def may_receive(self) -> bool:
        """Whether a message arrived; else one is requested."""
        with self._changed:
            if self._arrived or self.failure is not None:
                return True
            polls = 1 if self._requested else QUICK_POLLS
            self._requested = True
        for _ in range(polls):
            self._poll()
            if self._arrived:
                return True
        return self.failure is not None

    def take(self, spec: TensorSpec) -> tuple[TensorSpec, torch.Tensor]:
        """Take the oldest message, which must match the tensor's spec."""
        if not self._arrived:
            self.raise_failure()
        description, lanes = self._arrived.popleft()
        if description != _describe_tensor(spec):
            raise MeshError(
                f"{self.name} delivered {description}",
                expected=f"{_describe_tensor(spec)}, like the tensor to fill",
                fix="Allocate the receiver's tensor with the sender's shape, dtype and layout.",
            )
        return spec, self.routes.to_receiver_lanes(lanes)

    def busy(self) -> bool:
        """Whether a receive still waits for its message."""
        return self._requested

    def _advance(self, ended: Callable[..., bool]) -> None:
        while self._requested:
            if self._running is None:
                buffer = self._header if self._lanes is None else self._lanes
                self._running = self._link.start_recv(buffer, self._peer, tag=self._tag, operation="recv_async")
            if not ended(self._running, requested=True):
                return
            self._running = None
            if self._lanes is None:
                header = _parse_header(self._header.numpy().tobytes())
                if header["offered"]:
                    continue
                self._description = header["what"]
                dtype, torch_device = (
                    getattr(torch, header["dtype"].removeprefix("torch.")),
                    "meta" if header["meta"] else "cpu",
                )
                self._lanes = torch.empty(header["shape"], dtype=dtype, device=torch_device)
                if not header["meta"]:
                    continue
            with self._changed:
                self._arrived.append((self._description, self._lanes))
                self._lanes, self._requested = None, False
                self._link.mark_idle()

    def _wait_for(self, done: Done, *, requested: bool) -> bool:
        self._link.finish(done, self._peer, operation="recv_async from")
        return True


@lru_cache(maxsize=256)
def _describe_tensor(spec: TensorSpec) -> str:
    """A tensor's shape, dtype and layout as text, for comparison by both ends."""
    return f"{list(spec.shape)} {spec.dtype.name} {spec.layout.name}"


@lru_cache(maxsize=256)
def _make_header(description: str, lanes: tuple[tuple[int, ...], str, bool] | None) -> torch.Tensor:
    """The message before the lanes (shape, dtype, whether there are values), or the offer of a message."""
    fields: dict[str, object] = {"what": description, "offered": lanes is None}
    if lanes is not None:
        fields |= {"shape": list(lanes[0]), "dtype": lanes[1], "meta": lanes[2]}
    text = json.dumps(fields).encode().ljust(HEADER_BYTES)
    assert len(text) == HEADER_BYTES, "the header is too long"
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(header)
    return fields
