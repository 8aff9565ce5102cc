"""all_reduce as TT-NN composes it: reduce_scatter and all_gather, or every chip's tensor on all chips and a local sum."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, require
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores, compile_before_refusal
from ttmesh.ccl.collectives.collective_stages import TILE, Composed, run_all_gather, run_reduce_scatter
from ttmesh.ccl.collectives.composed_gather import join_broadcast
from ttmesh.ccl.collectives.composed_scatter import is_composed_scatter
from ttmesh.ccl.collectives.line_checks import check_routes
from ttmesh.ccl.collectives.scatter_checks import refuse_lone_chip
from ttmesh.ccl.planning.collective_call import Request, require_routers
from ttmesh.ccl.planning.group_plan import find_fabric_topology
from ttmesh.ccl.planning.link_limits import check_link_number
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.ops.stages.movement_stages import fill_padding, has_padding, interleave, tile_spec, transpose, typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

COUNTS = (2, 3, 2)  # semaphores of the barrier, of reduce_scatter and of all_gather
SHARD_FIX = "Convert it with ttnn.to_memory_config first."
SUMMED = (DataType.BFLOAT16, DataType.INT32, DataType.BFLOAT8_B, DataType.FLOAT32)


def find_scatter_dim(spec: TensorSpec, n: int) -> int:
    """The last dim whose tiles or rows the chips can share evenly; the rank where there is none."""
    rank = len(spec.shape)
    extents = list(spec.padded_shape[len(spec.padded_shape) - rank :])
    if spec.layout is Layout.TILE:
        for back in range(max(-2, -rank), 0):
            extents[back] //= TILE
    return next((dim for dim in range(rank - 1, -1, -1) if extents[dim] % n == 0), rank)


def is_summed_locally(spec: TensorSpec, n: int) -> bool:
    """Whether TT-NN gathers whole tensors and sums them on every chip."""
    dim, rank = find_scatter_dim(spec, n), len(spec.shape)
    if dim == rank or spec.layout is Layout.ROW_MAJOR:
        return True
    ragged = dim >= rank - 2 and spec.shape[dim] % TILE != 0
    return ragged or is_composed_scatter(spec, dim, n)


def check_all_reduce(request: Request, n: int) -> None:
    """Raise what the programs of an all_reduce refuse."""
    dtype, topology = request.tensor.dtype, request.tensor.tensor_topology()
    if request.over_host or request["algorithm"]:
        return
    if not is_summed_locally(request.tensor.spec, n):
        if n == 1:
            refuse_lone_chip()
        _check_scattered(request, n)
        return
    if n == 1:
        raise MeshError(
            f"all_broadcast op will only work for num_devices > 1, but has 1, shape: {topology.distribution_shape()!r}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if dtype in SUMMED or request["reduction"] != "sum":
        return
    c = Composition()
    _stack(c, request, _leave_cores(c, PlannedTensor(request.tensor.spec)), request["memory_config"], n)
    compile_before_refusal(request, c)
    raise MeshError(
        f"moreh_sum input only supports specific data types. [BFLOAT16, INT32] got {dtype.name}",
        expected="BFLOAT16 or INT32 where tiles cannot be shared evenly",
        fix="Convert it with ttnn.typecast first.",
    )


def check_buffered_reduce(request: Request, buffer: Tensor, n: int) -> None:
    """Raise for tensors that are not sharded by width, and for a buffer that cannot hold what all chips send."""
    tensor, held = request.tensor, buffer.memory_config()
    config: MemoryConfig = request["memory_config"] or tensor.memory_config()
    in_dram = tensor.memory_config().buffer_type is BufferType.DRAM
    require(
        request.mesh.arch().name != "BLACKHOLE" or not in_dram,
        "This kernel does not support blackhole dram as it does not use an accessor to get the noc address as needed by "
        "the fabric api",
        "a tensor in L1",
        "Move it with ttnn.to_memory_config first.",
    )
    require(
        n % 2 == 0,
        "AllReduceAsync currently only supports even number of blocks in the reduction kernel.",
        "an axis of an even number of chips",
        "Choose another cluster_axis.",
    )
    check_link_number("", request["num_links"])
    for role, found in (
        ("for input tensor", tensor.memory_config()),
        ("for buffer tensor ", held),
        ("for output tensor ", config),
    ):
        require(
            found.memory_layout is TensorMemoryLayout.WIDTH_SHARDED,
            f"Unsupported memory layout {role}TensorMemoryLayout::{found.memory_layout.name}.",
            "WIDTH_SHARDED",
            SHARD_FIX,
        )
    wanted, own = config.shard_spec, held.shard_spec
    if wanted is None or own is None:
        return
    require(
        own.grid.contains(wanted.grid),
        "The output tensor must reside on a subset of the cores of the buffer tensor",
        f"cores of {own.grid!r}",
        "Change the memory config of the output, or the buffer.",
    )
    need, room = prod(wanted.shape) * n, prod(own.shape)
    require(
        need <= room,
        "The shard size for the buffer must be large enough to hold the intermediate tensor. Require at least "
        f"{need} but has {room}",
        f"shards of {need} elements or more",
        "Allocate a larger buffer.",
    )


def check_line_over_mesh(request: Request) -> None:
    """Raise if all_reduce_async is asked to go over all chips of a mesh of two axes along a fabric of one dimension."""
    spec = request.tensor.spec
    if request.over_host or request["algorithm"] or is_2d(get_fabric_config()):
        return
    if is_summed_locally(spec, len(request.tensor.coords())):
        return
    if brings_semaphores(request):
        check_routes(request)
    raise MeshError(
        "1D fabric on a 2D mesh_device requires cluster_axis to be set",
        expected="cluster_axis 0 or 1, or a 2D fabric",
        fix="Pass cluster_axis, or configure FABRIC_2D before opening the mesh.",
    )


def _check_scattered(request: Request, n: int) -> None:
    """Raise what reduce_scatter and all_gather refuse: shards that do not fit a chip's part, topologies, semaphores."""
    shape, dim = list(request.tensor.shape), find_scatter_dim(request.tensor.spec, n)
    shape[dim] //= n
    if not (brings_semaphores(request) and request.tensor.spec.memory_config.is_sharded()):
        request.result_spec(shape)
    require_routers(request)
    if not brings_semaphores(request):
        return
    topology, counts = find_fabric_topology(request, request["axis"]), request["semaphores"]
    require(
        topology in (Topology.Ring, Topology.Linear), "Topology must be either Ring or Linear",
        f"one of these, not {topology}", "Pass topology=ttnn.Topology.Linear.",
    )  # fmt: skip
    for count, wanted, text in zip(
        counts, COUNTS,
        ("Barrier semaphores must be of size 2", "Expected 3 semaphores but got {count}",
         "Default implementation requires 2 semaphores"),
        strict=False,
    ):  # fmt: skip
        require(
            count == wanted, text.format(count=count), f"{wanted} semaphores",
            "Create them with ttnn.create_global_semaphore.",
        )  # fmt: skip


