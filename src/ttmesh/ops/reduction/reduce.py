"""Reductions over dims: sum, mean, max, min, prod, var, std. Accumulated in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import frexp
from math import prod as math_prod

import torch

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import normalize_dim, normalize_dims, require_dtype
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards, make_output_spec, refit_shards
from ttmesh.ops.goldens import reduction as goldens
from ttmesh.ops.reduction.reduce_programs import mean_dims, sum_dims
from ttmesh.ops.reduction.reduced_shards import check_shards, reshape_permuted_shards, sums_batches
from ttmesh.ops.stages.movement_stages import is_reshape_view
from ttmesh.ops.stages.reduction_stages import product_stages, reduce_stages, spread_stages
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.operation import Call, Case, Specialise
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec
from ttmesh.tensor.spec.shard_config import round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Dims = int | Sequence[int] | None


def reduced_count(values: torch.Tensor, dims: Sequence[int]) -> int:
    """How many elements are reduced to one."""
    return math_prod(values.shape[dim] for dim in dims)


def total(values: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    """The sum over dims; bfloat16 is accumulated in float32 by torch and rounded once."""
    return values.sum(dims, keepdim) if dims else values


def multiply_by_scalar(values: torch.Tensor, scalar: float) -> torch.Tensor:
    """Multiply a result by the scalar of the call."""
    return values if scalar == 1.0 else values.float() * scalar


def _sum(input_tensor: torch.Tensor, dim: Dims, keepdim: bool, scalar: float, lane_axes: int) -> torch.Tensor:
    """Sum over one dim, several or all."""
    dims = normalize_dims(dim, input_tensor.dim() - lane_axes)
    if dims and input_tensor.numel() and fpu.is_emulated(input_tensor):
        return sum_dims(input_tensor, dims, input_tensor.dim() - lane_axes, keepdim=keepdim, scaler=scalar)
    if scalar != 1.0 and input_tensor.is_floating_point():
        return input_tensor.sum(dims, keepdim, dtype=torch.float32) * scalar if dims else input_tensor.float() * scalar
    return multiply_by_scalar(total(input_tensor, dims, keepdim), scalar)


def _mean(input_tensor: torch.Tensor, dim: Dims, keepdim: bool, scalar: float, lane_axes: int) -> torch.Tensor:
    """Mean over one dim, several or all."""
    dims = normalize_dims(dim, input_tensor.dim() - lane_axes)
    if not dims:
        return multiply_by_scalar(input_tensor, scalar)
    factor = scalar / (reduced_count(input_tensor, dims) or torch.nan)  # the mean of nothing is NaN
    if factor != factor:
        return total(input_tensor, dims, keepdim).float() * torch.nan
    if input_tensor.numel() and fpu.is_emulated(input_tensor):
        return mean_dims(input_tensor, dims, keepdim=keepdim, scaler=scalar)
    return fpu.total(input_tensor, dims, keepdim=keepdim, scaler=factor)


def _specialise(reduce: Callable[[torch.Tensor, int | tuple[int, ...], bool], torch.Tensor]) -> Specialise:
    """A specialisation that normalizes the dims once; for calls without a scalar."""

    def specialise(case: Case) -> Lane | None:
        dims, keepdim = normalize_dims(case["dim"], len(case.specs[0].shape)), case["keepdim"]
        if case["scalar"] != 1.0 or not dims:
            return None
        where = dims[0] if len(dims) == 1 else dims  # torch reads a number faster than a tuple
        return lambda values: reduce(values, where, keepdim)

    return specialise


def _specialise_mean(case: Case) -> Lane | None:
    dims, keepdim = normalize_dims(case["dim"], len(case.specs[0].shape)), case["keepdim"]
    count = math_prod(case.specs[0].shape[dim] for dim in dims)
    if not dims or not count:
        return None
    factor = case["scalar"] / count
    if frexp(factor)[0] == 0.5 and case.specs[0].dtype in (DataType.BFLOAT16, DataType.FLOAT32):
        return lambda values: values.sum(dims, keepdim).mul_(factor)  # a power of two: nothing is left to round
    return lambda values: values.sum(dims, keepdim, dtype=torch.float32).mul_(factor)


def _make_extreme(
    pick: Callable[..., torch.Tensor], opposite: Callable[..., torch.Tensor]
) -> Callable[..., torch.Tensor]:
    """A lane function for the max or min of scalar · x: for a negative scalar the opposite extreme of x."""

    def lane(input_tensor: torch.Tensor, dim: Dims, keepdim: bool, scalar: float, lane_axes: int) -> torch.Tensor:
        """The largest or smallest value along dims, times a scalar."""
        dims = normalize_dims(dim, input_tensor.dim() - lane_axes)
        extreme = (pick if scalar >= 0 else opposite)(input_tensor, dims, keepdim) if dims else input_tensor
        return multiply_by_scalar(extreme, scalar)

    return lane


def _compute_variance(
    input_tensor: torch.Tensor, dim: Dims, keepdim: bool, correction: bool, lane_axes: int
) -> torch.Tensor:
    dims = normalize_dims(dim, input_tensor.dim() - lane_axes)
    values = input_tensor.float()
    if reduced_count(values, dims) <= int(correction):  # torch warns and gives the same NaN
        return total(values, dims, keepdim) * torch.nan
    return torch.var(values, dims, correction=int(correction), keepdim=keepdim) if dims else torch.zeros_like(values)


def _variance(
    input_tensor: torch.Tensor, dim: Dims, keepdim: bool, scalar: float, correction: bool, lane_axes: int
) -> torch.Tensor:
    """Variance of the scaled values, with Bessel's correction by default."""
    variance = fpu.keep(_compute_variance(input_tensor, dim, keepdim, correction, lane_axes))
    return multiply_by_scalar(variance, scalar * scalar)


