"""Softmax along a dim, alone or after scaling and masking, also in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ops.catalogue.checks import require_tiles
from ttmesh.ops.catalogue.definition import OpFunction, composite, op
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import reduction as goldens
from ttmesh.ops.lane_functions.fpu_rows import take_softmax
from ttmesh.ops.lane_functions.lane_broadcast import common_mesh_dims
from ttmesh.ops.norm.softmax_rules import check_masked, check_masked_by_rows, check_masked_in_place
from ttmesh.ops.stages.conversion_stages import tilized_operands_stages
from ttmesh.tensor import operators
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.spec_checks import check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32


def _check_dim(call: Call) -> None:
    rank, dim = len(call.specs[0].shape), call["dim"]
    wrong = f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
    inside = dim is None or -rank <= dim < max(rank, 1) or not rank
    require(inside, wrong, f"{-rank} to {rank - 1}", "Choose a dim of the input.")


def _check_softmax(call: Call) -> None:
    _check_dim(call)
    spec = call.specs[0]
    check_shard_tiles(call["memory_config"] or spec.memory_config, Layout.TILE, None)
    if spec.layout is Layout.ROW_MAJOR and _tilizes_rows(call):
        check_shard_tiles(spec.memory_config, Layout.TILE, None)
    else:
        _check_mask(call)


def _tilizes_rows(call: Call) -> bool:
    """Whether rows are tilized first: TT-NN does that for the last of four dims, and the middle one of three."""
    rank, dim = len(call.specs[0].shape), call["dim"]
    place = (-1 if dim is None else dim) % max(rank, 1)
    return (rank, place) in ((4, 3), (3, 1))


def _softmax_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Tiles; TT-NN gives the result the shape of the input again, which divided rows with padding do not take."""
    made = make_output_spec(call, inferred[0][0], layout=Layout.TILE)
    shards = made.memory_config.shard_spec
    whole = not made.shape or made.shape[-1] == made.padded_shape[-1]
    if shards is not None and not whole and shards.shape[1] != made.padded_shape[-1]:
        raise ShapeError(
            "Changing the last dimension of a sharded tensor is not supported unless the shard width matches the input "
            f"last dimension. Input shape: {made.padded_shape!r}, New shape: {made.shape!r}, Shard width: {shards.shape[1]}",
            expected="shards of whole rows, or rows that fill their tiles",
            fix="Move it with ttnn.to_memory_config to DRAM first.",
        )
    return [made]


def _check_mask(call: Call) -> None:
    require_tiles(call, "Inputs to softmax must be tilized")


def _compute_softmax(values: Lanes, dim: int, lane_axes: int) -> Lanes:
    local = values.dim() - lane_axes
    if not local:
        return torch.ones_like(values)
    return take_softmax(values, dim if dim < 0 else dim - local, dtype=_softmax_dtype(values))


def _softmax_dtype(values: Lanes) -> torch.dtype | None:
    return None if values.dtype is torch.bfloat16 else torch.float32  # torch's bf16 kernel computes in float32


def _specialise_softmax(case: Case) -> Lane | None:
    rank, dim = len(case.specs[0].shape), -1 if case["dim"] is None else case["dim"]
    negative_dim = dim if dim < 0 else dim - rank
    return (
        (lambda values: torch.softmax(values, negative_dim))
        if rank and case.specs[0].dtype is DataType.BFLOAT16
        else None
    )


@op(
    "ttnn.softmax",
    golden=goldens.softmax,
    out=_softmax_spec,
    check=_check_softmax,
    stages=tilized_operands_stages,
    specialise=_specialise_softmax,
)
def softmax(input_tensor: Lanes, dim: int | None, lane_axes: int) -> Lanes:
    """Exponentials that sum to 1 along a dim."""
    return _compute_softmax(input_tensor, -1 if dim is None else dim, lane_axes)


def _check_in_place(call: Call) -> None:
    _check_dim(call)
    rank, dim = len(call.specs[0].shape), call["dim"]
    require(rank <= 4, "Tensor rank is greater than 4", "four dims", "Join leading dims with ttnn.reshape.")
    if not rank:  # one element is filled with 1
        return
    place = (-1 if dim is None else dim) % max(rank, 1)
    wrong = f"Invalid dimension: {place}. Currently softmax inplace supports dim -1."
    require(place == 3, wrong, "the last of four dims", "Use ttnn.softmax for other dims.")
    _check_mask(call)


@op("ttnn.softmax_in_place", golden=goldens.softmax, out=like_written, check=_check_in_place, writes="input_tensor")
def softmax_in_place(input_tensor: Lanes, dim: int | None, lane_axes: int) -> Lanes:
    """Softmax, in place."""
    return _compute_softmax(input_tensor, -1 if dim is None else dim, lane_axes)