def all_reduce_stages(request: Request, n: int) -> Composed | None:
    """The programs and the memory of an all_reduce."""
    spec, final = request.tensor.spec, request.result_spec(request.tensor.shape)
    if n == 1 or not spec.shape:
        return None
    c, x = Composition(), PlannedTensor(spec)
    working = _leave_cores(c, x)
    if is_summed_locally(spec, n):
        made = _sum_locally(c, request, working, final, n)
    else:
        made = _scatter_and_gather(c, request, working, final, n)
    return c, [c.view(made, final)]


def _leave_cores(c: Composition, x: PlannedTensor) -> PlannedTensor:
    """The tensor without shards."""
    if not x.spec.memory_config.is_sharded():
        return x
    return c.run("sharded_to_interleaved", x.spec.with_memory_config(interleave(x.spec.memory_config)), x)


def _scatter_and_gather(c: Composition, request: Request, x: PlannedTensor, final: TensorSpec, n: int) -> PlannedTensor:
    dim = find_scatter_dim(x.spec, n)
    shape = list(x.spec.shape)
    shape[dim] //= n
    leaves = brings_semaphores(request) and request.tensor.spec.memory_config.is_sharded()
    config = x.spec.memory_config if leaves else final.memory_config
    part = TensorSpec(shape, final.dtype, x.spec.layout, memory_config=config)
    scattered = run_reduce_scatter(c, request, x, dim, part)
    c.free(x)
    made = run_all_gather(c, request, scattered, dim, final.with_memory_config(config))
    c.free(scattered)
    if config != final.memory_config:
        made = c.replace(made, c.run("to_memory_config", final, made))
    return made


