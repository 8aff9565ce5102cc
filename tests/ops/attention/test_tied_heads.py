"""Heads whose keys are their values too: which widths `nlp_create_qkv_heads` takes."""

from __future__ import annotations

from typing import Any

import pytest

import ttmesh.ttnn as ttnn


def _split(width: int, queries: int, keys: int) -> Any:
    with ttnn.manage_device(0) as device:
        x = ttnn.empty([1, 1, 32, width], ttnn.bfloat16, ttnn.TILE_LAYOUT, device, ttnn.DRAM_MEMORY_CONFIG)
        heads = ttnn.experimental.nlp_create_qkv_heads(
            x, None, num_heads=queries, num_kv_heads=keys, transpose_k_heads=False, kv_tied=True
        )
        return [list(one.shape) for one in heads]


def test_a_width_of_tied_sections_is_split() -> None:
    assert _split(320, 4, 1) == [[1, 4, 32, 64], [1, 1, 32, 64], [1, 1, 32, 64]]


@pytest.mark.parametrize(
    ("width", "queries", "message"),
    [
        (192, 1, r"Ambiguous kv_tied fused input shape: width 192 is divisible by both 2 \(tied\) and 3 \(untied\)"),
        (384, 4, "Unsupported input shape"),
    ],
)
def test_a_width_that_is_ambiguous_or_does_not_divide_is_refused(width: int, queries: int, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        _split(width, queries, 1)


@pytest.mark.parametrize(("width", "tied"), [(128, True), (96, True), (64, False), (96, False)])
def test_keys_of_another_width_than_the_queries_are_refused(width: int, tied: bool) -> None:
    with ttnn.manage_device(0) as device:
        queries, keys = (
            ttnn.empty([1, 1, 32, columns], ttnn.bfloat16, ttnn.TILE_LAYOUT, device, ttnn.DRAM_MEMORY_CONFIG)
            for columns in (256, width)
        )
        with pytest.raises(RuntimeError, match="Head dims must be the same for Q and K, V"):
            ttnn.experimental.nlp_create_qkv_heads(
                queries, keys, num_heads=4, num_kv_heads=1, transpose_k_heads=False, kv_tied=tied
            )
