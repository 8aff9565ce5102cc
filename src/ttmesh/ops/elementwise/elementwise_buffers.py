"""Circular buffers of element-wise programs, per core, as TT-NN's program factories size them (tt-metal e4f9f0b)."""

from __future__ import annotations

from collections.abc import Hashable

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType, bfloat16, float32
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.catalogue.program_keys import find_broadcast_operands, output_memory
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.program_buffers import key_rule

PAGES = 2  # per operand and result: one is filled while the other is used
TILE = Tile((32, 32))  # the size of a page, also for ROW_MAJOR tensors
# with a number in place of the second operand these are unary programs
AS_UNARY = frozenset({
    "pow", "maximum", "minimum", "remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
    "bitwise_right_shift", "logical_left_shift", "logical_right_shift",
})  # fmt: skip
PREPARES_BOTH = frozenset({"logical_and", "logical_or", "logical_xor", "hypot"})  # their operands pass a function first


def unary_buffers(call: Call) -> int:
    """Two pages of the input and of the result; shards are used in place where the result's are the same."""
    spec = call.specs[0]
    size = 0 if _in_place(call) else _count_stream_bytes(spec.dtype) + _count_stream_bytes(_result_dtype(call))
    return (
        size + PAGES * _page_bytes(spec.dtype) if call.name == "ttnn.logit" else size
    )  # it has an intermediate buffer


def binary_buffers(call: Call) -> int:
    """Two pages per tensor, one for a number, and two more for an operand that is broadcast within its tiles."""
    first, name = call.specs[0], call.name.rpartition(".")[2].rstrip("_")
    number = len(call.specs) == 1
    if number and name in AS_UNARY and not (first.dtype in INTEGERS and name in ("remainder", "fmod")):
        return unary_buffers(call)
    second = (bfloat16 if first.dtype in BLOCK_FLOATS else first.dtype) if number else call.specs[1].dtype
    size = 0
    if not _in_place(call):
        size = sum(_count_stream_bytes(spec.dtype) for spec in call.specs[:2]) + _count_stream_bytes(
            _result_dtype(call)
        )
    if call["input_tensor_a_activations"] or name in PREPARES_BOTH or (name == "rsub" and _uses_fpu(first.dtype)):
        size += _page_bytes(first.dtype)
    if call["input_tensor_b_activations"] or name in PREPARES_BOTH:
        size += _page_bytes(second)
    elif name == "ldexp":
        size += _page_bytes(float32 if first.dtype in BLOCK_FLOATS else first.dtype)
    if number:
        return size + _page_bytes(second)
    a_row, a_column, b_row, b_column = find_broadcast_operands(call.specs)
    a_broadcast, b_broadcast = a_row or (a_column and not b_row), b_row or (b_column and not a_row)
    return size + PAGES * (a_broadcast * _page_bytes(first.dtype) + b_broadcast * _page_bytes(second))


def ternary_buffers(call: Call) -> int:
    """Two pages per tensor and for the result, and two more each where one of three is broadcast along columns."""
    if not call.specs or _in_place(call):
        return 0
    size = sum(_count_stream_bytes(spec.dtype) for spec in call.specs)
    dtype = call.specs[min(1, len(call.specs) - 1)].dtype
    extents = [(1, 1, *spec.shape)[-2:] for spec in call.specs]
    if len(extents) == 3 and any(height == 1 < width for height, width in extents) and max(extents)[0] > 1:
        size *= 2
    return size + _count_stream_bytes(dtype)


@key_rule
def key_bytes(key: tuple[Hashable, ...]) -> int | None:
    """Of an element-wise program inside a composite, from its key: two pages of every operand and of the result."""
    match key:
        case (str(), tuple() as operands, tuple(), DataType() as dtype, *_) if operands:
            held = [one[0] for one in operands if isinstance(one, tuple) and one and isinstance(one[0], DataType)]
            number = _page_bytes(held[0]) if len(held) == 1 else 0
            return sum(map(_count_stream_bytes, held)) + _count_stream_bytes(dtype) + number
        case (str(), tuple(), tuple(), _, DataType() as dtype, *_) | ("unary", tuple(), DataType() as dtype, *_):
            return 2 * _count_stream_bytes(dtype)
    return None


def _in_place(call: Call) -> bool:
    """Whether all operands and the result have the same shards in L1, which serve as circular buffers."""
    output = output_memory(call)
    return output.is_sharded() and all(
        spec.memory_config.is_l1() and spec.memory_config == output and spec.shape == call.specs[0].shape
        for spec in call.specs
    )


def _uses_fpu(dtype: DataType) -> bool:
    return dtype not in INTEGERS and dtype is not float32


def _count_stream_bytes(dtype: DataType) -> int:
    return PAGES * _page_bytes(dtype)


def _result_dtype(call: Call) -> DataType:
    given = call.outputs[0] if call.outputs else None
    return given.dtype if given is not None else call["dtype"] or call.specs[0].dtype


def _page_bytes(dtype: DataType) -> int:
    return tile_bytes(dtype, TILE)