def _scale_and_mask(
    x: Lanes, scale: float | None, mask: Lanes | None, causal: bool, lane_axes: int, mask_spec: TensorSpec
) -> Lanes:
    factor = 1.0 if scale is None else scale
    if mask is None and x.dtype is torch.bfloat16 and math.frexp(factor)[0] == 0.5:
        return take_softmax(x if factor == 1.0 else x * factor, -1)  # exact in bfloat16: a power of two
    scores = x.float() * factor
    if mask is not None:
        rows = _read_mask_rows(mask, x.shape, causal, lane_axes, mask_spec).float()
        if (
            causal and rows.shape[-2] < x.shape[-2] and x.shape[-2] % rows.shape[-2] == 0
        ):  # the heads are folded into the rows
            rows = rows.repeat(*[1] * (rows.dim() - 2), x.shape[-2] // rows.shape[-2], 1)
        dims = common_mesh_dims([scores, rows], lane_axes)
        scores = scores.add_(rows) if scores.shape[:lane_axes] == dims else scores + rows
    return take_softmax(scores, -1)


def _read_mask_rows(mask: Lanes, shape: Sequence[int], causal: bool, lane_axes: int, spec: TensorSpec) -> Lanes:
    """A row-major mask has rows of 32 ([.., W/32, 32]); of a tile of rows, or fewer than the scores, the first is used."""
    height, width = shape[-2:]
    if spec.layout is Layout.ROW_MAJOR and mask.shape[-1] != width:
        lead = mask.shape[: lane_axes + max(len(spec.shape) - 2, 0)]
        return mask.reshape(*lead, 1, -1)[..., :width]
    return mask[..., :1, :] if not causal and (mask.shape[-2] == TILE or mask.shape[-2] < height) else mask


@op("ttnn.scale_mask_softmax", golden=goldens.scale_mask_softmax, check=check_masked, runtime=("scale",), min_rank=1)
def scale_mask_softmax(
    input_tensor: Lanes,
    scale: float | None,
    mask: Lanes | None,
    is_causal_mask: bool,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """softmax(scale · x + mask) over the last dim."""
    return _scale_and_mask(input_tensor, scale, mask, is_causal_mask, lane_axes, specs[-1])


def _define_in_place(name: str, check: Callable[[Call], None]) -> OpFunction:
    def check_tiles(call: Call) -> None:
        _check_mask(call)
        check(call)

    @op(
        name,
        golden=goldens.scale_mask_softmax,
        min_rank=1,
        out=like_written,
        check=check_tiles,
        runtime=("scale",),
        writes="input_tensor",
    )
    def lane(
        input_tensor: Lanes,
        scale: float | None,
        mask: Lanes | None,
        lane_axes: int,
        specs: Sequence[TensorSpec],
        is_causal_mask: bool = True,
    ) -> Lanes:
        """softmax(scale · x + mask) over the last dim, in place."""
        return _scale_and_mask(input_tensor, scale, mask, is_causal_mask, lane_axes, specs[-1])

    return lane


scale_mask_softmax_in_place = _define_in_place("ttnn.scale_mask_softmax_in_place", check_masked_in_place)
scale_causal_mask_hw_dims_softmax_in_place = _define_in_place(
    "ttnn.scale_causal_mask_hw_dims_softmax_in_place", check_masked_by_rows
)


def _attention_scale(head_size: int | None) -> float:
    return 1.0 if head_size is None else 1.0 / math.sqrt(head_size)


@composite("ttnn.transformer.attention_softmax", golden=goldens.attention_softmax)
def attention_softmax(
    tensor: Tensor,
    head_size: int | None,
    attention_mask: Tensor | None,
    causal_mask: bool,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """softmax(x / sqrt(head_size) + mask)."""
    if attention_mask is None:
        scaled = operators.call("multiply", tensor, _attention_scale(head_size))
        plain: Tensor = softmax(scaled, -1, memory_config=memory_config or tensor.memory_config())
        return plain
    result: Tensor = scale_mask_softmax(
        tensor,
        _attention_scale(head_size),
        attention_mask,
        memory_config=memory_config,
        is_causal_mask=causal_mask,
    )
    return result


@composite("ttnn.transformer.attention_softmax_", golden=goldens.attention_softmax)
def attention_softmax_(
    tensor: Tensor, head_size: int | None, attention_mask: Tensor | None, causal_mask: bool
) -> Tensor:
    """softmax(x / sqrt(head_size) + mask), in place."""
    if attention_mask is None:
        raise MeshError(
            "Cannot apply divide by sqrt(head_size) using in-place version when attention_mask is not set.",
            expected="an attention_mask, or no head_size",
            fix="Pass a mask, or use attention_softmax.",
        )
    result: Tensor = scale_mask_softmax_in_place(
        tensor, _attention_scale(head_size), attention_mask, is_causal_mask=causal_mask, numeric_stable=True
    )
    return result
