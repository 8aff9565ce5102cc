"""Rules of matmul: checks, output specs and circular buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.input_rules import FLOATS
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards
from ttmesh.ops.configs.activations import as_unary
from ttmesh.ops.configs.matmul_program_configs import MatmulMultiCoreReuseMultiCast1DProgramConfig, ProgramConfig
from ttmesh.ops.matmul.dram_sharded_checks import check_dram_shards
from ttmesh.ops.matmul.given_config_checks import check_given_config, is_checked
from ttmesh.ops.matmul.matmul_blocks import MatmulCase
from ttmesh.ops.matmul.matmul_choice import choose_config
from ttmesh.ops.matmul.matmul_choice_checks import check_grid, check_operands
from ttmesh.ops.matmul.matmul_memory import check_blocks, circular_buffer_bytes, extents, output_shards
from ttmesh.ops.matmul.tiny_tile_checks import check_tiny_tiles
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.program_buffers import find_free_l1
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def shape_of(spec: TensorSpec, transpose: bool) -> tuple[int, ...]:
    """The shape of a matrix or of its transpose."""
    shape = tuple(spec.shape)
    return (*shape[:-2], shape[-1], shape[-2]) if transpose and len(shape) > 1 else shape


def _activation_name(activation: Any) -> str:
    """An activation as TT-NN prints its operation: UnaryOpType::RELU."""
    return "none" if activation in (None, "") else f"UnaryOpType::{as_unary(activation).op_type.name}"


def check_matmul(call: Call) -> None:
    """Raise TT-NN's errors for operands that cannot be multiplied."""
    spec_a, spec_b = call.specs[:2]
    a, b = shape_of(spec_a, call["transpose_a"]), shape_of(spec_b, call["transpose_b"])
    wrong = f"ttnn.matmul: Both arguments to matmul need to be at least 1D, but got shapes {list(a)} and {list(b)}"
    require(len(a) > 0 and len(b) > 0, wrong, "vectors or matrices", "Reshape it to one dim or more.")
    sharded = any(spec.memory_config.is_sharded() for spec in (spec_a, spec_b))
    wrong = (
        f"Sharded matmul run with {_activation_name(call['activation'])} activation: this should be placed in the "
        "program config's fused_activation field"
    )
    require(
        not (sharded and call["activation"] is not None),
        wrong,
        "fused_activation= in the program config",
        "Put the activation into the program config.",
    )
    config = find_config(call)
    front = b[: max(len(b) - len(a), 0)]
    wrong = "When in1 rank greater than in0 rank front dimensions need to be 1"
    require(
        len(a) == 1 or all(extent == 1 for extent in front),
        wrong,
        "leading ones",
        "Broadcast the first operand with ttnn.repeat.",
    )
    if min(len(a), len(b)) > 1 and (not call.outputs or call.outputs[0] is None):
        _result_spec(call, _result_shape(a, b), config)  # its shards are checked as they are made
    for name, spec in (("a", spec_a), ("b", spec_b)):
        wrong = f"Inputs to matmul must be tilized: input tensor {name} has {spec.layout}"
        require(spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    for name, spec in (("A", spec_a), ("B", spec_b)):
        require_dtype(spec, FLOATS, f"Unsupported data format for input {name}: DataType::{spec.dtype.name}")
    depth = b[-2] if len(b) > 1 else b[0]
    wrong = (
        "The width of the first tensor must be equal to the height of the second tensor. Mismatch: "
        f"width={a[-1]} height={depth}"
    )
    require(a[-1] == depth, wrong, f"{a[-1]} rows in the second", "Reshape it to as many rows.")
    check_tiny_tiles(config, spec_a, spec_b)
    checked = is_checked(config) and _has_choice(spec_a, spec_b) and call["global_cb"] is None
    case = make_case(call) if checked else None
    if case is not None and call["program_config"] is not None:
        check_given_config(config, case, call["compute_kernel_config"])  # type: ignore[arg-type]
    if case is not None:
        check_grid(config, case)  # type: ignore[arg-type]
    _check_batches(call, a, b, config)
    if case is not None:
        check_operands(config, case)  # type: ignore[arg-type]
    if min(len(a), len(b)) > 1:
        e, given = extents(spec_a, spec_b, call["transpose_a"], call["transpose_b"]), call["optional_output_tensor"]
        check_blocks(call["program_config"], e)
        memory = call["memory_config"] or (None if given is None else given.spec.memory_config)
        check_dram_shards(call["program_config"], spec_a, spec_b, e.m, e.k, memory)


def find_config(call: Call) -> ProgramConfig | None:
    """The program config of the call, or the one that TT-NN chooses; None for vectors and unusual tiles."""
    if call["program_config"] is not None:
        config: ProgramConfig = call["program_config"]
        return config
    if not _has_choice(*call.specs[:2]):
        return None
    case = replace(make_case(call), l1_bytes=find_free_l1(call.mesh))  # the result is not allocated yet
    return choose_config(case, activation=call["activation"] not in (None, ""))


def choose_program(case: MatmulCase) -> ProgramConfig | None:
    """The program config that TT-NN chooses for a call that names none; None for vectors and unusual tiles."""
    return choose_config(case) if _has_choice(case.a, case.b) else None


def _has_choice(a: TensorSpec, b: TensorSpec) -> bool:
    memories = (a.memory_config, b.memory_config)
    return not (
        min(len(a.shape), len(b.shape)) < 2
        or 0 in (*a.shape, *b.shape)
        or {a.tile.tile_shape, b.tile.tile_shape} != {(32, 32)}
        or any(memory.nd_shard_spec is not None and memory.shard_spec is None for memory in memories)
        or any(memory.is_sharded() and not memory.is_l1() for memory in memories)
    )


def _result_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    batch = [*b[: max(len(b) - len(a), 0)], *a[:-2]]
    if len(a) == len(b):
        batch = [y if x == 1 else x for x, y in zip(a[:-2], b[:-2], strict=True)]
    return (*batch, a[-2], b[-1])


def _check_batches(call: Call, a: tuple[int, ...], b: tuple[int, ...], config: ProgramConfig | None) -> None:
    """Refuse batches that do not match: B has one matrix, or as many as A."""
    if prod(b[:-2]) == 1 or len(a) == 1:
        return
    ranks = f"a_shape rank: {len(a)} vs b_shape rank: {len(b)}"
    wrong = f"Batched (non-bcast) matmul requires inputs of the same rank, got {ranks}"
    require(len(a) == len(b), wrong, "equal ranks", "Reshape one operand.")
    sharded = any(spec.memory_config.is_sharded() for spec in call.specs[:2])
    reuses = config is None or (
        isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig)
        and not (config.fuse_batch or config.fused_activation is not None or config.mcast_in0)
    )
    broadcasts = reuses and prod(a[:-2]) == 1 and not sharded
    for dim, (x, y) in enumerate(zip(a[:-2], b[:-2], strict=True)):
        wrong = (
            "bmm (non-bcast matmul) expects input tensors of shapes BCMK*BCKN=BCMN or batch dimension "
            f"{dim} mismatch: a={x} vs b={y}"
        )
        require(x == y or (x == 1 and broadcasts), wrong, "equal batches, or a batch of 1", "Use ttnn.repeat.")