def _standard_deviation(
    input_tensor: torch.Tensor, dim: Dims, keepdim: bool, scalar: float, correction: bool, lane_axes: int
) -> torch.Tensor:
    """Standard deviation of the scaled values, with Bessel's correction by default."""
    variance = fpu.keep(_compute_variance(input_tensor, dim, keepdim, correction, lane_axes))
    if not variance.requires_grad:
        return multiply_by_scalar(variance.sqrt(), abs(scalar))
    flat = variance == 0  # the root has no gradient there; torch's std gives 0
    return multiply_by_scalar(variance.masked_fill(flat, 1.0).sqrt().masked_fill(flat, 0.0), abs(scalar))


def _product(
    input_tensor: torch.Tensor, lane_axes: int, dim: int | None = None, keepdim: bool = False, dims: Dims = ()
) -> torch.Tensor:
    """Product over one dim or all; with `dims` the reduced dims stay with length 1."""
    rank = input_tensor.dim() - lane_axes
    values = input_tensor.float()
    if dims:
        for position in normalize_dims(dims, rank):
            values = values.prod(position, keepdim=True)
        return values
    if dim is not None:
        return values.prod(normalize_dim(dim, rank), keepdim) if rank else values
    result = values.flatten(lane_axes).prod(-1) if rank else values
    return result.reshape(*result.shape, *[1] * rank) if keepdim else result


# -- output specs ----------------------------------------------------------------------------------------------------


def _stays_row_major(call: Call) -> bool:
    """Whether the result stays ROW_MAJOR: TT-NN reduces interleaved rows over one dim so.

    Sums of bfloat16 over a batch and sums over several dims become tiles; means over several dims do not.
    """
    spec, rank = call.specs[0], len(call.specs[0].shape)
    if spec.layout is Layout.TILE or not rank or not spec.memory_config.interleaved:
        return False
    if spec.dtype not in (DataType.BFLOAT16, DataType.FLOAT32):
        return False
    dims, averages = normalize_dims(call["dim"], rank), call.name == "ttnn.mean"
    if len(dims) != 1:
        return averages
    return dims[0] >= -2 or averages or spec.dtype is DataType.FLOAT32


