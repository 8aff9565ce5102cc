"""Rules of matmul: checks, output specs and circular buffers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.input_rules import FLOATS
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards
from ttmesh.ops.configs.activations import as_unary
from ttmesh.ops.configs.matmul_program_configs import MatmulMultiCoreReuseMultiCast1DProgramConfig, ProgramConfig
from ttmesh.ops.matmul.dram_sharded_checks import check_dram_shards
from ttmesh.ops.matmul.matmul_blocks import MatmulCase
from ttmesh.ops.matmul.matmul_memory import check_blocks, circular_buffer_bytes, extents, output_shards
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
    front = b[: max(len(b) - len(a), 0)]
    wrong = "When in1 rank greater than in0 rank front dimensions need to be 1"
    require(
        len(a) == 1 or all(extent == 1 for extent in front),
        wrong,
        "leading ones",
        "Broadcast the first operand with ttnn.repeat.",
    )
    batch_a, batch_b = a[:-2], b[:-2][-max(len(a) - 2, 0) :] if len(a) > 2 else ()
    pairs = zip(reversed(batch_a), reversed(batch_b), strict=False)
    wrong = (
        "bmm (non-bcast matmul) expects input tensors of shapes BCMK*BCKN=BCMN or equivalent, got "
        f"{list(a)} and {list(b)}"
    )
    require(
        all(y in (1, x) or x == 1 for x, y in pairs),
        wrong,
        "equal batches, or a batch of 1",
        "Repeat one operand with ttnn.repeat.",
    )
    memory: MemoryConfig | None = call["memory_config"]
    if call["program_config"] is None and memory is not None:
        _check_line_of_cores(memory, prod(b[:-2]))
    if min(len(a), len(b)) > 1:
        e, given = extents(spec_a, spec_b, call["transpose_a"], call["transpose_b"]), call["optional_output_tensor"]
        check_blocks(call["program_config"], e)
        if memory is None and given is not None:
            memory = given.spec.memory_config
        check_dram_shards(call["program_config"], spec_a, spec_b, e.m, e.k, memory)


def _check_line_of_cores(memory: MemoryConfig, batches: int) -> None:
    if memory.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED or memory.shard_spec is None:
        return
    box = memory.shard_spec.grid.bounding_box()
    extents = box.end.x - box.start.x + 1, box.end.y - box.start.y + 1
    wrong = (
        "BLOCK_SHARDED output on a 1D grid (single row or column of cores) is not supported when both input tensors are "
        "batched. Either use HEIGHT_SHARDED/WIDTH_SHARDED explicitly, use a 2D core grid for BLOCK_SHARDED, or ensure the "
        "second input tensor (B) has batch size 1. See GitHub issue #32306 for details."
    )
    fits = batches == 1 or min(extents) > 1 or max(extents) == 1
    require(fits, wrong, "a grid of two dims", "Use HEIGHT_SHARDED or WIDTH_SHARDED.")


def matmul_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """TILE layout in A's dtype, in DRAM by default; shards follow from the program config."""
    given = call.outputs[0] if call.outputs else None
    shape = inferred[0][0]
    if given is not None:
        return [given_spec(given, shape)]
    a, b = call.specs[:2]
    dtype = call["dtype"] or a.dtype
    config: ProgramConfig | None = call["program_config"]
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
    return [TensorSpec(shape, dtype, layout, tile=tile, memory_config=memory)]


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
    a, b = call.specs[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        return 0
    given = call.outputs[0] if call.outputs else None
    memory = given.memory_config() if given is not None else call["memory_config"] or DRAM_MEMORY_CONFIG
    kernel, bias = call["compute_kernel_config"], call["bias"]
    bias_spec = bias.spec if isinstance(bias, Tensor) else None
    shards = memory.shard_spec if memory.is_l1() and given is None else None
    dtype = given.dtype if given is not None else call["dtype"] or a.dtype
    held = 0 if shards is None else prod(div_up(extent, 32) for extent in shards.shape) * tile_bytes(dtype, a.tile)
    case = MatmulCase(
        a,
        b,
        bool(call["transpose_a"]),
        bool(call["transpose_b"]),
        memory,
        dtype,
        kernel is not None and kernel.fp32_dest_acc_en,
        None if bias_spec is None else bias_spec.dtype,
        call["core_grid"],
        call.mesh.compute_with_storage_grid_size(),
        find_free_l1(call.mesh) - held,  # TT-NN chooses blocks once the result is allocated
    )
    banks = call.mesh.heap.map.banks[BufferType.DRAM].count
    return circular_buffer_bytes(call["program_config"], case, bias_spec, kernel, banks=banks)
