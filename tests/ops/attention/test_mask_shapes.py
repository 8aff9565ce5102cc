"""Masks of attention over sequences: which are taken, and TT-NN's words for the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

TILE, ROWS = ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT


@pytest.fixture
def device() -> Iterator[Any]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as device:
        yield device


def attend(device: Any, shape: tuple[int, ...], **more: Any) -> Any:
    q, k = (
        ttnn.from_torch(torch.zeros(1, 8, rows, 64), dtype=ttnn.bfloat16, layout=TILE, device=device)
        for rows in (32, 64)
    )
    mask = ttnn.from_torch(torch.zeros(shape), **{"dtype": ttnn.bfloat16, "layout": TILE, "device": device, **more})
    return ttnn.transformer.scaled_dot_product_attention(q, k, k, is_causal=False, attn_mask=mask)


@pytest.mark.parametrize("shape", [(1, 1, 32, 64), (1, 8, 32, 64)])
def test_a_mask_is_for_all_heads_or_for_each(device: Any, shape: tuple[int, ...]) -> None:
    assert attend(device, shape).shape == [1, 8, 32, 64]


@pytest.mark.parametrize(
    ("shape", "more", "text"),
    [
        ((2, 1, 32, 64), {}, "Mask batch dim must either be 1"),
        ((1, 2, 32, 64), {}, "Mask num_heads must either be 1"),
        ((1, 1, 64, 64), {}, "Mask sequence length must match Q sequence length"),
        ((1, 1, 32, 32), {}, "Mask sequence length must match K sequence length"),
        ((32, 64), {}, "Mask batch dim must either be 1"),
        ((1, 1, 32, 64), {"layout": ROWS}, "it must be tilized"),
        ((1, 1, 32, 64), {"dtype": ttnn.float32}, "it must be in BF16, BFP8, or BFP4 dataformat"),
        ((1, 1, 32, 64), {"memory_config": ttnn.L1_MEMORY_CONFIG}, "it must be in DRAM"),
    ],
)
def test_other_masks_are_refused_in_ttnns_words(
    device: Any, shape: tuple[int, ...], more: dict[str, Any], text: str
) -> None:
    with pytest.raises(RuntimeError, match=text):
        attend(device, shape, **more)
