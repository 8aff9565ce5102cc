"""Stages of collectives that are TT-NN's own device programs: their memory, and the semaphores that they keep."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil, prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores, keep_semaphores
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.group_plan import find_fabric_topology, find_usable_topology
from ttmesh.ccl.planning.link_limits import get_num_links
from ttmesh.ccl.planning.staging_buffers import PAYLOAD_BYTES
from ttmesh.fabric.fabric_config import Topology
from ttmesh.ops.stages.movement_stages import interleave
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]
PACKET_BYTES = 4096  # of bfloat16; other formats fill a channel's buffer: a payload and its header
CHANNEL_BYTES = PAYLOAD_BYTES + 48
L1_ALIGNMENT = 16
TILE = 32


def program_attributes(request: Request, axis: int | None) -> Hashable:
    """What tells two programs of a collective apart beside its tensors' specs; a tensor's topology does not."""
    links = request["num_links"] or get_num_links(request.mesh, axis)
    place = request.tensor.kind.presence, key_of(request["subdevice_id"])
    tuning = request["tuning"] if any(value is not None for value in request["tuning"] or ()) else None
    return axis, bool(request["reverse"]), links, tuning, *place


def run_all_gather(c: Composition, request: Request, x: PlannedTensor, dim: int, spec: TensorSpec) -> PlannedTensor:
    """all_gather; its semaphores are in L1_SMALL where the mesh has such a region."""
    options = (dim - len(x.spec.shape), program_attributes(request, request["axis"]))
    if brings_semaphores(request):
        topology = find_fabric_topology(request, request["axis"])
        return c.run("all_gather_async", spec, x, options=(*options, topology))
    made = c.run("all_gather", spec, x, options=options)
    keep_semaphores(c, request, "all_gather")
    return made


def run_all_broadcast(
    c: Composition, request: Request, x: PlannedTensor, spec: TensorSpec, lengths: Sequence[tuple[int | None, int]]
) -> list[PlannedTensor]:
    """Every chip's tensor on all chips, along one axis after the other: the second sends what the first gathered."""
    now = [x]
    for axis, count in lengths:
        found: list[PlannedTensor] = []
        for part in now:
            key = ("all_broadcast", part.spec, spec, count, program_attributes(request, axis))
            compiles = key not in c.programs
            c.launch(key)
            found += [c.allocate(spec) for _ in range(count)]
            if compiles:
                keep_semaphores(c, request, "all_broadcast")
            c.free(part)
        now = found
    return now


def list_broadcast_axes(request: Request, n: int) -> list[tuple[int | None, int]]:
    """The axes, with their lengths, along which an all_broadcast goes: without one all axes of a mesh of two."""
    shape = tuple(request.mesh.shape)
    if request["axis"] is None and min(shape) > 1 and n == prod(shape):
        return list(enumerate(shape))
    return [(request["axis"], n)]


def run_reduce_scatter(
    c: Composition, request: Request, x: PlannedTensor, dim: int, spec: TensorSpec, *, padded: bool = False
) -> PlannedTensor:
    """reduce_scatter, with room for what arrives while it runs: on a line from both sides; `padded`: in a composition."""
    axis = request["axis"]
    topology = find_usable_topology(request, axis)
    options = (dim, program_attributes(request, axis), request["reduction"], topology)
    shape = list(x.spec.shape)
    if topology is not Topology.Ring:
        shape[0] *= 2
    if brings_semaphores(request) and not padded:
        room = TensorSpec(shape, spec.dtype, spec.layout, memory_config=interleave(x.spec.memory_config))
        arriving = c.allocate(room)
        made = c.run("reduce_scatter_minimal_async", spec, x, options=options)
        c.free(arriving)
        return made
    made = c.run("reduce_scatter", spec, x, options=options)
    arriving = c.allocate(TensorSpec(shape, spec.dtype, spec.layout, memory_config=DRAM_MEMORY_CONFIG))
    keep_semaphores(c, request, "reduce_scatter")
    c.free(arriving)
    return made


def packet_spec(spec: TensorSpec) -> TensorSpec:
    """What point_to_point takes for packets on their way: as many whole pages in each as fit, or a page in several."""
    size = element_bytes(spec.dtype)
    pages, page = prod(spec.shape[:-1]), spec.page_size_bytes
    if spec.layout is Layout.TILE:
        pages, page = prod(spec.padded_shape) // TILE**2, TILE**2 * size
    page = -(-page // L1_ALIGNMENT) * L1_ALIGNMENT
    most = PACKET_BYTES if spec.dtype is DataType.BFLOAT16 else CHANNEL_BYTES
    if page > most:
        packets, length = ceil(page / most) * pages, most
    else:
        together = max(1, min(most // page, pages))
        packets, length = ceil(pages / together), together * page
    return TensorSpec((packets, length // size), spec.dtype, spec.layout, memory_config=spec.memory_config)
