"""TT-NN's functions on command queues: events, waits, and the choice of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import QueueError
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice, current_queue_id, current_sub_device, live_meshes
from ttmesh.mesh.queue.command_queue import Cells, Command, CommandQueue
from ttmesh.mesh.queue.events import MeshEvent
from ttmesh.mesh.queue.trace import make_capture_error

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def command_queue(cq_id: int) -> Iterator[None]:
    """Inside the block, calls without an explicit cq_id use this queue."""
    token = current_queue_id.set(int(cq_id))
    try:
        yield
    finally:
        current_queue_id.reset(token)


def takes_queue(function: Callable[P, R]) -> Callable[P, R]:
    """The function; `queue_id` or `cq_id` names the queue that it uses, as for every registered operation of TT-NN."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        name = "queue_id" if "queue_id" in kwargs else "cq_id"
        queue = kwargs.pop(name, None)
        if queue is None:
            return function(*args, **kwargs)
        with command_queue(queue):  # type: ignore[arg-type]
            return function(*args, **kwargs)

    return call


@contextmanager
def sub_device(sub_device_id: SubDeviceId) -> Iterator[None]:
    """Inside the block, programs run on this sub-device, which may belong to another queue than the rest of the chip."""
    token = current_sub_device.set(int(sub_device_id))
    try:
        yield
    finally:
        current_sub_device.reset(token)


@name_wrong_types
def record_event(
    mesh_device: MeshDevice,
    cq_id: int | None = None,
    sub_device_ids: Sequence[SubDeviceId] = (),
    device_range: MeshCoordinateRange | None = None,
) -> MeshEvent:
    """An event that is set when everything enqueued on the queue so far has run."""
    queue = mesh_device.queue(cq_id)
    mesh_device.sub_devices.check(sub_device_ids)
    _refuse_while_recording(queue)
    event = MeshEvent(mesh_device.id(), queue.id, device_range or MeshCoordinateRange(mesh_device.shape))

    def mark(reads: Cells, writes: Cells) -> None:
        event.done = True

    queue.enqueue(Command("record_event", mark))
    for owner in mesh_device.ownerships():
        owner.note_recorded(event)
    return event


def wait_for_event(cq_id: int | None = None, mesh_event: MeshEvent | None = None) -> None:
    """Make a queue wait for an event of another queue of the same mesh."""
    if not isinstance(mesh_event, MeshEvent):
        raise QueueError(
            f"wait_for_event got {mesh_event!r}", expected="a MeshEvent", fix="Pass what record_event() returned."
        )
    event = mesh_event
    mesh_device = live_meshes.get(event.mesh_id)
    if mesh_device is None:
        raise QueueError(
            f"{event!r} belongs to a mesh that was closed",
            expected="an event of an open mesh",
            fix="Record an event on a mesh that is open.",
        )
    queue = mesh_device.queue(cq_id)
    _refuse_while_recording(queue)
    waits_for = f"event {event.id} of queue {event.mesh_cq_id}"
    queue.enqueue(Command("wait_for_event", _do_nothing, ready=lambda: event.done, waits_for=waits_for))
    for owner in mesh_device.ownerships():
        owner.release_waited(event, queue.id)


def event_synchronize(mesh_event: MeshEvent) -> None:
    """Return when the event is set."""
    mesh_device = live_meshes.get(mesh_event.mesh_id)
    if mesh_device is None:
        return
    queue = mesh_device.queues[mesh_event.mesh_cq_id]
    _refuse_while_recording(queue)
    while not mesh_event.done:
        queue.finish_through(mesh_event)


def event_query(mesh_event: MeshEvent) -> bool:
    """Whether the event is set."""
    return mesh_event.done


@name_wrong_types
def synchronize_device(
    device: MeshDevice, cq_id: int | None = None, sub_device_ids: Sequence[SubDeviceId] = ()
) -> None:
    """Return when one queue, or without `cq_id` every queue, has run all its commands."""
    device.sub_devices.check(sub_device_ids)
    queues = device.queues if cq_id is None else (device.queue(cq_id),)
    device.check_open()
    for queue in queues:
        _refuse_while_recording(queue)
        queue.finish()
        for owner in device.ownerships():
            owner.release_finished(queue.id)
    device.backend.synchronize()


@name_wrong_types
def synchronize_mesh_device(mesh_device: MeshDevice) -> None:
    """The older name of `synchronize_device`."""
    synchronize_device(mesh_device)


def synchronize_devices(
    devices: MeshDevice | Iterable[MeshDevice], queue_id: int | None = None, sub_device_ids: Sequence[SubDeviceId] = ()
) -> None:
    """The older form for several devices."""
    for device in [devices] if isinstance(devices, MeshDevice) else devices:
        synchronize_device(device, queue_id, sub_device_ids)


class QueueId(int):
    """The number of a command queue, as TT-NN prints it."""

    def __repr__(self) -> str:
        return f"QueueId({int(self)})"


def get_current_command_queue_id_for_thread() -> QueueId:
    """The queue that calls of this thread go to."""
    return QueueId(current_queue_id.get())


@name_wrong_types
def is_trace_capture_active(device: MeshDevice) -> bool:
    """Whether a trace is being captured on a queue of the device."""
    return any(queue.recording is not None for queue in device.queues)


def get_latest_programs_perf_data() -> dict[int, Any]:
    """Times of the programs since the last reading, by device: none, for an emulated chip has no clock to read."""
    return {}


def get_all_programs_perf_data() -> dict[int, Any]:
    """Times of all programs, by device: none, for an emulated chip has no clock to read."""
    return {}


@name_wrong_types
def read_device_profiler(device: MeshDevice) -> None:
    """Wait for the device; an emulated chip keeps no profiler buffers, so there is nothing to read."""
    synchronize_device(device)


def _do_nothing(reads: Cells, writes: Cells) -> None:
    """The body of a command that only waits."""


def _refuse_while_recording(queue: CommandQueue) -> None:
    if queue.recording is not None:
        raise make_capture_error("Event Synchronization is not supported during trace capture.", queue.id)
