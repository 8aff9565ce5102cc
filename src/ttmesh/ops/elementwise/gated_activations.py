"""Gated and learned activations (the glu family, prelu, snake_beta), clamp, normalize_hw, var_hw, tril and triu."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ttmesh.base.dtypes import (
    BLOCK_FLOATS,
    INTEGERS,
    TILE_LAYOUT,
    Arch,
    DataType,
    Layout,
    TensorMemoryLayout,
    bfloat16,
    float32,
    int32,
    uint32,
)
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.ops.catalogue.definition import OpFunction, op
from ttmesh.ops.catalogue.program_keys import binary_key
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards, like_first, make_like_rule
from ttmesh.ops.elementwise.binary_rules import binary_spec, is_tensor
from ttmesh.ops.elementwise.ternary import equalize_operands
from ttmesh.ops.goldens import movement, reduction
from ttmesh.ops.goldens import operands as goldens
from ttmesh.ops.lane_functions.lane_broadcast import pad_to_tiles
from ttmesh.ops.lane_functions.unary_functions import to_float32
from ttmesh.ops.stages.composite_stages import gate_stages, normalize_stages, spread_hw_stages
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

ACTIVATIONS = {"glu": "SIGMOID", "reglu": "", "geglu": "GELU", "swiglu": "SILU"}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": torch.sigmoid, "reglu": torch.relu, "geglu": functional.gelu, "swiglu": functional.silu,
}  # fmt: skip


TWO_TILES = 64  # so that each half fills tiles


def _check_halves(call: Call) -> None:
    spec, dim = call.specs[0], call["dim"]
    if dim not in (-1, 3):
        wrong = f"glu-family ops only support the last dimension, got dim={dim}"
        raise ShapeError(wrong, expected="dim -1 or 3", fix="Permute the tensor so that the gates come last.")
    padded = spec.padded_shape
    if len(padded) < 4:
        wrong = f"ShapeBase[] index out of range. 3 not in [-4, {len(padded)})"
        raise ShapeError(wrong, expected="4 dims", fix="Use ttnn.unsqueeze_to_4D.")
    width = padded[3]
    if width % TWO_TILES or len(padded) != 4:
        wrong = "Split tensor dimension should be in full tile"
        raise ShapeError(wrong, expected=f"a multiple of {TWO_TILES}, not {width}", fix="Pad the last dim.")


def _check_gate(activation: str) -> Callable[[Call], None]:
    """The halves, and the format that the activation of the second half takes."""

    def check(call: Call) -> None:
        _check_halves(call)
        dtype = call.specs[0].dtype
        wrong = f"Unary: UnaryOpType::{activation} does not support integer input dtype DataType::{dtype.name}"
        require(not activation or dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")

    return check


def _halves_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """A sharded tensor stays on its cores, in shards that fit half of it."""
    spec, shape = call.specs[0], inferred[0][0]
    config = call["memory_config"] or spec.memory_config
    if config.shard_spec is None or call["memory_config"] is not None:
        return like_first(call, inferred)
    plain = TensorSpec(shape, spec.dtype, spec.layout)
    return [plain.with_memory_config(fit_shards(config, plain, config))]


def _define_gate(name: str, gate: Callable[[Tensor], Tensor]) -> OpFunction:
    def lane(input_tensor: Tensor, specs: Sequence[TensorSpec]) -> Tensor:
        widened = to_float32(input_tensor) if input_tensor.dtype.is_floating_point else input_tensor
        if specs[0].layout is Layout.TILE:
            widened = pad_to_tiles(widened)
        value, gate_input = widened.chunk(2, dim=-1)
        return value * gate(gate_input)

    lane.__doc__ = f"First half of the last dim times {gate.__name__} of the second."
    return op(
        f"ttnn.{name}",
        golden=goldens.GATES[name],
        out=_halves_spec,
        check=_check_gate(ACTIVATIONS[name]),
        stages=gate_stages(name),
    )(lane)


gates = {name: _define_gate(name, gate) for name, gate in GATES.items()}


def _situ_glu(gate: Tensor, up: Tensor, beta1: float, beta2: float) -> Tensor:
    gate, up = to_float32(gate), to_float32(up)
    return beta1 * torch.tanh(gate / beta1) * torch.sigmoid(gate) * (beta2 * torch.tanh(up / beta2))


def _check_betas(call: Call) -> None:
    dtype = call.specs[0].dtype
    wrong = f"Unary: UnaryOpType::SOFTCAP does not support integer input dtype DataType::{dtype.name}"
    require(dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")
    arch = call.mesh.arch()
    wrong = f"Unary: SOFTCAP is implemented for Blackhole only, got arch {arch.name.lower()}"
    require(arch is Arch.BLACKHOLE, wrong, "a Blackhole chip", "Set TTMESH_SYSTEM=p150.")
    wrong = f"Unary: SOFTCAP supports BFLOAT16 and BFLOAT8_B inputs, got dtype DataType::{dtype.name}"
    require(dtype in (bfloat16, DataType.BFLOAT8_B), wrong, "bfloat16 or bfloat8_b", "Convert it with ttnn.typecast.")
    require(
        bool(call["beta1"] and call["beta2"]),
        "situ_glu: beta1 and beta2 must be non-zero",
        "nonzero numbers",
        "Pass the bounds of gate and up.",
    )


@op("ttnn.situ_glu", golden=goldens.situ_glu, out=binary_spec(), check=_check_betas)
def situ_glu(gate: Tensor, up: Tensor, beta1: float, beta2: float, lane_axes: int) -> Tensor:
    """A soft-capped silu of the gate times a soft-capped value."""
    gate, up = equalize_operands(lane_axes, gate, up)
    return _situ_glu(gate, up, beta1, beta2)


def _clamped_silu_glu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return functional.silu(to_float32(gate).clamp(max=limit)) * to_float32(up).clamp(-limit, limit)


@op("ttnn.clamped_silu_glu", golden=goldens.clamped_silu_glu, out=binary_spec(), runtime=("limit",))
def clamped_silu_glu(gate: Tensor, up: Tensor, limit: float, lane_axes: int) -> Tensor:
    """silu of the gate, clamped above, times the value clamped on both sides."""
    gate, up = equalize_operands(lane_axes, gate, up)
    return _clamped_silu_glu(gate, up, limit)


def _snake_beta(input_tensor: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    x = to_float32(input_tensor)
    return x + torch.square(torch.sin(x * alpha)) / beta


def _check_snake_beta(call: Call) -> None:
    x, alpha, beta = call.specs
    shape, columns = tuple(x.shape), tuple(alpha.shape)
    outer = [(i, length) for i, length in enumerate(columns[:-1]) if length != 1]
    rules = (
        (
            x.dtype in (bfloat16, float32),
            f"snake_beta supports only BFLOAT16 or FLOAT32, got {x.dtype}",
            "Convert with ttnn.typecast.",
        ),
        (
            alpha.dtype is beta.dtype is x.dtype,
            "snake_beta requires alpha.dtype == beta.dtype == input.dtype",
            "Convert with ttnn.typecast.",
        ),
        (
            all(spec.layout is TILE_LAYOUT for spec in call.specs),
            "snake_beta requires tile layout for all inputs",
            "Convert with ttnn.to_layout.",
        ),
        (
            len(shape) >= 2,
            f"snake_beta requires input rank >= 2, got rank {len(shape)} (shape {x.shape!r})",
            "Add a dim with ttnn.unsqueeze.",
        ),
        (
            columns == tuple(beta.shape),
            f"snake_beta requires alpha.shape == beta.shape, got {alpha.shape!r} vs {beta.shape!r}",
            "Give both parameters the same shape.",
        ),
        (
            shape[-1] == columns[-1],
            f"snake_beta requires input.W == alpha.W, got {shape[-1]} vs {columns[-1]}",
            "Use one parameter per column.",
        ),
        (
            columns == shape or not outer,
            "snake_beta v1 requires alpha/beta to either match input shape exactly or have non-1 size only on the last "
            f"dim (got dim {outer[0][0]} = {outer[0][1]})" if outer else "",
            "Use one parameter per column, or one per element.",
        ),
    )  # fmt: skip
    for ok, wrong, fix in rules:
        require(
            ok, wrong, "x, alpha and beta of one dtype in TILE layout, with parameters per column or per element", fix
        )


@op(
    "ttnn.snake_beta",
    golden=goldens.snake_beta,
    check=_check_snake_beta,
    out=binary_spec(),
)
def snake_beta(input_tensor: Tensor, alpha: Tensor, beta: Tensor, lane_axes: int) -> Tensor:
    """x + sin²(alpha·x) / beta, parameters per column."""
    return _snake_beta(*equalize_operands(lane_axes, input_tensor, alpha, beta))


def _check_prelu(call: Call) -> None:
    if not is_tensor(call["weight"]):
        _require_formats(call.specs[0], "PRELU_SFPU")
    weight, channels = call["weight"], call.specs[0].shape[1] if len(call.specs[0].shape) > 1 else 1
    if is_tensor(weight):
        count = 1
        for length in weight.shape:
            count *= length
        require(
            count == channels,
            f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {count} and channel size = "
            f"{channels}.",
            "one weight per channel",
            "Reshape the weight.",
        )


@op("ttnn.prelu", golden=goldens.prelu, check=_check_prelu)
def prelu(input_tensor_a: Tensor, weight: Any, lane_axes: int) -> Tensor:
    """x, times the channel's weight where negative; channels are dim 1."""
    x = to_float32(input_tensor_a)
    if isinstance(weight, Tensor):
        mesh, rank = weight.shape[:lane_axes], x.dim() - lane_axes
        weight = to_float32(weight).reshape(*mesh, *([1, -1] if rank == 2 else [1, -1, *[1] * (rank - 2)]))
    elif isinstance(weight, (list, tuple)):
        weight = weight[0]
    if x.requires_grad:  # torch gives the weight as the slope at 0; the sign of a 0 does not matter here
        return torch.where(x > 0, x, x * weight)
    return torch.where(x < 0, x * weight, x)