def _sum_locally(c: Composition, request: Request, x: PlannedTensor, final: TensorSpec, n: int) -> PlannedTensor:
    """The tensors of all chips stacked along a new dim, and their sum over it."""
    gathered, tiles = _stack(c, request, x, final.memory_config, n)
    if final.dtype is DataType.FLOAT32:
        made, held = _sum_floats(c, tiles, final.memory_config)
    else:
        made, held = _sum_tiles(c, tiles, final)
    if gathered.spec.layout is Layout.ROW_MAJOR:
        rows = TensorSpec(final.shape, final.dtype, Layout.ROW_MAJOR, memory_config=final.memory_config)
        shape = final.shape if len(final.shape) > 3 else (1, *final.shape)  # TT-NN untilizes four dims
        total = c.view(made, tile_spec(shape, final.dtype, final.memory_config))
        made = c.run("untilize" if has_padding(total.spec) else "untilize_codegen", rows, total)
        c.free(total)
    for stage in (*held, tiles, gathered):
        c.free(stage)
    return made


def _stack(
    c: Composition, request: Request, x: PlannedTensor, asked: MemoryConfig | None, n: int
) -> tuple[PlannedTensor, PlannedTensor]:
    """The tensors of all chips along a new dim, as they were and in tiles."""
    stacked = c.view(x, x.spec.with_shape((1, *x.spec.shape)))
    gathered = join_broadcast(c, request, stacked, 0, n, None if x.allocation is not None else asked)
    c.free(x)
    spec = gathered.spec
    if spec.layout is not Layout.ROW_MAJOR:
        return gathered, gathered
    return gathered, c.run("tilize", tile_spec(spec.shape, spec.dtype, spec.memory_config), gathered)


def _sum_tiles(c: Composition, x: PlannedTensor, final: TensorSpec) -> tuple[PlannedTensor, list[PlannedTensor]]:
    """moreh_sum; block floats as bfloat16."""
    spec = tile_spec((1, *x.spec.shape[1:]), x.spec.dtype, final.memory_config)
    if x.spec.dtype is not DataType.BFLOAT8_B:
        return c.run("moreh_sum", spec, x, options=0), []
    wide = typecast(c, x, DataType.BFLOAT16)
    total = c.run("moreh_sum", tile_spec(spec.shape, DataType.BFLOAT16, final.memory_config), wide, options=0)
    narrow = typecast(c, total, DataType.BFLOAT8_B)
    c.free(total)
    return narrow, [wide]


def _sum_floats(c: Composition, x: PlannedTensor, config: MemoryConfig) -> tuple[PlannedTensor, list[PlannedTensor]]:
    """float32 is summed as a dim beside the height, which it changes places with for that."""
    shape, rank = x.spec.shape, len(x.spec.shape) + 1
    split = c.view(x, x.spec.with_shape((shape[0], 1, *shape[1:])))
    beside = transpose(c, split, 0, 1, x.spec.memory_config)
    fill_padding(c, beside, 0.0)
    swapped = transpose(c, beside, 1, rank - 2, config)
    reduced_shape = list(swapped.spec.shape)
    reduced_shape[-2] = 1
    reduced = c.run("reduce", tile_spec(reduced_shape, x.spec.dtype, config), swapped, options=("H", "sum"))
    c.free(swapped)
    back = transpose(c, reduced, 1, rank - 2, config)
    c.free(reduced)
    return back, [beside]
