"""Events between command queues, and which queue may launch programs on a sub-device."""

from __future__ import annotations

import itertools

from ttmesh.base.errors import QueueError
from ttmesh.base.geometry import MeshCoordinateRange

_ids = itertools.count(1)


class MeshEvent:
    """A point in a queue: set when everything enqueued before it has run."""

    __slots__ = ("device_range", "done", "id", "mesh_cq_id", "mesh_id")

    def __init__(self, mesh_id: int, cq_id: int, device_range: MeshCoordinateRange) -> None:
        self.id = next(_ids)
        self.mesh_id = mesh_id
        self.mesh_cq_id = cq_id
        self.device_range = device_range
        self.done = False

    def __repr__(self) -> str:
        return (
            f"MeshEvent(id={self.id}, device_id={self.mesh_id}, cq_id={self.mesh_cq_id}, "
            f"device_range={self.device_range!r})"
        )


class Ownership:
    """The queue that may launch on a sub-device: the last one that did, until it is finished or another waits for it.

    The rule is TT-Metal's (tt-metal e4f9f0b, impl/dispatch/cq_shared_state.cpp).
    """

    __slots__ = ("_event", "_queue", "_sub_device")

    def __init__(self, sub_device: int) -> None:
        self._sub_device = sub_device
        self._queue: int | None = None
        self._event: int | None = None

    def take(self, queue: int) -> None:
        """Give the sub-device to a queue that is about to launch a program; refuse while another queue has it."""
        if self._queue is not None and self._queue != queue:
            raise QueueError(
                f"Sub device id {self._sub_device} currently in use by cq {self._queue}. Can't enqueue program from "
                f"cq {queue}. Finish or wait for an event to transfer ownership.",
                expected=f"cq {queue} to wait for an event of cq {self._queue}",
                fix=f"Call record_event on cq {self._queue} and wait_for_event on cq {queue} first.",
            )
        self._queue = queue
        self._event = None

    def release_finished(self, queue: int) -> None:
        """Release the sub-device after the host waited for everything on this queue."""
        if self._queue == queue:
            self._queue = self._event = None

    def note_recorded(self, event: MeshEvent) -> None:
        """Note the first event recorded since the owning queue's last launch."""
        if self._queue == event.mesh_cq_id and self._event is None:
            self._event = event.id

    def release_waited(self, event: MeshEvent, queue: int) -> None:
        """Release the sub-device when another queue waits for an event recorded after the last launch."""
        handed_over = self._event is not None and self._event <= event.id
        if self._queue == event.mesh_cq_id and self._queue != queue and handed_over:
            self._queue = self._event = None
