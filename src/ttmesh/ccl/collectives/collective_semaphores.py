"""Semaphores that a collective's device program keeps in L1 while it is cached."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ttmesh.base.dtypes import BufferType, DataType, Layout
from ttmesh.ccl.planning.collective_call import Request, program_key
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

COUNTS = {
    "all_gather": 2, "all_broadcast": 2, "broadcast": 2, "reduce_scatter": 4, "point_to_point": 1, "all_to_all": 2,
    "all_to_all_dispatch": 2, "all_to_all_combine": 2,
}  # fmt: skip
IN_SMALL = ("all_gather", "all_to_all")  # where the mesh has such a region


def brings_semaphores(request: Request) -> bool:
    """Whether the caller made the semaphores of a collective's own program: the asynchronous forms say so."""
    given = request["brings_semaphores"]
    return request.name.startswith("ttnn.experimental.") if given is None else bool(given)


def keep_semaphores(c: Composition, request: Request, program: str) -> None:
    """The semaphores of the last program, allocated after its tensors."""
    if request.over_host:
        return
    small = program in IN_SMALL and request.mesh.heap.map.banks[BufferType.L1_SMALL].size > 0
    if request["use_l1_small_for_semaphores"]:
        small = True
    spec = _semaphore_spec(request.mesh, BufferType.L1_SMALL if small else BufferType.L1)
    for _ in range(COUNTS[program]):
        c.keep(spec)


def compile_before_refusal(request: Request, c: Composition) -> None:
    """Do what the programs before a refusal do: they are compiled, and their semaphores stay in L1."""
    mesh, name = request.mesh, request.name
    heap, cache = mesh.heap, mesh.program_cache
    schedule = c.schedule([], heap.map)
    cache.compile(name, c.programs)
    if schedule is None:
        return
    held: dict[int, Buffer | int] = {}
    for step in schedule.steps:
        if step < 0:
            heap.free_temporary(schedule.rooms[~step], held.pop(~step))
        elif step not in schedule.kept:
            held[step] = heap.take_temporary(schedule.rooms[step], name)
        elif schedule.kept[step] not in cache.buffers:
            cache.buffers[schedule.kept[step]] = heap.take(schedule.rooms[step], name)
    for number, memory in held.items():
        heap.free_temporary(schedule.rooms[number], memory)


def program_stages(
    request: Request, program: str, specs: Sequence[TensorSpec]
) -> tuple[Composition, Sequence[PlannedTensor]]:
    """One program that makes these tensors and keeps its semaphores."""
    c = Composition()
    key: Hashable = (*program_key(request), 0)
    c.launch(key)
    made = [c.allocate(spec) for spec in specs]
    keep_semaphores(c, request, program)
    return c, made


def _semaphore_spec(mesh: MeshDevice, buffer_type: BufferType) -> TensorSpec:
    """A number on every core."""
    cores = mesh.heap.map.banks[buffer_type].count
    return TensorSpec(
        (cores, 1), DataType.UINT32, Layout.ROW_MAJOR, memory_config=MemoryConfig(buffer_type=buffer_type)
    )