def _sum_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    layout = call["output_layout"]
    if layout is None:
        layout = Layout.ROW_MAJOR if _stays_row_major(call) else Layout.TILE
    return [_result_spec(call, inferred[0][0], layout)]


def _tiled_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [reshape_permuted_shards(call, _result_spec(call, inferred[0][0], Layout.TILE))]


def _result_spec(call: Call, shape: Sequence[int], layout: Layout) -> TensorSpec:
    """What comes out: blocks, and shards on cores that are no rectangle, go where a reshape puts them if it copies."""
    check_shards(call)
    result = _reduced_spec(call, shape, layout)
    config, spec = result.memory_config, call.specs[0]
    if config.shard_spec is None or call["keepdim"] or config.created_with_nd_shard_spec:
        return result
    cores = config.shard_spec.grid
    is_rectangle = cores.bounding_box().size() == cores.num_cores()
    if config.memory_layout is not TensorMemoryLayout.BLOCK_SHARDED and is_rectangle:
        return result
    dims = normalize_dims(call["dim"], len(spec.shape))
    kept = [1 if i - len(spec.shape) in dims else extent for i, extent in enumerate(spec.shape)]
    if is_reshape_view(_reduced_spec(call, kept, layout), shape, config):
        return result
    return result.with_memory_config(refit_shards(config, TensorSpec(shape, spec.dtype, layout), config))


def _reduced_spec(call: Call, shape: Sequence[int], layout: Layout) -> TensorSpec:
    """Sharded results keep the cores, with shards that fit; interleaved if no shards fit."""
    spec = call.specs[0]
    config: MemoryConfig = call["memory_config"] or spec.memory_config
    if config.created_with_nd_shard_spec and config.nd_shard_spec is not None:
        shards = _reduced_shards(call, config.nd_shard_spec, layout)
        return TensorSpec(
            shape, spec.dtype, layout, memory_config=MemoryConfig(buffer_type=config.buffer_type, nd_shard_spec=shards)
        )
    if config.interleaved or (config.shard_spec is None and spec.memory_config.shard_spec is None):
        return make_output_spec(call, shape, layout=layout)
    plain = TensorSpec(shape, spec.dtype, layout)
    source = config if config.shard_spec is not None else spec.memory_config
    if _sums_batches(call) and config.shard_spec is not None and len(shape):
        return plain.with_memory_config(config)  # summed where it is, in the shards that it has
    try:
        return plain.with_memory_config(_turn_single_shard(fit_shards(config, plain, source), plain, call))
    except ShapeError:
        return plain.with_memory_config(MemoryConfig(buffer_type=config.buffer_type))


def _sums_batches(call: Call) -> bool:
    """Whether a sum is over batches alone: TT-NN has a program for that, which leaves height and width as they are."""
    spec, rank = call.specs[0], len(call.specs[0].shape)
    if not sums_batches(call, spec.dtype) or spec.layout is not Layout.TILE:
        return False
    return all(dim < -2 for dim in normalize_dims(call["dim"], rank))


def _turn_single_shard(config: MemoryConfig, spec: TensorSpec, call: Call) -> MemoryConfig:
    """Height shards of which the reshaped result fills one are width shards for TT-NN."""
    shards = config.shard_spec
    dims = normalize_dims(call["dim"], len(call.specs[0].shape))
    copied = any(dim >= -2 for dim in dims)
    if not copied or shards is None or config.memory_layout is not TensorMemoryLayout.HEIGHT_SHARDED:
        return config
    if shards.shape[0] < spec.physical_shape[0]:
        return config
    return MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, config.buffer_type, shards)