def _bounds(call: Call) -> tuple[Any, Any]:
    return call["min"], call["max"]


def _check_clamp(call: Call) -> None:
    # Without bounds TT-NN chooses the overload for tensors, whose message this is.
    if all(bound is None for bound in _bounds(call)):
        raise MeshError(
            "Only one of 'min' or 'max' can be None. Please provide one value",
            expected="at least one bound",
            fix="Give min or max.",
        )
    if len(call.specs) == 1:
        _require_formats(call.specs[0], "CLAMP_TSS", (int32,))


def _require_formats(spec: TensorSpec, op_type: str, integers: tuple[DataType, ...] = ()) -> None:
    """Raise for integers that the device operation of a composite refuses."""
    wrong = f"Unary: UnaryOpType::{op_type} does not support integer input dtype DataType::{spec.dtype.name}"
    refused = spec.dtype in INTEGERS and spec.dtype not in integers
    require(not refused, wrong, "a float format", "Convert it with ttnn.typecast.")


def _clamp_dtype(call: Call) -> DataType | None:
    floats = any(isinstance(bound, float) for bound in _bounds(call))
    return float32 if call.specs[0].dtype is int32 and floats else None


def _clip_dtype(call: Call) -> DataType | None:
    """TT-NN reads the bounds of clip as floats."""
    numbers = any(isinstance(bound, int | float) for bound in _bounds(call))
    return float32 if call.specs[0].dtype is int32 and numbers else None


