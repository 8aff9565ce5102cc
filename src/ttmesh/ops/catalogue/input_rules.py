"""Which formats, layouts and memory an operation's first tensor may have, by family, with TT-NN's error texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_unary_output
from ttmesh.ops.requirements.call_tables import CALL_RULES
from ttmesh.ops.requirements.operand_rules import check_operands
from ttmesh.ops.requirements.operand_tables import OPERAND_RULES
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BFLOAT16, FLOAT32, BFLOAT8_B, BFLOAT4_B = DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B
INT32, UINT32, UINT16, UINT8 = DataType.INT32, DataType.UINT32, DataType.UINT16, DataType.UINT8
EVERY = frozenset({BFLOAT16, FLOAT32, BFLOAT8_B, BFLOAT4_B, INT32, UINT32, UINT16, UINT8})
FLOATS = frozenset({BFLOAT16, FLOAT32, BFLOAT8_B, BFLOAT4_B})


@dataclass(frozen=True)
class InputRule:
    """Requirements of the first tensor; without a text there is none. `{}` in a text is replaced by the actual value."""

    dtypes: frozenset[DataType] = EVERY
    wrong_dtype: str = ""
    layout: Layout = Layout.TILE
    wrong_layout: str = ""
    wrong_sharding: str = ""
    comes_last: bool = False  # after the operation's own checks

    def check(self, spec: TensorSpec) -> None:
        """Raise for a tensor that the operation does not accept: first its layout, then its format, then its memory."""
        if self.wrong_layout:
            fix = "Convert it with ttnn.to_layout."
            require(spec.layout is self.layout, self.wrong_layout, f"{self.layout.name} layout", fix)
        if self.wrong_dtype:
            require_dtype(spec, self.dtypes, self.wrong_dtype.format(f"DataType::{spec.dtype.name}"))
        if self.wrong_sharding:
            fix = "Convert it with ttnn.to_memory_config."
            wrong = self.wrong_sharding.format(f"TensorMemoryLayout::{spec.memory_config.memory_layout.name}")
            require(not spec.memory_config.is_sharded(), wrong, "interleaved memory", fix)


def check_inputs(name: str, check: Callable[[Call], None] | None) -> Callable[[Call], None] | None:
    """Combine an operation's check with the rules of its input and its operands, if it has such."""
    rule, operand_rules = RULES.get(name), (*OPERAND_RULES.get(name, ()), *CALL_RULES.get(name, ()))
    if rule is None and not operand_rules and name not in UNARY_WITH_NUMBERS:
        return check

    def check_both(call: Call) -> None:
        check_operands(operand_rules, call)
        if name in UNARY_WITH_NUMBERS and len(call.specs) == 1:
            require_unary_output(call)
        if name in UNARY and call.outputs and call.outputs[0] is not None and check is not None:
            check(call)  # of the tensor for the result, before the format of the input
        if name in REDUCES_TILES and call.specs[0].layout is Layout.ROW_MAJOR:
            wrong = "Can only tilize bfloat16/float32 or int32/uint32/uint16 or fp8_e4m3 tensors"
            require_dtype(call.specs[0], EVERY - {UINT8}, wrong)
        if rule is not None and not rule.comes_last:
            rule.check(call.specs[0])
        if check is not None:
            check(call)
        if rule is not None and rule.comes_last:
            rule.check(call.specs[0])

    return check_both


def _unary(names: str, unsupported: Iterable[DataType]) -> Mapping[str, InputRule]:
    """Rules of unary operations; NAME=TYPE if TT-NN's device operation has another name."""
    rules = {}
    for entry in names.split():
        name, _, kind = entry.partition("=")
        text = f"Unary: UnaryOpType::{kind or name.upper()} does not support integer input dtype {{}}"
        rules[f"ttnn.{name}"] = InputRule(EVERY.difference(unsupported), text)
    return rules


UNARY: Mapping[str, InputRule] = {
    **_unary(
        "acos acosh alt_complex_rotate90 asin asinh atan atanh cbrt ceil cos cosh  "
        "deg2rad=MUL_UNARY_SFPU digamma erf erfc erfinv exp exp2 expm1 "
        "floor frac hardmish hardsigmoid hardswish i0 i1 isfinite isinf isnan isneginf isposinf lgamma log log10 log1p "
        "log2 log_sigmoid=LOGSIGMOID mish multigammaln=LGAMMA rad2deg=MUL_UNARY_SFPU reciprocal=RECIP rsqrt sigmoid "
        "sigmoid_accurate=SIGMOID sign silu sin sinh softsign sqrt swish=SILU tan tanh tanhshrink trunc celu elu gelu "
        "hardshrink hardtanh heaviside logit polygamma rdiv round rpow selu softcap softplus softshrink threshold xielu",
        (INT32, UINT32, UINT16, UINT8),
    ),
    **_unary("bitwise_not", (UINT16, UINT8)),
    **_unary("gez gtz lez ltz neg signbit", (UINT32, UINT16, UINT8)),
    **_unary("eqz nez square fill logical_not=LOGICAL_NOT_UNARY logical_not_=LOGICAL_NOT_UNARY", (UINT8,)),
    **_unary("leaky_relu", (INT32,)),
}

# Of one tensor and numbers: TT-NN runs a unary program, which writes fewer formats than a binary one.
UNARY_WITH_NUMBERS = frozenset(
    f"ttnn.{name}"
    for name in (
        "where",
        "maximum",
        "minimum",
        "pow",
        "remainder",
        "clamp",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_left_shift",
        "bitwise_right_shift",
    )
)