def _reduced_shards(call: Call, shards: NdShardSpec, layout: Layout) -> NdShardSpec:
    """N-d shards shrink along the reduced dims like the tensor, but not below a tile."""
    dims, extents = normalize_dims(call["dim"], len(call.specs[0].shape)), list(shards.shard_shape)
    for dim in sorted(dims):
        if -dim <= len(extents):
            extents[dim] = 1
    if not call["keepdim"]:
        extents = [extent for i, extent in enumerate(extents, -len(extents)) if i not in dims] or [1]
        if any(dim >= -2 for dim in dims):  # asked of TT-NN for dim=-2; other dims may differ
            extents[:-2] = [1] * len(extents[:-2])
    if layout is Layout.TILE:
        extents[-2:] = [round_up(extent, 32) for extent in extents[-2:]]
    return NdShardSpec(extents, shards.grid, shards.orientation, shards.shard_distribution_strategy)


def _product_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The input's memory and shards, which must fit; the product over all dims gets other shards."""
    shape, memory = inferred[0][0], call.specs[0].memory_config
    input_memory = None if call["dim"] is None else memory
    if input_memory is not None and input_memory.shard_spec is not None:
        _check_front_shards(call)
    output_spec = make_output_spec(call, shape, layout=Layout.TILE, memory_config=input_memory)
    if call["dim"] is not None and output_spec.memory_config.shard_spec is not None:
        _check_product_cores(call, output_spec)
    return [output_spec]


def _check_front_shards(call: Call) -> None:
    """Check the intermediate of a product over height or width: that dim moved to the front, with the input's shards."""
    spec = call.specs[0]
    shape = (*(1,) * (4 - len(spec.shape)), *spec.shape)
    position = normalize_dim(call["dim"], len(spec.shape)) + 4
    if position > 1 and len(shape) == 4:
        front = (shape[position], *(extent for i, extent in enumerate(shape) if i != position))
        TensorSpec(front, spec.dtype, Layout.TILE, memory_config=spec.memory_config)  # raises if the shards do not fit


def _check_product_cores(call: Call, output_spec: TensorSpec) -> None:
    """Check the cores of a product over batch or channels: result tiles are assigned to cores column by column."""
    shards = output_spec.memory_config.shard_spec
    if normalize_dim(call["dim"], len(call.specs[0].shape)) >= -2 or shards is None:
        return
    tiles = math_prod(output_spec.padded_shape) // 1024
    grid_size = call.mesh.compute_with_storage_grid_size()
    cores = num_cores_to_corerangeset(min(tiles, grid_size.x * grid_size.y), grid_size, row_wise=False)
    require(
        cores.contains(shards.grid),
        f"Prod_nc output shard grid {_print_cores(shards.grid)} must be contained in program core grid "
        f"{_print_cores(cores)}",
        "shards on the cores that compute them",
        "Reshard it with ttnn.to_memory_config.",
    )


def _print_cores(cores: CoreRangeSet) -> str:
    """Cores as TT-NN's messages print them."""
    return "{" + ", ".join(f"[{one.start} - {one.end}]" for one in cores.ranges()) + "}"


def _check_sum(call: Call) -> None:
    dtype = call.specs[0].dtype
    require(
        not (call["output_layout"] is Layout.ROW_MAJOR and dtype in BLOCK_FLOATS),
        f"output_layout=ROW_MAJOR is not supported for a {dtype} result: block-float formats only exist in TILE layout, so "
        "honoring the request would silently widen the dtype to BFLOAT16. Reduce to TILE and typecast explicitly if a "
        "row-major result is needed.",
        "output_layout=ttnn.TILE_LAYOUT",
        "Convert the result with ttnn.typecast, then ttnn.to_layout.",
    )


def _check_mean(call: Call) -> None:
    dtype = call.specs[0].dtype
    require(
        dtype not in INTEGERS, f"ttnn.mean does not support integer inputs - got {dtype}.", "floats", "Typecast first."
    )
    _check_sum(call)