def _clamp(x: Tensor, lower: Any, upper: Any) -> Tensor:
    if any(isinstance(bound, float) for bound in (lower, upper)):
        x = to_float32(x)
    if isinstance(lower, Tensor):
        x = torch.maximum(x, lower)
    elif lower is not None:
        x = x.clamp(min=lower)
    if isinstance(upper, Tensor):
        return torch.minimum(x, upper)
    return x if upper is None else x.clamp(max=upper)


def _define_clamp(name: str) -> OpFunction:
    def lane(input_tensor: Tensor, min: Any, max: Any, lane_axes: int) -> Tensor:
        """Values clamped between two bounds, numbers or tensors; the upper bound is applied last."""
        return _clamp(*equalize_operands(lane_axes, input_tensor, min, max))

    dtype = _clamp_dtype if name == "clamp" else _clip_dtype
    return op(f"ttnn.{name}", golden=goldens.clamp, out=binary_spec(dtype), check=_check_clamp, runtime=("min", "max"))(
        lane
    )


clamp, clip = _define_clamp("clamp"), _define_clamp("clip")


def _check_square_tiles(call: Call) -> None:
    wrong = f"ttnn.mean does not support integer inputs - got DataType::{call.specs[0].dtype.name}."
    require(call.specs[0].dtype not in (int32, uint32), wrong, "a float format", "Convert it with ttnn.typecast.")
    rank = len(call.specs[0].shape)
    wrong = (
        f"Unsupported dim {2 if rank < 3 else 3} at index {0 if rank < 3 else 1}. After possible adjustment, needs to be at "
        f"least 0 and less than rank {rank}, or exactly 0 for a rank 0 tensor."
    )
    require(rank > 3, wrong, "four dims or more", "Reshape it to four dims.")
    require_dtype(
        call.specs[0],
        (bfloat16, float32, DataType.BFLOAT8_B, int32, uint32),
        "Only FLOAT32, BFLOAT16, BFLOAT8_B, and UINT32 are supported for generic reduction (INT32 is supported for "
        f"MAX/MIN/SUM) - got DataType::{call.specs[0].dtype.name}",
    )
    wrong = "Broadcast with batch is currently only supported when bN*bC=1 or N & C match or equivalent"
    batches = call.specs[0].shape[:-2]
    require(rank == 4 or batches.count(1) == len(batches), wrong, "four dims", "Reshape it to four dims.")
    memory = call.specs[0].memory_config
    require(
        not memory.is_sharded() or memory.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED,
        "HW bcast in0 supports Height Sharding or Interleaving",
        "interleaved memory, or shards of whole rows",
        "Move it with ttnn.to_memory_config.",
    )


