"""One requirement of one operand (format, layout, memory), as TT-NN's device operations state them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.requirements.call_rules import CallRule
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

FORMATS = {
    "bf16": DataType.BFLOAT16, "f32": DataType.FLOAT32, "bf8": DataType.BFLOAT8_B, "bf4": DataType.BFLOAT4_B,
    "u32": DataType.UINT32, "i32": DataType.INT32, "u16": DataType.UINT16, "u8": DataType.UINT8,
}  # fmt: skip
MEMORY = {
    "interleaved": TensorMemoryLayout.INTERLEAVED, "height": TensorMemoryLayout.HEIGHT_SHARDED,
    "width": TensorMemoryLayout.WIDTH_SHARDED, "block": TensorMemoryLayout.BLOCK_SHARDED,
}  # fmt: skip
TO_LAYOUT, TO_MEMORY = "Convert it with ttnn.to_layout.", "Move it with ttnn.to_memory_config."


@dataclass(frozen=True)
class OperandRule:
    """What one or more operands must be, and TT-NN's text where one is not; {} in it stands for the value found."""

    operands: tuple[str, ...]
    wrong: str
    accepts: Callable[[TensorSpec, Call | Mapping[str, Any]], bool]
    found: Callable[[TensorSpec], object]
    expected: str
    fix: str
    is_format: bool = False  # a requirement of the format alone
    sharded: bool | None = None  # only for calls whose input tensor is in shards, or is not

    def check(self, call: Call | Mapping[str, Any]) -> None:
        """Raise for an operand that is given and not accepted."""
        if self.sharded is not None and call["input_tensor"].spec.memory_config.is_sharded() is not self.sharded:
            return
        for operand in self.operands:
            value = call[operand]
            if isinstance(value, Tensor):
                accepted = self.accepts(value.spec, call)
                require(accepted, self.wrong.format(self.found(value.spec)), self.expected, self.fix)


def _found_dtype(spec: TensorSpec) -> str:
    return f"DataType::{spec.dtype.name}"


def index_formats(operands: str, names: str, wrong: str, *, unless_sharded: bool = False) -> OperandRule:
    """These formats alone, of operands that hold indices: they say nothing about the values that an operation computes."""
    rule = formats(operands, names, wrong)

    def accepts(spec: TensorSpec, call: Call | Mapping[str, Any]) -> bool:
        return (unless_sharded and not spec.memory_config.interleaved) or rule.accepts(spec, call)

    return replace(rule, accepts=accepts, is_format=False)


def formats(operands: str, names: str, wrong: str) -> OperandRule:
    """These formats alone."""
    allowed = frozenset(FORMATS[name] for name in names.split())
    expected = " or ".join(dtype.name.lower() for dtype in sorted(allowed, key=lambda dtype: dtype.name))
    fix = "Convert it with ttnn.typecast."
    return OperandRule(
        tuple(operands.split()),
        wrong,
        lambda spec, _: spec.dtype in allowed,
        _found_dtype,
        expected,
        fix,
        is_format=True,
    )


def equal_lengths() -> OperandRule:
    """Queries and keys of causal attention have as many positions."""

    def accepts(spec: TensorSpec, call: Call | Mapping[str, Any]) -> bool:
        keys = call["input_tensor_k"]
        return not call["is_causal"] or min(len(spec.shape), len(keys.shape)) < 3 or spec.shape[2] == keys.shape[2]

    wrong = "Causal SDPA requires Q and K to have the same sequence length. Got Q: {}"
    expected, fix = "equal lengths", "Pass is_causal=False."
    return OperandRule(("input_tensor_q",), wrong, accepts, lambda spec: spec.shape[2], expected, fix)


def tiles(operands: str, wrong: str) -> OperandRule:
    """TILE layout."""
    return _layout(operands, Layout.TILE, wrong)


def row_major(operands: str, wrong: str) -> OperandRule:
    """ROW_MAJOR layout."""
    return _layout(operands, Layout.ROW_MAJOR, wrong)


def _layout(operands: str, layout: Layout, wrong: str) -> OperandRule:
    return OperandRule(
        tuple(operands.split()),
        wrong,
        lambda spec, _: spec.layout is layout,
        lambda spec: f"Layout::{spec.layout.name}",
        f"{layout.name} layout",
        TO_LAYOUT,
    )


def memory(operands: str, names: str, wrong: str) -> OperandRule:
    """Interleaved, or sharded in these ways."""
    allowed = frozenset(MEMORY[name] for name in names.split())
    return OperandRule(
        tuple(operands.split()),
        wrong,
        lambda spec, _: spec.memory_config.memory_layout in allowed,
        lambda spec: f"TensorMemoryLayout::{spec.memory_config.memory_layout.name}",
        " or ".join(sorted(layout.name for layout in allowed)),
        TO_MEMORY,
    )


def in_dram(operands: str, wrong: str, *, or_sharded: bool = False) -> OperandRule:
    """Memory in DRAM; shards anywhere if they may be."""
    return OperandRule(
        tuple(operands.split()),
        wrong,
        lambda spec, _: spec.buffer_type is BufferType.DRAM or (or_sharded and spec.memory_config.is_sharded()),
        lambda spec: f"BufferType::{spec.buffer_type.name}",
        "DRAM",
        TO_MEMORY,
    )


def in_l1(operands: str, wrong: str) -> OperandRule:
    """Memory in L1."""
    return OperandRule(
        tuple(operands.split()),
        wrong,
        lambda spec, _: spec.buffer_type is BufferType.L1,
        lambda spec: f"BufferType::{spec.buffer_type.name}",
        "L1",
        TO_MEMORY,
    )


def wide_destination(operands: str, wrong: str) -> OperandRule:
    """float32 only with fp32_dest_acc_en, which is off unless asked for."""

    def accepts(spec: TensorSpec, call: Call | Mapping[str, Any]) -> bool:
        config = call["compute_kernel_config"]
        return spec.dtype is not DataType.FLOAT32 or (config is not None and config.fp32_dest_acc_en)

    fix = "Pass compute_kernel_config= with fp32_dest_acc_en=True."
    expected = "a 32-bit destination for float32"
    return OperandRule(tuple(operands.split()), wrong, accepts, _found_dtype, expected, fix, is_format=True)


def only_for(rule: OperandRule, *, sharded: bool) -> OperandRule:
    """The rule for calls whose first operand is in shards, or for the others: TT-NN has a program for each."""
    return replace(rule, sharded=sharded, is_format=rule.is_format and not sharded)


def check_operands(rules: Sequence[OperandRule | CallRule], call: Call | Mapping[str, Any]) -> None:
    """Raise at the first requirement that a call does not meet."""
    for rule in rules:
        rule.check(call)