def _check_spread(call: Call) -> None:
    """Dims come first; where nothing is reduced TT-NN fills the result, whatever the format."""
    spec = call.specs[0]
    dims = normalize_dims(call["dim"], len(spec.shape))
    if math_prod(spec.shape[dim] for dim in dims) == 1:
        return
    wrong = (
        f"Only FLOAT32, BFLOAT16, and BFLOAT8_B are supported for Std/Var reduction - got DataType::{spec.dtype.name}"
    )
    require_dtype(spec, {DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B}, wrong)
    config = call["compute_kernel_config"]
    wrong = (
        "ttnn.std/var with Float32 input requires fp32_dest_acc_en=true in the compute kernel config; otherwise precision "
        "is silently lost in the unpacker format conversion."
    )
    fits = spec.dtype is not DataType.FLOAT32 or config is None or config.fp32_dest_acc_en
    require(fits, wrong, "fp32_dest_acc_en=True", "Set it in compute_kernel_config, or leave the config out.")


def _check_product(call: Call) -> None:
    spec, dim = call.specs[0], call["dim"]
    rank = len(spec.shape)
    if dim is not None:
        wrong = f"Dimension for prod is out of range (expected to be in range of [{-rank}, {rank - 1}])"
        normalize_dim(dim, rank, wrong)
        wrong = "ttnn.prod with a dim argument does not support bfloat4_b"
        require(
            spec.dtype is not DataType.BFLOAT4_B,
            wrong,
            "a format other than bfloat4_b",
            "Convert it with ttnn.typecast.",
        )
    allowed = {DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B}
    listed = "BFLOAT16, FLOAT32, BFLOAT8_B or BFLOAT4_B" if dim is None else "BFLOAT16, FLOAT32 or BFLOAT8_B"
    wrong = f"Error - unsupported data type for prod, expected {listed} but got DataType::{spec.dtype.name}."
    require_dtype(spec, allowed, wrong)


def _check_extreme(call: Call) -> None:
    shape = call.specs[0].shape
    for dim in sorted(dim % len(shape) for dim in normalize_dims(call["dim"], len(shape))):
        wrong = f"Expected reduction dim {dim} to have non-zero size"
        require(shape[dim] != 0, wrong, "at least one value along it", "Leave the call out for empty tensors.")


# -- definitions -------------------------------------------------------------------------------------------------------


sum_ = op(
    "ttnn.sum",
    golden=goldens.sum_,
    out=_sum_spec,
    check=_check_sum,
    stages=reduce_stages("sum", _reduced_spec),
    specialise=_specialise(torch.sum),
)(_sum)
mean = op(
    "ttnn.mean",
    golden=goldens.mean,
    out=_sum_spec,
    check=_check_mean,
    stages=reduce_stages("mean", _reduced_spec),
    specialise=_specialise_mean,
)(_mean)
max_ = op(
    "ttnn.max",
    golden=goldens.max_,
    out=_tiled_spec,
    check=_check_extreme,
    stages=reduce_stages("max", _reduced_spec),
    specialise=_specialise(torch.amax),
)(_make_extreme(fpu.largest, fpu.smallest))
min_ = op(
    "ttnn.min",
    golden=goldens.min_,
    out=_tiled_spec,
    check=_check_extreme,
    stages=reduce_stages("min", _reduced_spec),
    specialise=_specialise(torch.amin),
)(_make_extreme(fpu.smallest, fpu.largest))
var = op("ttnn.var", golden=goldens.var, out=_tiled_spec, check=_check_spread, stages=spread_stages(_reduced_spec))(
    _variance
)
std = op("ttnn.std", golden=goldens.std, out=_tiled_spec, check=_check_spread, stages=spread_stages(_reduced_spec))(
    _standard_deviation
)
prod = op("ttnn.prod", golden=goldens.prod, out=_product_spec, check=_check_product, stages=product_stages)(_product)