def _check_four_dims(call: Call) -> None:
    four = len(call.specs[0].shape) == 4
    require(four, "Cannot support non-rank 4 Tensor", "four dims", "Reshape it to four dims.")
    spec = call.specs[0]
    wrong = f"Input tensor dtype must be BFLOAT16 or FLOAT32 but got DataType::{spec.dtype.name}"
    batches = spec.shape[0] * spec.shape[1] > 1  # they are reshaped into one matrix, which block floats are not
    require(not batches or spec.dtype in (bfloat16, float32), wrong, "bfloat16 or float32", "Use ttnn.typecast.")
    _check_square_tiles(call)


def _normalize(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    x = to_float32(x)
    mean = x.mean(dims, keepdim=True)
    return (x - mean) / x.var(dims, correction=0, keepdim=True).sqrt()


@op(
    "ttnn.normalize_hw",
    golden=reduction.normalize_hw,
    out=make_like_rule(layout=Layout.TILE),
    check=_check_square_tiles,
    stages=normalize_stages(whole=False),
)
def normalize_hw(input_tensor: Tensor) -> Tensor:
    """(x - mean) / std over the last two dims, biased."""
    return _normalize(input_tensor, (-2, -1))


@op(
    "ttnn.normalize_global",
    golden=reduction.normalize_global,
    check=_check_four_dims,
    stages=normalize_stages(whole=True),
)
def normalize_global(input_tensor: Tensor, lane_axes: int) -> Tensor:
    """(x - mean) / std over every element of a device, biased."""
    return _normalize(input_tensor, tuple(range(lane_axes, input_tensor.dim())))


def _variance_hw(x: Tensor, *, root: bool) -> Tensor:
    variance = to_float32(x).var((-2, -1), correction=0, keepdim=True)
    return variance.sqrt() if root else variance


@op(
    "ttnn.var_hw",
    golden=reduction.var_hw,
    out=make_like_rule(layout=Layout.TILE),
    check=_check_square_tiles,
    stages=spread_hw_stages(root=False),
)
def var_hw(input_tensor: Tensor) -> Tensor:
    """The variance over the last two dims, biased; the dims stay with length 1."""
    return _variance_hw(input_tensor, root=False)


@op(
    "ttnn.std_hw",
    golden=reduction.std_hw,
    out=make_like_rule(layout=Layout.TILE),
    check=_check_square_tiles,
    stages=spread_hw_stages(root=True),
)
def std_hw(input_tensor: Tensor) -> Tensor:
    """The standard deviation over the last two dims, biased; the dims stay with length 1."""
    return _variance_hw(input_tensor, root=True)


def _mask_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The host's mask of ones, and its product with the tensor."""
    spec = call.specs[0]
    if spec.layout is not Layout.TILE:
        return None
    c, config = Composition(), results[0].memory_config
    dtype = DataType.BFLOAT16 if spec.dtype in BLOCK_FLOATS else spec.dtype
    mask = c.allocate(TensorSpec(spec.shape, dtype, spec.layout, memory_config=config))
    c.launch(binary_key("MUL", (spec, mask.spec), spec.dtype, config))
    made = c.allocate(results[0])
    c.free(mask)
    return c, [made]


def _check_mask_shape(call: Call) -> None:
    """Rows are tilized first, which takes whole tiles alone."""
    spec = call.specs[0]
    if spec.layout is Layout.TILE or len(spec.shape) < 2:
        return
    before = spec.physical_shape
    after = TensorSpec(spec.shape, spec.dtype, Layout.TILE).physical_shape
    wrong = (
        f"to_layout: Converting layout to Layout::TILE implicitly changed physical shape from {tuple(before)} to "
        f"{tuple(after)} due to alignment constraints."
    )
    require(tuple(before) == tuple(after), wrong, "whole tiles", "Convert it with ttnn.tilize_with_zero_padding first.")


@op(
    "ttnn.tril",
    golden=movement.tril,
    out=make_like_rule(layout=Layout.TILE),
    check=_check_mask_shape,
    stages=_mask_stages,
)
def tril(input_tensor: Tensor, diagonal: int, lane_axes: int) -> Tensor:
    """The lower triangle of the last two dims, zeros elsewhere; a vector is one row."""
    flat = input_tensor.dim() == lane_axes + 1
    return torch.tril(input_tensor.unsqueeze(-2), diagonal).squeeze(-2) if flat else torch.tril(input_tensor, diagonal)


@op(
    "ttnn.triu",
    golden=movement.triu,
    out=make_like_rule(layout=Layout.TILE),
    check=_check_mask_shape,
    stages=_mask_stages,
)
def triu(input_tensor: Tensor, diagonal: int, lane_axes: int) -> Tensor:
    """The upper triangle of the last two dims, zeros elsewhere; a vector is one row."""
    flat = input_tensor.dim() == lane_axes + 1
    return torch.triu(input_tensor.unsqueeze(-2), diagonal).squeeze(-2) if flat else torch.triu(input_tensor, diagonal)
