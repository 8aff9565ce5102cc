"""Products: matmul, linear, addmm and the batched form. Accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError
from ttmesh.chip.formats.tiles import Tile
from ttmesh.ops.activations import Activation, apply, function_of
from ttmesh.ops.checks import require
from ttmesh.ops.entry import composite, op
from ttmesh.ops.gemm import product
from ttmesh.ops.goldens import activated
from ttmesh.ops.lanes import ranked
from ttmesh.ops.matmul_configs import MatmulMultiCoreReuseMultiCast1DProgramConfig, ProgramConfig
from ttmesh.ops.product_memory import check_blocks, circular_buffer_bytes, extents, output_shards
from ttmesh.ops.specs import Inferred, with_shards
from ttmesh.tensor import operators
from ttmesh.tensor.launch import Call, Case
from ttmesh.tensor.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.sharding import div_up
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def turned(values: torch.Tensor, transpose: bool) -> torch.Tensor:
    """The matrix or its transpose."""
    return values.transpose(-1, -2) if transpose else values


def widened(values: torch.Tensor, dtype: DataType | None) -> torch.Tensor:
    """In float32 when the result is: a bfloat16 product would round it before."""
    return values.float() if dtype is DataType.FLOAT32 else values


def activations_of(activation: Activation | None, program_config: ProgramConfig | None) -> list[Activation]:
    """What is applied to the result: the program config's own function wins."""
    fused = getattr(program_config, "fused_activation", None)
    chosen = activation if fused is None else fused
    return [] if chosen is None else [chosen]


# -- checks and specs ------------------------------------------------------------------------------------------------


def _shape_of(spec: TensorSpec, transpose: bool) -> tuple[int, ...]:
    shape = tuple(spec.shape)
    return (*shape[:-2], shape[-1], shape[-2]) if transpose and len(shape) > 1 else shape


