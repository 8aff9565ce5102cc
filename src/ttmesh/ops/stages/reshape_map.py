"""The map of segments that TT-NN's reshape of tiles keeps in DRAM beside its program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE, FACE = 32, 16
WORDS_PER_SEGMENT = 4
SEGMENT_STEP = 16  # bytes that L1 is aligned to


def as_three_dims(shape: Sequence[int]) -> tuple[int, int, int]:
    """The shape with its leading dims in one."""
    padded = (1, 1, 1, *shape)
    return prod(padded[:-2]), padded[-2], padded[-1]


@lru_cache(maxsize=256)
def map_spec(source: tuple[int, ...], target: tuple[int, ...]) -> TensorSpec:
    """The spec of the map for a reshape: a row per tile of the result."""
    before, after = as_three_dims(source), as_three_dims(target)
    pages = after[0] * div_up(after[1], TILE) * div_up(after[2], TILE)
    segments = max(_segments(page, before, after) for page in _sampled_pages(pages))
    segments += segments % SEGMENT_STEP
    return TensorSpec((pages, WORDS_PER_SEGMENT * segments), DataType.UINT32, Layout.ROW_MAJOR)


def _sampled_pages(pages: int) -> Sequence[int]:
    """Every page of small tensors; of large ones the first, the last and many between: one that crosses tiles is longest."""
    if pages <= 192:
        return range(pages)
    between = range(24, pages - 24, max(1, (pages - 48) // 96) | 1)
    return (*range(24), *between, *range(pages - 24, pages))


def _segments(page: int, before: tuple[int, int, int], after: tuple[int, int, int]) -> int:
    """How many entries one tile of the result has: runs of elements that are adjacent in both tensors."""
    wide = div_up(after[2], TILE)
    batch, tile = divmod(page, div_up(after[1], TILE) * wide)
    top, left = tile // wide * TILE, tile % wide * TILE
    rows = torch.arange(top, min(top + TILE, after[1]), device="cpu")[:, None]
    columns = torch.arange(left, min(left + TILE, after[2]), device="cpu")
    flat = ((batch * after[1] + rows) * after[2] + columns).flatten()
    outer, inner = flat // (before[1] * before[2]), flat % (before[1] * before[2])
    high, across = inner // before[2], inner % before[2]
    source = (outer * div_up(before[1], TILE) + high // TILE) * div_up(before[2], TILE) + across // TILE
    read, written = _offset(high, across), _offset(rows, columns).flatten()
    begins = torch.ones_like(source, dtype=torch.bool)
    begins[1:] = (source.diff() != 0) | (read.diff() != 1) | (written.diff() != 1)
    counts = torch.bincount(source[begins] - source.min())
    counts = counts[counts > 0]
    return int(counts.max()) * len(counts)


def _offset(row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Where elements are in their tile, which is stored face by face."""
    face = row % TILE // FACE * 2 + column % TILE // FACE
    return face * FACE * FACE + row % FACE * FACE + column % FACE
