"""Circular buffers of element-wise programs, per core, as TT-NN's program factories size them (tt-metal e4f9f0b)."""

from __future__ import annotations

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, bfloat16
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.ops.catalogue.program_keys import find_broadcast_operands, output_memory
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

PAGES = 2  # per operand and result: one is filled while the other is used
TILE = Tile((32, 32))  # the size of a page, also for ROW_MAJOR tensors


def unary_buffers(call: Call) -> int:
    """Two pages of the input and of the result; shards are used in place."""
    spec = call.specs[0]
    size = _count_stream_bytes(spec) + _result_bytes(call)
    return (
        size + PAGES * _page_bytes(spec.dtype) if call.name == "ttnn.logit" else size
    )  # it has an intermediate buffer


def binary_buffers(call: Call) -> int:
    """Two pages per tensor, one for a number, and two more for an operand that is broadcast within its tiles."""
    first = call.specs[0]
    size = sum(map(_count_stream_bytes, call.specs[:2])) + _result_bytes(call)
    for name in ("input_tensor_a_activations", "input_tensor_b_activations"):
        size += _page_bytes(first.dtype) if call[name] else 0
    if len(call.specs) == 1:
        return size + _page_bytes(bfloat16 if first.dtype in BLOCK_FLOATS else first.dtype)
    a_row, a_column, b_row, b_column = find_broadcast_operands(call.specs)
    a_broadcast, b_broadcast = a_row or (a_column and not b_row), b_row or (b_column and not a_row)
    return size + PAGES * (a_broadcast * _page_bytes(first.dtype) + b_broadcast * _page_bytes(call.specs[1].dtype))


def ternary_buffers(call: Call) -> int:
    """Two pages per tensor and for the result, of three tensors of one shape."""
    if len(call.specs) != 3 or len({spec.shape for spec in call.specs}) > 1:
        return 0
    result = 0 if output_memory(call).is_sharded() else PAGES * _page_bytes(call.specs[1].dtype)
    return sum(map(_count_stream_bytes, call.specs)) + result


def _count_stream_bytes(spec: TensorSpec) -> int:
    return 0 if spec.memory_config.is_sharded() else PAGES * _page_bytes(spec.dtype)


def _result_bytes(call: Call) -> int:
    if output_memory(call).is_sharded():
        return 0
    given = call.outputs[0] if call.outputs else None
    dtype = given.dtype if given is not None else call["dtype"] or call.specs[0].dtype
    return PAGES * _page_bytes(dtype)


def _page_bytes(dtype: DataType) -> int:
    return tile_bytes(dtype, TILE)