def matmul_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """TILE layout in A's dtype, in DRAM by default; shards follow from the program config."""
    given = call.outputs[0] if call.outputs else None
    shape = inferred[0][0]
    if given is not None:
        return [given_spec(given, shape)]
    return [_result_spec(call, shape, find_config(call))]


def _result_spec(call: Call, shape: Sequence[int], config: ProgramConfig | None) -> TensorSpec:
    a, b = call.specs[:2]
    dtype = call["dtype"] or a.dtype
    memory: MemoryConfig = call["memory_config"] or DRAM_MEMORY_CONFIG
    untilize = isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig) and config.untilize_out
    layout = Layout.ROW_MAJOR if untilize else Layout.TILE
    tile = None if untilize else output_tile(call, a, b)
    if memory.is_sharded():
        if min(len(a.shape), len(b.shape)) > 1:
            e = extents(a, b, call["transpose_a"], call["transpose_b"])
            grid = call.mesh.compute_with_storage_grid_size()
            memory = output_shards(config, memory, e, a.memory_config, grid)
        if memory.shard_spec is None and memory.nd_shard_spec is None:
            memory = shards_over_grid(memory, TensorSpec(shape, dtype, layout, tile=tile), call)
    return TensorSpec(shape, dtype, layout, tile=tile, memory_config=memory)


