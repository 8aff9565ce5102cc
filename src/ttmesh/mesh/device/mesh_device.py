"""MeshDevice: many chips as one device."""

from __future__ import annotations

import itertools
import logging
import sys
import time
import weakref
from collections.abc import Hashable, Iterable
from contextvars import ContextVar
from typing import Any

import rich

from ttmesh.base.argument_types import refuse_wrong_types
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import ClosedError, MeshError, QueueError, one_of
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.base.records import ChipFacts, Closed, Opened, Reserved, shorten_system_name
from ttmesh.base.signals import signals
from ttmesh.chip.backends.backend_protocol import Backend
from ttmesh.chip.catalogue import current_system
from ttmesh.chip.claims import Claim
from ttmesh.chip.cluster_descriptor import describe_cluster
from ttmesh.chip.memory import Space
from ttmesh.chip.system import ChipSpec, System
from ttmesh.fabric.fabric_state import fabric_process
from ttmesh.mesh.allocation.allocation_digest import Digest
from ttmesh.mesh.allocation.heap import Buffer, Heap, make_allocated_record, next_buffer_id
from ttmesh.mesh.allocation.program_memory import Residents
from ttmesh.mesh.allocation.reservations import RESERVATIONS
from ttmesh.mesh.allocation.sub_devices import SubDevice, SubDeviceId, SubDeviceManagerId, SubDeviceTracker
from ttmesh.mesh.device.chip_view import ChipView
from ttmesh.mesh.device.core_view import CoreView
from ttmesh.mesh.device.mesh_html import draw_mesh
from ttmesh.mesh.device.mesh_reshape import rearrange
from ttmesh.mesh.device.submesh_rules import check_submesh, list_submesh_starts
from ttmesh.mesh.queue import schedules
from ttmesh.mesh.queue.command_queue import Body, Cells, Command, CommandQueue, DividedQueue, worker
from ttmesh.mesh.queue.events import Ownership
from ttmesh.mesh.queue.plan_table import PlanTable
from ttmesh.mesh.queue.program_cache import ProgramCache
from ttmesh.mesh.queue.trace import MeshTraceId, Trace
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.mesh.system.system_links import SystemTraffic
from ttmesh.mesh.system.system_mesh import map_reshaped_devices

log = logging.getLogger("ttmesh.mesh")

current_queue_id: ContextVar[int] = ContextVar("current_queue_id", default=0)
current_sub_device: ContextVar[int] = ContextVar("current_sub_device", default=0)
_mesh_ids = itertools.count(1)

LOCAL_L1_LABEL = "sub-device local L1"  # of the buffer that a partition reserves at the bottom of L1


