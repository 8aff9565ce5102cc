"""Copies in another order on a GPU: torch's own reach a third of the memory's bandwidth."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

TILE, FACE = tl.constexpr(32), tl.constexpr(16)
TILES = 8  # side by side in one program
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ROWS, COLUMNS = 8, 512


@triton.jit
def _swap_rows(source, target, first, second, run, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[n, first, second, run] to [n, second, first, run]; a program takes one of `first` and a block of the others."""
    i = tl.program_id(2).to(tl.int64)
    batch, outer = i // first, i % first
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    inside = (row < second) & (column < run)
    values = tl.load(source + (i * second + row) * run + column, mask=inside)
    tl.store(target + ((batch * second + row) * first + outer) * run + column, values, mask=inside)


@triton.jit
def _reorder_tiles(source, target, width, TILES: tl.constexpr, TO_TILES: tl.constexpr):
    """Rows of whole tiles, `width` elements wide: each tile's four faces one after the other, or back."""
    y = tl.arange(0, TILE)[:, None]
    x = tl.program_id(0) * TILE * TILES + tl.arange(0, TILE * TILES)[None, :]
    strip = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * width * TILE
    in_rows = strip + y * width + x
    face = y // FACE * 2 + x % TILE // FACE
    in_tiles = strip + x // TILE * (TILE * TILE) + face * (FACE * FACE) + y % FACE * FACE + x % FACE
    inside = x < width
    if TO_TILES:
        tl.store(target + in_tiles, tl.load(source + in_rows, mask=inside), mask=inside)
    else:
        tl.store(target + in_rows, tl.load(source + in_tiles, mask=inside), mask=inside)


def swap_rows(values: torch.Tensor, first_dim: int, second_dims: int) -> torch.Tensor:
    """A contiguous tensor with one dim moved behind the `second_dims` dims that follow it."""
    shape = tuple(values.shape)
    moved = shape[first_dim + 1 : first_dim + 1 + second_dims]
    rest = shape[first_dim + 1 + second_dims :]
    target = torch.empty(
        (*shape[:first_dim], *moved, shape[first_dim], *rest), dtype=values.dtype, device=values.device
    )
    if target.numel():
        first, second, run = shape[first_dim], math.prod(moved), math.prod(rest)
        source, words, scale = _in_words(values, target, run)
        grid = (
            triton.cdiv(run // scale, COLUMNS),
            triton.cdiv(second, ROWS),
            math.prod(shape[:first_dim]) * first,
        )
        _swap_rows[grid](source, words, first, second, run // scale, ROWS=ROWS, COLUMNS=COLUMNS)
    return target


def _in_words(values: torch.Tensor, target: torch.Tensor, run: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Both as the widest words of which a run is a whole number, and how many elements one is."""
    size = values.element_size()
    width = next(n for n in (8, 4, 2, 1) if n >= size and run * size % n == 0 and values.data_ptr() % n == 0)
    return values.reshape(-1).view(WORDS[width]), target.view(-1).view(WORDS[width]), width // size


def supports(values: torch.Tensor, height: int, width: int) -> bool:
    """Whether matrices of this size are whole tiles of elements that the kernels move."""
    whole = height % TILE.value == 0 and width % TILE.value == 0 and values.numel() > 0
    return whole and values.element_size() in WORDS and values.is_contiguous()


def reorder_tiles(values: torch.Tensor, height: int, width: int, *, to_tiles: bool) -> torch.Tensor:
    """Whole matrices to tile order, or back, as one row of elements each."""
    words = values.reshape(-1).view(WORDS[values.element_size()])
    target = torch.empty_like(words)
    matrices = words.numel() // (height * width)
    grid = (triton.cdiv(width, TILE.value * TILES), height // TILE.value, matrices)
    _reorder_tiles[grid](words, target, width, TILES=TILES, TO_TILES=to_tiles)
    return target.view(values.dtype)


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    swap_rows(torch.ones((2, 2, 4), device="cuda"), 0, 1)