def check_product(call: Call) -> None:
    """What TT-NN refuses of two operands."""
    spec_a, spec_b = call.specs[:2]
    a, b = _shape_of(spec_a, call["transpose_a"]), _shape_of(spec_b, call["transpose_b"])
    wrong = f"ttnn.matmul: Both arguments to matmul need to be at least 1D, but got shapes {list(a)} and {list(b)}"
    require(len(a) > 0 and len(b) > 0, wrong, "vectors or matrices", "Reshape it to one dim or more.")
    sharded = any(spec.memory_config.is_sharded() for spec in (spec_a, spec_b))
    wrong = (
        f"Sharded matmul run with {call['activation']} activation: this should be placed in the program config's "
        "fused_activation field"
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
    if min(len(a), len(b)) > 1:
        check_blocks(call["program_config"], extents(spec_a, spec_b, call["transpose_a"], call["transpose_b"]))


def product_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """TILE in A's format, in DRAM unless memory_config= says otherwise; shards follow from the program config."""
    given = call.outputs[0] if call.outputs else None
    shape = inferred[0][0]
    if given is not None:
        return [_given_spec(given, shape)]
    a, b = call.specs[:2]
    dtype = call["dtype"] or a.dtype
    config: ProgramConfig | None = call["program_config"]
    memory: MemoryConfig = call["memory_config"] or DRAM_MEMORY_CONFIG
    rows = isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig) and config.untilize_out
    layout = Layout.ROW_MAJOR if rows else Layout.TILE
    tile = None if rows else _output_tile(call)
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
            return with_shards(memory, spec, operand.memory_config)
    grid = call.mesh.compute_with_storage_grid_size()
    rows, columns = (extent // 32 for extent in spec.physical_shape)
    if memory.memory_layout is TensorMemoryLayout.BLOCK_SHARDED:
        high, wide = div_up(rows, div_up(rows, grid.y)), div_up(columns, div_up(columns, grid.x))
        cores = CoreRangeSet(CoreRange(CoreCoord(0, 0), CoreCoord(wide - 1, high - 1)))
    else:
        tiles = rows if memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED else columns
        count = div_up(tiles, div_up(tiles, grid.x * grid.y))
        cores = num_cores_to_corerangeset(count, grid, True)
    source = MemoryConfig(memory.memory_layout, memory.buffer_type, ShardSpec(cores, (32, 32)))
    return with_shards(memory, spec, source)


def _output_tile(call: Call) -> Tile | None:
    if call["output_tile"] is not None:
        tile: Tile = call["output_tile"]
        return tile
    (height_a, width_a), (height_b, width_b) = (spec.tile.tile_shape for spec in call.specs[:2])
    sides = (width_a if call["transpose_a"] else height_a, height_b if call["transpose_b"] else width_b)
    return None if sides == (32, 32) else Tile(sides)


def _given_spec(given: Tensor, shape: Sequence[int]) -> TensorSpec:
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
    """L1 that the product's program takes on every core."""
    a, b = call.specs[:2]
    if min(len(a.shape), len(b.shape)) < 2:
        return 0
    given = call.outputs[0] if call.outputs else None
    memory = given.memory_config() if given is not None else call["memory_config"] or DRAM_MEMORY_CONFIG
    return circular_buffer_bytes(
        call["program_config"],
        a,
        b,
        call["bias"].spec if isinstance(call["bias"], Tensor) else None,
        call["compute_kernel_config"],
        out_dtype=given.dtype if given is not None else call["dtype"] or a.dtype,
        out_sharded=memory.is_sharded(),
        transpose_a=bool(call["transpose_a"]),
        transpose_b=bool(call["transpose_b"]),
    )


# -- matmul and linear -------------------------------------------------------------------------------------------------


def _golden_matmul(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Activation | None = None,
    program_config: ProgramConfig | None = None,
) -> torch.Tensor:
    return _golden_linear(input_tensor_a, input_tensor_b, None, transpose_a, transpose_b, activation, program_config)


def _product_once(case: Case) -> Callable[..., torch.Tensor] | None:
    """Matrices of one float format; a bias of as many values as a row, and an activation worked out."""
    a, b = case.specs[:2]
    ranks = len(a.shape) >= len(b.shape) >= 2 and case.tensors[:2] == ("input_tensor_a", "input_tensor_b")
    if not ranks or not case.one_format(DataType.BFLOAT16, DataType.FLOAT32):
        return None
    (high, wide), axes = b.shape[-2:], case.lane_axes
    turn_a, turn_b = case["transpose_a"], case["transpose_b"]
    width = high if turn_b else wide
    bias_ = case.specs[2].shape if len(case.specs) > 2 else None
    if bias_ is not None and (bias_.volume() != width or len(bias_) > len(a.shape)):  # more dims give the result more
        return None
    half, shared = a.dtype is DataType.BFLOAT16, high * wide  # values in B where all devices and batches share it
    chosen = activations_of(case["activation"], case["program_config"])
    act = function_of(chosen[0]) if chosen else None

    def compute(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if half and b.numel() == shared:
            result = torch.matmul(turned(a, turn_a), turned(b.view(high, wide), turn_b))
        else:
            result = product(turned(a, turn_a), turned(b, turn_b), axes)
        if bias is not None:
            result = result + (bias.reshape(-1) if bias.numel() == width else ranked([result, bias], axes)[1])
        return result if act is None else act(result)

    return compute


@op(
    "ttnn.matmul",
    golden=_golden_matmul,
    out=product_spec,
    check=check_product,
    scratch=circular_buffers,
    specialise=_product_once,
)
def matmul(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    dtype: DataType | None,
    activation: Activation | None,
    program_config: ProgramConfig | None,
    lane_axes: int,
) -> torch.Tensor:
    """The matrix product."""
    a, b = turned(input_tensor_a, transpose_a), turned(input_tensor_b, transpose_b)
    result = product(widened(a, dtype), widened(b, dtype), lane_axes)
    return apply(result, activations_of(activation, program_config))


def _golden_linear(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: Activation | None = None,
    program_config: ProgramConfig | None = None,
) -> torch.Tensor:
    a, b = (x.mT if turn else x for x, turn in ((input_tensor_a, transpose_a), (input_tensor_b, transpose_b)))
    result = torch.matmul(a, b) if bias is None else torch.matmul(a, b) + bias
    last = getattr(program_config, "fused_activation", None) or activation
    return result if last is None else activated(result, [last], function_of)


def _check_linear(call: Call) -> None:
    check_product(call)
    if isinstance(call["bias"], Tensor) and len(call["bias"].shape) > 1:
        bias, height = call["bias"].spec, _shape_of(call.specs[0], call["transpose_a"])[-2:][0]
        tall = div_up(height, 32) * 32
        wrong = (
            f"padded second last dimension of bias, {bias.padded_shape[-2]}, not equal to expected bias height, {tall}"
        )
        require(height == 1 or bias.shape[-2] in (1, height), wrong, f"1 or {height} rows", "Give the bias one row.")


@op(
    "ttnn.linear",
    golden=_golden_linear,
    out=product_spec,
    check=_check_linear,
    scratch=circular_buffers,
    specialise=_product_once,
)
def linear(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    bias: torch.Tensor | None,
    transpose_a: bool,
    transpose_b: bool,
    dtype: DataType | None,
    activation: Activation | None,
    program_config: ProgramConfig | None,
    lane_axes: int,
) -> torch.Tensor:
    """The matrix product plus a bias, then an activation."""
    a, b = turned(input_tensor_a, transpose_a), turned(input_tensor_b, transpose_b)
    result = product(widened(a, dtype), widened(b, dtype), lane_axes)
    if bias is not None:
        left, right = ranked([result, bias], lane_axes)
        result = left + right
    return apply(result, activations_of(activation, program_config))


@composite("ttnn.matmul_batched_weights")
def matmul_batched_weights(
    input_tensor_a: Tensor,
    input_tensors_b: Sequence[Tensor],
    transpose_a: bool,
    transpose_b: bool,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
    program_config: ProgramConfig | None,
    activation: Activation | None,
    compute_kernel_config: Any,
    output_tile: Tile | None,
) -> list[Tensor]:
    """One tensor times each of several weights."""
    require(
        not transpose_a,
        "cannot transpose A in batched matmul",
        "transpose_a=False",
        "Transpose it with ttnn.transpose first.",
    )
    require(
        not transpose_b,
        "cannot transpose B in batched matmul",
        "transpose_b=False",
        "Transpose it with ttnn.transpose first.",
    )
    return [
        matmul(
            input_tensor_a,
            weight,
            memory_config=memory_config,
            dtype=dtype,
            program_config=program_config,
            activation=activation,
            compute_kernel_config=compute_kernel_config,
            output_tile=output_tile,
        )
        for weight in input_tensors_b
    ]


# -- addmm -----------------------------------------------------------------------------------------------------


def _check_addmm(call: Call) -> None:
    added, a, b = call.specs
    require(
        call["alpha"] != 0, "alpha parameter cannot be 0", "another alpha", "Use ttnn.multiply with beta alone instead."
    )
    require(
        len(a.shape) == len(b.shape) == 2,
        "mat1_tensor and mat2_tensor must be 2D",
        "two matrices",
        "Reshape both to two dims.",
    )
    wrong = (
        "The width of the first tensor must be equal to the height of the second tensor. Mismatch: "
        f"width={a.shape[-1]} height={b.shape[-2]}"
    )
    require(a.shape[-1] == b.shape[-2], wrong, "equal inner dims", "Transpose an operand, or check its shape.")
    wrong = "input_tensor must have shape matching one of result of mat1_tensor @ mat2_tensor"
    fits = tuple(added.shape) == (a.shape[-2], b.shape[-1])
    require(fits or call["beta"] == 0, wrong, f"[{a.shape[-2]}, {b.shape[-1]}]", "Reshape it to that shape.")
    for name, spec in (("input_tensor", added), ("mat1_tensor", a), ("mat2_tensor", b)):
        wrong = f"only ttnn.bfloat16, ttnn.float32 and ttnn.bfloat8_b types are supported for {name}"
        require(
            spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B),
            wrong,
            "floats",
            "Convert it with ttnn.typecast.",
        )


def _addmm_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        return [_given_spec(given, inferred[0][0])]
    memory = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(inferred[0][0], call["dtype"] or call.specs[1].dtype, Layout.TILE, memory_config=memory)]


def _golden_addmm(
    input_tensor: torch.Tensor,
    mat1_tensor: torch.Tensor,
    mat2_tensor: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> torch.Tensor:
    return torch.addmm(input_tensor, mat1_tensor, mat2_tensor, alpha=alpha, beta=beta)


@op("ttnn.addmm", golden=_golden_addmm, out=_addmm_spec, check=_check_addmm)
def addmm(
    input_tensor: torch.Tensor,
    mat1_tensor: torch.Tensor,
    mat2_tensor: torch.Tensor,
    alpha: float,
    beta: float,
    lane_axes: int,
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    result = product(mat1_tensor, mat2_tensor, lane_axes)
    if alpha != 1.0:
        result = result.float() * alpha
    if beta == 0.0:
        return result
    return result.float() + (input_tensor if beta == 1.0 else input_tensor.float() * beta)


operators.fill(matmul=matmul)