class MeshDevice(ChipView, CoreView):
    """Chips in a grid that run one program; opened by `open_mesh_device`."""

    def __init__(
        self,
        system: System,
        shape: MeshShape,
        physical_ids: tuple[int, ...],
        space: Space,
        backend: Backend,
        *,
        num_command_queues: int,
        parent: MeshDevice | None = None,
        rank_block: RankBlock | None = None,
    ) -> None:
        self._id = next(_mesh_ids)
        self.rank_block = rank_block  # where several ranks divide the mesh: this rank's block of it; else None
        self._shape = shape
        self.physical_ids = physical_ids
        self.system = system
        self.backend = backend
        self.parent = parent
        self.space = space
        self.heap = Heap(self._id, space, physical_ids, shape.dims(), backend.device)
        self.heap.chips = self.reported_ids()
        self.heap.digest = None if rank_block is None else Digest()
        self.claim: Claim | None = None
        schedule = (
            schedules.find_schedule()
            if rank_block is None or rank_block.position is not None
            else schedules.NoChipsSchedule()
        )
        queue_type = CommandQueue if rank_block is None else DividedQueue
        self.queues = tuple(
            queue_type(i, self._id, repr(self), schedule, backend.start_thread) for i in range(num_command_queues)
        )
        self.program_cache = ProgramCache()
        self.plans = PlanTable()
        self.upload_plans: dict[Hashable, Any] = {}  # what a repeated upload needs, by the arguments of the call
        self.residents = Residents(self._id)
        self.traffic: SystemTraffic = (
            SystemTraffic(system, None if rank_block is None else frozenset(self.local_ids()))
            if parent is None
            else parent.traffic
        )
        self.traces: dict[MeshTraceId, Trace] = {}
        self.trace_bytes = 0
        self.sub_devices = SubDeviceTracker(CoreRangeSet([CoreRange((0, 0), self._last_core())]))
        self._ownership: dict[int, Ownership] = {}
        self._local_l1: Buffer | None = None
        self._submeshes: list[weakref.ref[MeshDevice]] = []
        self._closed = False
        live_meshes[self._id] = self
        if signals.listening:
            for record in self.holdings():
                signals.emit(record)

    # ---- identity

    def id(self) -> int:
        """The id of this mesh in this process."""
        return self._id

    @property
    def shape(self) -> MeshShape:
        """The extent of the mesh."""
        return self._shape

    @property
    def chip(self) -> ChipSpec:
        """The description of each chip."""
        return self.system.chip

    def is_parent_mesh(self) -> bool:
        """Whether it was opened, rather than created as a submesh."""
        return self.parent is None

    def get_parent_mesh(self) -> MeshDevice | None:
        """The mesh of which this is a submesh; None for an opened mesh."""
        return self.parent

    def fabric_report(self) -> None:
        """Print the bytes that crossed each link and the host since the mesh was opened, as a drawing and a table."""
        rich.print(self.traffic.report())

    # ---- submeshes

    def create_submesh(self, submesh_shape: MeshShape, offset: MeshCoordinate | None = None) -> MeshDevice:
        """A mesh over some of the chips, which shares their memory."""
        self.check_open()
        start = offset if offset is not None else MeshCoordinate.zero_coordinate(self._shape.dims())
        check_submesh(submesh_shape, offset, self._shape)
        last = MeshCoordinate([o + s - 1 for o, s in zip(start, submesh_shape, strict=True)])
        ids = tuple(self.chip_at(coord) for coord in MeshCoordinateRange(start, last))
        block = self.rank_block
        if block is not None:
            block = block.make_submesh_block(start.coords(), submesh_shape.to_tuple())
        if block is not None and len(block.ranks) > 1:
            block.create_groups(len(self.queues), f"submesh {submesh_shape!r} at {start!r} of {self!r}")
        self.space.split(ids)
        child = MeshDevice(
            self.system, submesh_shape, ids, self.space, self.backend, num_command_queues=len(self.queues), parent=self,
            rank_block=block,
        )  # fmt: skip
        self._submeshes.append(weakref.ref(child))
        return child

    def create_submeshes(self, submesh_shape: MeshShape) -> list[MeshDevice]:
        """The submeshes of this shape that tile the mesh, in row-major order."""
        starts = list_submesh_starts(submesh_shape, self._shape)
        return [self.create_submesh(submesh_shape, start) for start in starts]

    def reshape(self, new_shape: MeshShape) -> None:
        """Give the mesh another shape over the same chips, which keep their values. All ranks of the mesh call it."""
        self.check_open()
        ids = map_reshaped_devices(self.system, self._shape, self.physical_ids, new_shape)
        if new_shape != self._shape:
            rearrange(self, new_shape, ids)

    def get_submeshes(self) -> list[MeshDevice]:
        """The open submeshes, in the order they were made."""
        return [child for ref in self._submeshes if (child := ref()) is not None and not child._closed]

    def quiesce_devices(self) -> None:
        """Wait until this mesh and its submeshes are idle."""
        for mesh in (self, *self.get_submeshes()):
            for queue in mesh.queues:
                queue.finish()

    # ---- queues

    def queue(self, cq_id: int | None = None) -> CommandQueue:
        """The queue with this id, or the one that `command_queue(...)` selected."""
        self.check_open()
        number = current_queue_id.get() if cq_id is None else int(cq_id)
        if not 0 <= number < len(self.queues):
            raise QueueError(
                f"cq_id {number} is out of range",
                expected=one_of(range(len(self.queues))),
                fix="Open the mesh with num_command_queues=2."
                if number == 1
                else "Pass 0, or 1 on a mesh with two queues.",
            )
        return self.queues[number]

    def launch(self, command: Command) -> None:
        """Enqueue a program on the current queue."""
        self.program_queue().enqueue(command)

    def program_queue(self) -> CommandQueue:
        """The current queue, for a program; applies TT-Metal's rule of which queue owns a sub-device."""
        if self._closed:
            self.check_open()
        if len(self.queues) == 1 and not current_queue_id.get():
            return self.queues[0]
        queue = self.queue()
        if len(self.queues) > 1:
            self.ownership(current_sub_device.get()).take(queue.id)
        return queue

    def run_program(
        self, name: str, body: Body, reads: Cells, writes: Cells, programs: int, dispatch_bytes: int | None = None
    ) -> None:
        """Enqueue a program; run it at once where no command is pending and nothing records or times commands."""
        queues = self.queues
        queue = self.program_queue() if self._closed or len(queues) > 1 or current_queue_id.get() else queues[0]
        if queue.schedule.busy or queue.recording is not None or signals.timing:
            queue.take(Command(name, body, reads, writes, programs=programs, dispatch_bytes=dispatch_bytes))
        else:
            if self.rank_block is not None:
                worker.queue = queue.id
            body(reads, writes)

    def runs_at_once(self) -> bool:
        """Whether a transfer would run when it is enqueued, and nobody records or times it."""
        queues = self.queues
        if len(queues) != 1 or self._closed or self.rank_block is not None or current_queue_id.get():
            return False
        queue = queues[0]
        return not (queue.schedule.busy or signals.timing or queue.failure) and queue.recording is None

    def ownership(self, sub_device: int = 0) -> Ownership:
        """The record of which queue may launch on a sub-device."""
        return self._ownership.setdefault(sub_device, Ownership(sub_device))

    def ownerships(self) -> Iterable[Ownership]:
        """The records of every sub-device on which a program was launched."""
        return self._ownership.values()

    # ---- program cache

    def enable_program_cache(self) -> None:
        """Cache programs (the default)."""
        self.program_cache.enabled = True

    def clear_program_cache(self) -> None:
        """Drop the cached programs."""
        self.program_cache.clear()

    def disable_and_clear_program_cache(self) -> None:
        """Drop the cached programs and cache none from now on."""
        self.program_cache.clear()
        self.program_cache.enabled = False

    def set_program_cache_misses_allowed(self, allowed: bool) -> None:
        """Allow or refuse operations whose programs are not cached."""
        self.program_cache.misses_allowed = allowed

    def num_program_cache_entries(self) -> int:
        """The number of cached device programs."""
        return self.program_cache.count()

    # ---- sub-devices

    def create_sub_device_manager(self, sub_devices: Iterable[SubDevice], local_l1_size: int) -> SubDeviceManagerId:
        """Create a partition of the cores into sub-devices."""
        return self.sub_devices.create(sub_devices, local_l1_size)

    @refuse_wrong_types
    def load_sub_device_manager(self, sub_device_manager_id: SubDeviceManagerId) -> None:
        """Load a partition; its local L1 is allocated at the bottom of the banks."""
        manager = self.sub_devices.get(sub_device_manager_id)
        self.clear_loaded_sub_device_manager()
        if manager.local_l1_size:
            banks = self.heap.map.banks[BufferType.L1]
            size = -(-manager.local_l1_size // banks.alignment) * banks.alignment
            self._local_l1 = self.heap.allocate(
                BufferType.L1, size * banks.count, size, size, banks.count, LOCAL_L1_LABEL, bottom_up=True
            )
        self.sub_devices.load(manager)

    def clear_loaded_sub_device_manager(self) -> None:
        """Return to the default partition: one sub-device with all cores."""
        for queue in self.queues:
            queue.finish()
        if self._local_l1 is not None:
            self._local_l1.deallocate()
            self._local_l1 = None
        self._ownership.clear()
        self.sub_devices.load(self.sub_devices.default)

    @refuse_wrong_types
    def remove_sub_device_manager(self, sub_device_manager_id: SubDeviceManagerId) -> None:
        """Remove a partition."""
        self.sub_devices.remove(sub_device_manager_id)

    def set_sub_device_stall_group(self, sub_device_ids: Iterable[SubDeviceId]) -> None:
        """Set the sub-devices that transfers wait for."""
        self.sub_devices.set_stall_group(sub_device_ids)

    def reset_sub_device_stall_group(self) -> None:
        """Transfers wait for all sub-devices again."""
        self.sub_devices.reset_stall_group()

    # ---- open and closed

    def check_open(self) -> None:
        """Raise if the mesh was closed."""
        if self._closed:
            raise ClosedError(
                f"{self!r} was closed", expected="an open mesh", fix="Open it again with open_mesh_device()."
            )

    def is_open(self) -> bool:
        """Whether the mesh is still open."""
        return not self._closed

    def close(self) -> None:
        """Finish all commands, close the submeshes and free all buffers; a second close raises."""
        self.check_open()
        for child in self.get_submeshes():
            child.close()
        for queue in self.queues:
            try:
                queue.finish()
            except QueueError as deadlock:  # a send or receive without its other end does not keep the mesh open
                log.warning("closed %r with commands that never ran: %s", self, deadlock)
                queue.pending.clear()
        self._shut()
        if self.parent is None and not list_open_meshes():
            fabric_process.close()
        self.backend.check_indices()

    def set_shape(self, shape: MeshShape, physical_ids: tuple[int, ...], rank_block: RankBlock | None) -> None:
        """Set another shape, after all values have moved."""
        self._shape, self.physical_ids, self.rank_block = shape, physical_ids, rank_block
        self.heap.chips, self.heap.lane_axes = self.reported_ids(), shape.dims()
        if rank_block is not None and self.parent is None:
            self.traffic.counters.own = frozenset(self.local_ids())

    def holdings(self) -> list[Any]:
        """The records of everything this mesh holds now: itself, its reservations, its buffers and programs."""
        everyone = self.reported_ids()
        buffers = (make_allocated_record(cell, self._id, everyone) for cell in self.heap.cells())
        held = sorted([*buffers, *self.residents.records()], key=lambda record: record.buffer_id)
        return [*self.own_records(), *held]

    def own_records(self) -> list[Any]:
        """The records of the mesh itself and of its reservations."""
        now = time.time_ns()
        parent = self.parent.id() if self.parent else None
        system = shorten_system_name(self.system.name)
        opened = Opened(self._id, parent, self._shape.to_tuple(), system, self._chip_facts(), now)
        everyone = self.reported_ids()
        first = everyone[:1] if self.is_local(MeshCoordinate.zero_coordinate(self._shape.dims())) else ()
        reserved = [
            Reserved(
                self._id, first if region.coordinator_only else everyone, "L1", region.size_bytes, region.label, now
            )
            for region in (RESERVATIONS if self.parent is None else ())
            if first or not region.coordinator_only
        ]
        return [opened, *reserved]

    def _chip_facts(self) -> tuple[ChipFacts, ...]:
        banks = self.heap.map.banks
        dram, l1 = banks[BufferType.DRAM], banks[BufferType.L1]
        small, trace = banks[BufferType.L1_SMALL], banks[BufferType.TRACE]
        coords = MeshCoordinateRange(self._shape).coords()
        return tuple(
            ChipFacts(
                self.system.original_id(chip), i, coord.coords(), self.chip.arch.name, dram.count, dram.size, l1.count,
                l1.size, chip in self.system.remote, dram.start, l1.start, small.size, trace.size,
                self.system.find_position(chip), self.system.list_links(chip),
            )
            for i, (chip, coord) in enumerate(zip(self.physical_ids, coords, strict=True))
            if self.rank_block is None or self.rank_block.has_chip(coord)
        )  # fmt: skip

    def _last_core(self) -> CoreCoord:
        return CoreCoord(self.chip.compute_grid.x - 1, self.chip.compute_grid.y - 1)

    def _shut(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.traces.clear()
        self.program_cache.clear()
        self.plans.clear()
        self.residents.clear()
        live_meshes.pop(self._id, None)
        if (
            signals.listening
        ):  # before the heap closes: buffers that the program never freed must not be reported as freed
            signals.emit(Closed(self._id, time.time_ns()))
        self.heap.close()
        if self.claim is not None:
            self.claim.release()
        if self.parent is None and not sys.is_finalizing():  # a process that ends frees its heap by itself
            self.backend.release()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._shut()

    def __repr__(self) -> str:
        return f"MeshDevice({'x'.join(map(str, self._shape))} grid, {self.get_num_devices()} devices)"

    def _repr_html_(self) -> str:
        """What a notebook shows: the chips on their grid, with what each holds."""
        return draw_mesh(self)


live_meshes: weakref.WeakValueDictionary[int, MeshDevice] = weakref.WeakValueDictionary()


def list_open_meshes() -> list[MeshDevice]:
    """Every mesh and submesh open in this process, oldest first."""
    return [mesh for _, mesh in sorted(live_meshes.items()) if mesh.is_open()]


def _collect_holdings() -> list[Any]:
    from_all: list[Any] = []
    for mesh in list_open_meshes():
        from_all += mesh.holdings()
    return from_all


def check_same_mesh(a: MeshDevice, b: MeshDevice, text: str | None = None) -> None:
    """Refuse operands on different devices, naming both; `text` is what TT-NN says of that."""
    if a is not b:
        message = "" if text is None else f"{text}: "
        raise MeshError(
            f"{message}operands live on different devices: {a!r} (id {a.id()}) and {b!r} (id {b.id()})",
            expected="tensors on one mesh",
            fix="Move one with to_device() first.",
        )


signals.provide("holdings", _collect_holdings)
signals.provide("cluster", lambda: describe_cluster(current_system()))
signals.provide("unused ids", lambda: (next(_mesh_ids), next_buffer_id()))
