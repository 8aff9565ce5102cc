"""Older operations that models still call: bcast, fill_rm, fold, fast_reduce_nc."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, PrintedEnum
from ttmesh.ops.catalogue.checks import dims_of, require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, like, out_spec
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.goldens import reduction
from ttmesh.ops.lane_functions.lane_broadcast import ranked
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec


class BcastOpMath(PrintedEnum):
    """What bcast does with its operands."""

    ADD = 0
    SUB = 1
    MUL = 2


class BcastOpDim(PrintedEnum):
    """Along which dims bcast repeats its second operand."""

    H = 0
    W = 1
    HW = 2


# -- bcast -------------------------------------------------------------------------------------------------------------


def _spread(b: torch.Tensor, dim: BcastOpDim) -> torch.Tensor:
    """The row, column or corner of B that counts."""
    if dim is not BcastOpDim.W:
        b = b.narrow(-2, 0, 1)
    return b if dim is BcastOpDim.H else b.narrow(-1, 0, 1)


Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_MATHS: dict[BcastOpMath, Function] = {
    BcastOpMath.ADD: operator.add,
    BcastOpMath.SUB: operator.sub,
    BcastOpMath.MUL: operator.mul,
}


def _check_bcast(call: Call) -> None:
    for name, spec in zip("AB", call.specs, strict=True):
        wrong = f"Input tensor {name} layout must be TILE but got {spec.layout}"
        require(spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")


@op("ttnn.bcast", golden=goldens.bcast, check=_check_bcast)
def bcast(
    input_a: torch.Tensor, input_b: torch.Tensor, math_op: BcastOpMath, dim: BcastOpDim, lane_axes: int
) -> torch.Tensor:
    """A plus, minus or times B, whose row, column or corner is repeated."""
    a, b = ranked([input_a, input_b], lane_axes)
    return _MATHS[math_op](a, _spread(b, dim))


# -- fill_rm -----------------------------------------------------------------------------------------------------------


def _check_fill(call: Call) -> None:
    n, c, h, w = (call[name] for name in "NCHW")
    high, wide = call["hOnes"], call["wOnes"]
    require(
        min(n, c, h, w) > 0,
        f"All dimensions must be positive: N={n}, C={c}, H={h}, W={w}",
        "positive dims",
        "Ask for at least one element in every dim.",
    )
    wrong = f"Fill dimensions must be <= tensor dimensions: hFill={high} <= H={h}, wFill={wide} <= W={w}"
    require(high <= h and wide <= w, wrong, "a corner inside", "Make the corner smaller, or the tensor larger.")
    wrong = f"Input tensor dtype must be BFLOAT16 but got {call.specs[0].dtype}"
    require(call.specs[0].dtype is DataType.BFLOAT16, wrong, "bfloat16", "Convert it with ttnn.typecast.")


def _fill_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = call["memory_config"] or call.specs[0].memory_config
    return [TensorSpec(inferred[0][0], call.specs[0].dtype, Layout.ROW_MAJOR, memory_config=memory)]


def _corner(
    shape: Sequence[int], high: int, wide: int, inside: float, outside: float, like_: torch.Tensor
) -> torch.Tensor:
    values = torch.full(tuple(shape), outside, device=like_.device)
    values[..., :high, :wide] = inside
    return values


@op("ttnn.fill_rm", golden=goldens.fill_corner, check=_check_fill, out=_fill_spec)
def fill_rm(
    N: int,
    C: int,
    H: int,
    W: int,
    hOnes: int,
    wOnes: int,
    any: torch.Tensor,
    val_hi: float,
    val_lo: float,
    lane_axes: int,
) -> torch.Tensor:
    """A tensor with one number in the upper left corner of its last dims and another elsewhere."""
    return _corner((*[1] * lane_axes, N, C, H, W), hOnes, wOnes, val_hi, val_lo, any)


@op("ttnn.fill_ones_rm", golden=goldens.fill_corner, check=_check_fill, out=_fill_spec)
def fill_ones_rm(
    N: int, C: int, H: int, W: int, hOnes: int, wOnes: int, any: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """A tensor with ones in the upper left corner of its last dims and zeros elsewhere."""
    return _corner((*[1] * lane_axes, N, C, H, W), hOnes, wOnes, 1.0, 0.0, any)


# -- fold --------------------------------------------------------------------------------------------------------------


def _margins(padding: Sequence[int]) -> tuple[int, int, int, int, int, int]:
    """top, bottom, left, right, first and last channels."""
    p = [int(one) for one in padding]
    if len(p) == 2:
        return p[0], p[0], p[1], p[1], 0, 0
    if len(p) == 4:
        return p[0], p[1], p[2], p[3], 0, 0
    require(len(p) == 6, f"Fold: padding has {len(p)} numbers", "2, 4 or 6", "Give 2, 4 or 6 numbers.")
    return p[0], p[1], p[2], p[3], p[4], p[5]


def space_to_depth(values: torch.Tensor, high: int, wide: int) -> torch.Tensor:
    """[.., H, W, C] → [.., H / high, W / wide, high * wide * C]."""
    h, w, c = values.shape[-3:]
    cut = values.reshape(*values.shape[:-3], h // high, high, w // wide, wide, c)
    return cut.transpose(-4, -3).reshape(*values.shape[:-3], h // high, w // wide, high * wide * c)


def _fold(
    values: torch.Tensor, high: int, wide: int, padding: Sequence[int], collapse: bool, lane_axes: int
) -> torch.Tensor:
    top, bottom, left, right, front, back = _margins(padding)
    grown = torch.nn.functional.pad(values, (front, back, left, right, top, bottom))
    result = space_to_depth(grown, high, wide)
    if not collapse:
        return result
    return result.reshape(*result.shape[:lane_axes], 1, 1, -1, result.shape[-1])


def _check_fold(call: Call) -> None:
    shape, high, wide = call.specs[0].shape, call["stride_h"], call["stride_w"]
    require(len(shape) == 4, "Fold op only supports 4D tensors", "[N, H, W, C]", "Reshape it to four dims.")
    wrong = f"Fold: stride_h ({high}) and stride_w ({wide}) must be > 0."
    require(high > 0 and wide > 0, wrong, "positive strides", "Use strides of at least 1.")
    wrong = (
        "Fold: collapse_output=True is not supported with use_transpose_as_fold=True (legacy path bypasses prim::fold). "
        "Drop use_transpose_as_fold to use collapse_output."
    )
    require(
        not (call["use_transpose_as_fold"] and call["collapse_output"]),
        wrong,
        "one of the two",
        "Leave one of them out.",
    )
    top, bottom, left, right, _, _ = _margins(call["padding"])
    rows, columns = (shape[2], shape[3]) if call["use_transpose_as_fold"] else (shape[1], shape[2])
    height, width = rows + top + bottom, columns + left + right
    require(
        height % high == 0,
        f"Fold: Input height ({height}) must be divisible by stride_h ({high}).",
        "a multiple",
        "Pad it.",
    )
    require(
        width % wide == 0,
        f"Fold: Input width ({width}) must be divisible by stride_w ({wide}).",
        "a multiple",
        "Pad it.",
    )


def _folded_shards(call: Call) -> MemoryConfig | None:
    """Rows in shards stay on their cores: fewer of them, and longer, by the pixels of a block."""
    spec = call.specs[0]
    config, shards = spec.memory_config, spec.memory_config.shard_spec
    plain = not (call["use_transpose_as_fold"] or any(call["padding"] or ()))
    if shards is None or not config.is_sharded() or spec.layout is not Layout.ROW_MAJOR or not plain:
        return None
    pixels = call["stride_h"] * call["stride_w"]
    height, width = shards.shape
    if height % pixels:
        return None
    shape = (height // pixels, width * pixels)
    return MemoryConfig(config.memory_layout, config.buffer_type, ShardSpec(shards.grid, shape, shards.orientation))


def _fold_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    dtype = DataType.BFLOAT16 if call.specs[0].dtype in BLOCK_FLOATS else None
    memory = call["override_memory_config"] or _folded_shards(call)
    return [out_spec(call, inferred[0][0], dtype=dtype, layout=Layout.ROW_MAJOR, memory_config=memory)]


@op("ttnn.fold", golden=goldens.fold, check=_check_fold, out=_fold_spec)
def fold(
    input: torch.Tensor,
    stride_h: int,
    stride_w: int,
    use_transpose_as_fold: bool,
    output_shape: Sequence[int] | None,
    padding: Sequence[int],
    collapse_output: bool,
    lane_axes: int,
) -> torch.Tensor:
    """Blocks of an image [N, H, W, C] (or [N, C, H, W] for TT-NN's older way) as channels."""
    images = input.movedim(-3, -1) if use_transpose_as_fold else input
    result = _fold(images, stride_h, stride_w, padding, collapse_output, lane_axes)
    if output_shape is None:
        return result
    n, h, w, c = output_shape
    if use_transpose_as_fold:
        return result[..., :h, :w, :c]
    return result.reshape(*result.shape[:lane_axes], n, h, w, -1)[..., :c]


# -- fast_reduce_nc ----------------------------------------------------------------------------------------------------


def _check_reduce(call: Call) -> None:
    require(
        call.specs[0].layout is Layout.TILE,
        "fast_reduce_nc: input must be tilized",
        "TILE_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )


def _reduce_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory = DRAM_MEMORY_CONFIG if call["memory_config"] is None else None
    return [out_spec(call, inferred[0][0], layout=Layout.TILE, memory_config=memory)]


@op(
    "ttnn.experimental.fast_reduce_nc",
    golden=reduction.fast_reduce_nc,
    check=_check_reduce,
    out=_reduce_spec,
    outputs=("output",),
    programs=lambda call: tuple(("fast_reduce_nc", call.tensors[0].kind, dim) for dim in call["dims"]),
)
def fast_reduce_nc(input: torch.Tensor, dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The sum over outer dims, which stay with length 1."""
    return input.sum(dims_of(tuple(dims), input.dim() - lane_axes), keepdim=True)


def _check_broadcast_to(call: Call) -> None:
    shape, wanted = tuple(call.specs[0].shape), tuple(call["output_shape"])
    for what, config in (("input", call.specs[0].memory_config), ("output", call["memory_config"])):
        require(
            config is None or not config.is_sharded(),
            f"bcast_to: Invalid {what} memory config {config}. {what.capitalize()} tensor sharding not supported",
            "interleaved memory",
            "Use ttnn.DRAM_MEMORY_CONFIG.",
        )
    require(
        len(shape) <= len(wanted),
        f"Input tensor shape {list(shape)}({len(shape)}) must be at least as large as the broadcast shape "
        f"{list(wanted)}({len(wanted)}), which it is not",
        "as many dims as the tensor has, or more",
        "Name every dim of the result.",
    )
    require(
        len(wanted) <= 4,
        f"Tensor shape and broadcast size {list(shape)}({len(shape)}) {list(wanted)}({len(wanted)}) must be at most 4D",
        "four dims or fewer",
        "Fold outer dims with ttnn.reshape.",
    )
    for i, (length, target) in enumerate(zip(shape, wanted[len(wanted) - len(shape) :], strict=True)):
        require(
            length in (1, target),
            f"Input dimension {i} (size {length}) cannot be broadcast to output dimension {i} (size {target})",
            f"length 1 or {target}",
            "Only dims of length 1 are repeated.",
        )


@op(
    "ttnn.experimental.broadcast_to",
    golden=goldens.broadcast_to,
    check=_check_broadcast_to,
    out=like(),
    outputs=("output",),
)
def broadcast_to(input: torch.Tensor, output_shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The values repeated along dims of length 1 until the shape is reached."""
    mesh, local = input.shape[:lane_axes], input.shape[lane_axes:]
    return input.reshape(*mesh, *[1] * (len(output_shape) - len(local)), *local).expand(*mesh, *output_shape)