def shards_over_grid(memory: MemoryConfig, spec: TensorSpec, call: Call) -> MemoryConfig:
    """Shards for a sharded result without a shard spec: over A's or B's cores, else over as few as hold it evenly."""
    for operand in call.specs[:2]:
        if operand.memory_config.shard_spec is not None:
            return fit_shards(memory, spec, operand.memory_config)
    grid = call.mesh.compute_with_storage_grid_size()
    rows, columns = (extent // 32 for extent in spec.physical_shape)
    if memory.memory_layout is TensorMemoryLayout.BLOCK_SHARDED:
        grid_rows, grid_columns = div_up(rows, div_up(rows, grid.y)), div_up(columns, div_up(columns, grid.x))
        cores = CoreRangeSet(CoreRange(CoreCoord(0, 0), CoreCoord(grid_columns - 1, grid_rows - 1)))
    else:
        tiles = rows if memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED else columns
        count = div_up(tiles, div_up(tiles, grid.x * grid.y))
        cores = num_cores_to_corerangeset(count, grid, True)
    source = MemoryConfig(memory.memory_layout, memory.buffer_type, ShardSpec(cores, (32, 32)))
    return fit_shards(memory, spec, source)


def output_tile(call: Call, a: TensorSpec, b: TensorSpec) -> Tile | None:
    """The requested tile, else one of A's height and B's width; None for the default of 32 × 32."""
    if call["output_tile"] is not None:
        tile: Tile = call["output_tile"]
        return tile
    (height_a, width_a), (height_b, width_b) = a.tile.tile_shape, b.tile.tile_shape
    sides = (width_a if call["transpose_a"] else height_a, height_b if call["transpose_b"] else width_b)
    return None if sides == (32, 32) else Tile(sides)


def given_spec(given: Tensor, shape: Sequence[int]) -> TensorSpec:
    """The spec of a result that is written into the caller's tensor."""
    if given.shape.volume() != prod(shape):
        raise ShapeError(
            f"Invalid optional output tensor: Shape of Optional Output Tensor {given.shape!r} doesn't match Output Tensor "
            f"{list(shape)}",
            expected="as many elements",
            fix="Allocate the output with the result's shape.",
        )
    # The result is written in its own shape; the caller's tensor is a view of it.
    return given.spec if tuple(given.shape) == tuple(shape) else given.spec.with_shape(shape)


def circular_buffers(call: Call) -> int:
    """Bytes of L1 per core that the matmul's program takes."""
    if min(len(spec.shape) for spec in call.specs[:2]) < 2:
        return 0
    kernel, bias = call["compute_kernel_config"], call["bias"]
    bias_spec = bias.spec if isinstance(bias, Tensor) else None
    case = replace(make_case(call), fp32_dest=kernel is not None and kernel.fp32_dest_acc_en)
    banks = call.mesh.heap.map.banks[BufferType.DRAM].count
    return circular_buffer_bytes(call["program_config"], case, bias_spec, kernel, banks=banks)


def make_case(call: Call) -> MatmulCase:
    """What TT-NN's choice of a program depends on."""
    a, b = call.specs[:2]
    given = call.outputs[0] if call.outputs else None
    memory = given.memory_config() if given is not None else call["memory_config"] or DRAM_MEMORY_CONFIG
    kernel, bias = call["compute_kernel_config"], call["bias"]
    shards = memory.shard_spec if memory.is_l1() and given is None else None
    dtype = given.dtype if given is not None else call["dtype"] or a.dtype
    held = 0 if shards is None else prod(div_up(extent, 32) for extent in shards.shape) * tile_bytes(dtype, a.tile)
    return MatmulCase(
        a,
        b,
        bool(call["transpose_a"]),
        bool(call["transpose_b"]),
        memory,
        dtype,
        dtype is DataType.FLOAT32 if kernel is None else kernel.fp32_dest_acc_en,
        bias.spec.dtype if isinstance(bias, Tensor) else None,
        call["core_grid"],
        call.mesh.compute_with_storage_grid_size(),
        find_free_l1(call.mesh) - held,  # TT-NN chooses blocks once the result is allocated
    )
