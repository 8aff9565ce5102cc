"""The calls whose circular buffers are compared with TT-NN's: every family, many formats, layouts and memories."""

from __future__ import annotations

from collections.abc import Iterator

from buffer_calls.attention_calls import attention, caches, heads, rotary
from buffer_calls.collective_calls import collectives
from buffer_calls.elementwise_calls import binary, casts, ternary, unary
from buffer_calls.large_calls import large
from buffer_calls.listed_call import Call, close, device
from buffer_calls.matmul_calls import configured_matmuls, matmuls
from buffer_calls.movement_calls import joins, pads, reshapes, slices, transposes
from buffer_calls.other_calls import convolutions, experimental, moreh, pools
from buffer_calls.placement_calls import copies, embeddings, layouts, orders
from buffer_calls.row_calls import norms, reductions, sharded_norms, softmaxes

__all__ = ["close", "device", "list_calls"]


def list_calls() -> Iterator[Call]:
    """All calls, family by family."""
    for family in (
        unary, binary, ternary, reductions, softmaxes, norms, sharded_norms, matmuls, configured_matmuls, transposes, slices,
        joins, pads, reshapes, layouts, embeddings, orders, attention, heads, rotary, caches, casts, copies, convolutions,
        pools, moreh, experimental, large, collectives,
    ):  # fmt: skip
        yield from family()