_IN_CHAINS = {
    **UNARY,
    **_unary("abs", (INT32,)),
    **_unary("add=ADD_UNARY_SFPU subtract=SUB_UNARY_SFPU", (UINT16, UINT8)),
}
UNARY_TYPES: Mapping[str, InputRule] = {  # by the type that chains name
    rule.wrong_dtype.partition("UnaryOpType::")[2].partition(" ")[0]: rule for rule in _IN_CHAINS.values()
}

_GENERIC = InputRule(
    frozenset({FLOAT32, BFLOAT16, BFLOAT8_B, UINT32, INT32}),
    "Only FLOAT32, BFLOAT16, BFLOAT8_B, and UINT32 are supported for generic reduction (INT32 is supported for "
    "MAX/MIN/SUM) - got {}",
)
REDUCES_TILES = frozenset(f"ttnn.{name}" for name in ("sum", "mean", "max", "min"))  # rows go into tiles first
_SCAN = InputRule(
    wrong_layout="The provided input tensor has a non-tile layout: ROW_MAJOR.",
    wrong_sharding="ttnn accumulation operations (cumprod, cumsum) do not support sharded input tensors.",
    comes_last=True,
)
REDUCTION: Mapping[str, InputRule] = {
    **dict.fromkeys(("ttnn.sum", "ttnn.mean", "ttnn.max", "ttnn.min"), _GENERIC),
    **dict.fromkeys(("ttnn.cumsum", "ttnn.cumprod", "ttnn.moreh_cumsum", "ttnn.moreh_cumsum_backward"), _SCAN),
    "ttnn.topk": InputRule(
        frozenset({BFLOAT16, BFLOAT8_B, FLOAT32}),
        "Input tensor must be BFLOAT16, BFLOAT8_B, or FLOAT32, got: {}",
        wrong_layout="The input must be in tiled format",
        comes_last=True,
    ),
    "ttnn.argmax": InputRule(wrong_sharding="Only INTERLEAVED memory layout is supported for inputs, got {}"),
}

_NORMS = (frozenset({FLOAT32, BFLOAT16, BFLOAT8_B}), "Input tensor must be FLOAT32, BFLOAT16, or BFLOAT8_B, got: {}")
NORM: Mapping[str, InputRule] = {
    **dict.fromkeys(
        (
            "ttnn.scale_mask_softmax", "ttnn.scale_mask_softmax_in_place",
            "ttnn.scale_causal_mask_hw_dims_softmax_in_place",
        ),
        InputRule(*_NORMS),
    ),
    **dict.fromkeys(
        ("ttnn.softmax", "ttnn.softmax_in_place", "ttnn.layer_norm"), InputRule(*_NORMS, comes_last=True)
    ),
    "ttnn.rms_norm": InputRule(
        *_NORMS, wrong_layout="ttnn::rms_norm does not support ROW_MAJOR input tensors. Use TILE layout."
    ),
}  # fmt: skip


def _moreh(
    name: str, dtypes: tuple[DataType, ...] = (BFLOAT16,), *, operand: str = "input", comes_last: bool = False
) -> InputRule:
    listed = ", ".join(dtype.name for dtype in dtypes)
    return InputRule(
        frozenset(dtypes),
        f"{name} {operand} only supports specific data types. [{listed}]",
        wrong_layout=f"{name} {operand} only supports TILE layout.",
        comes_last=comes_last,
    )


_MOREH_SOFTMAX = InputRule(
    frozenset({BFLOAT16, BFLOAT8_B, FLOAT32}),
    "Inputs must be of bfloat16, bfloat8_b or float32 type. Received: {}",
    wrong_layout="Inputs to softmax must be tilized",
)
MOREH: Mapping[str, InputRule] = {
    "ttnn.moreh_mean": _moreh("moreh_mean", (BFLOAT16,), comes_last=True),
    "ttnn.moreh_sum": _moreh("moreh_sum", (BFLOAT16, INT32)),
    **dict.fromkeys(("ttnn.moreh_norm", "ttnn.moreh_abs_pow"), _moreh("moreh_abs_pow", (BFLOAT16, INT32))),
    **dict.fromkeys(("ttnn.moreh_matmul", "ttnn.moreh_bmm", "ttnn.moreh_linear"), _moreh("moreh_matmul")),
    "ttnn.moreh_clip_grad_norm": _moreh("moreh_clip_grad_norm_step1"),
    "ttnn.moreh_adam": _moreh("moreh_adam", operand="params_in"),
    "ttnn.moreh_adamw": _moreh("moreh_adamw", (BFLOAT16, BFLOAT8_B), operand="param_in"),
    "ttnn.moreh_sgd": _moreh("moreh_sgd", operand="params_in"),
    **dict.fromkeys(
        ("ttnn.moreh_dot", "ttnn.moreh_times"), InputRule(frozenset({BFLOAT16, BFLOAT8_B}), "Unsupported data format")
    ),
    "ttnn.moreh_fold": InputRule(layout=Layout.ROW_MAJOR, wrong_layout="Fold: only support input in ROW_MAJOR"),
    **dict.fromkeys(("ttnn.moreh_softmax", "ttnn.moreh_logsoftmax", "ttnn.moreh_softmin"), _MOREH_SOFTMAX),
}

MOVEMENT: Mapping[str, InputRule] = {
    "ttnn.tilize": InputRule(layout=Layout.ROW_MAJOR, wrong_layout="Can only tilize row major data"),
    "ttnn.untilize": InputRule(EVERY - {BFLOAT4_B}, "Only TILE layout is supported for BFLOAT8_B dtype! Got {}"),
}

RULES: Mapping[str, InputRule] = {**UNARY, **REDUCTION, **NORM, **MOREH, **MOVEMENT}
