"""Copies in another order on a GPU: torch's own reach a third of the memory's bandwidth."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from ttmesh.chip.formats.kernels.gpu.gpu_launch import bind_launch

TILE, FACE = 32, 16
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
BLOCK_WORDS = 2048  # of one program
ROWS, COLUMNS = 8, 512
ALIGNMENT = 16  # bytes: Triton compiles another kernel for pointers that are less aligned
Move = Callable[[torch.Tensor], torch.Tensor]


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
def _reorder_tiles(source, target, width, TILES: tl.constexpr, RUN: tl.constexpr, TO_TILES: tl.constexpr):
    """Rows of whole tiles, `width` words wide: each tile's four faces one after the other, or back.

    A face is 16 runs of RUN words. Both sides are read and written as they lie; the order changes in between.
    """
    strip = (tl.program_id(2).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * width * 32
    y = tl.arange(0, 32)[:, None]
    x = tl.program_id(0) * TILES * 2 * RUN + tl.arange(0, TILES * 2 * RUN)[None, :]
    in_rows = strip + y * width + x
    place = tl.program_id(0) * TILES * 64 * RUN + tl.arange(0, TILES * 64 * RUN)
    in_tiles = strip + place
    if TO_TILES:
        rows = tl.load(source + in_rows, mask=x < width)
        faces = tl.permute(tl.reshape(rows, (2, 16, TILES, 2, RUN)), (2, 0, 3, 1, 4))
        tl.store(target + in_tiles, tl.reshape(faces, (TILES * 64 * RUN,)), mask=place < width * 32)
    else:
        tiles = tl.load(source + in_tiles, mask=place < width * 32)
        rows = tl.permute(tl.reshape(tiles, (TILES, 2, 2, 16, RUN)), (1, 3, 0, 2, 4))
        tl.store(target + in_rows, tl.reshape(rows, (32, TILES * 2 * RUN)), mask=x < width)


def swap_rows(values: torch.Tensor, first_dim: int, second_dims: int) -> torch.Tensor:
    """A contiguous tensor with one dim moved behind the `second_dims` dims that follow it."""
    is_aligned = values.data_ptr() % ALIGNMENT == 0
    return _swap(values.shape, values.dtype, values.device, first_dim, second_dims, is_aligned)(values)


@functools.lru_cache(maxsize=1024)
def _swap(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    first_dim: int,
    second_dims: int,
    is_aligned: bool,
) -> Move:
    """Decided once, for it is called often."""
    moved = shape[first_dim + 1 : first_dim + 1 + second_dims]
    rest = shape[first_dim + 1 + second_dims :]
    first, second, run = shape[first_dim], math.prod(moved), math.prod(rest)
    like = torch.empty((), dtype=dtype, device=device).expand((*shape[:first_dim], *moved, first, *rest))
    if not math.prod(shape):
        return lambda values: torch.empty_like(like, memory_format=torch.contiguous_format)
    size = dtype.itemsize
    width = next(n for n in (8, 4, 2, 1) if n == size or (is_aligned and n > size and run * size % n == 0))
    words = run * size // width
    grid = (triton.cdiv(words, COLUMNS), triton.cdiv(second, ROWS), math.prod(shape[:first_dim]) * first)
    scalars = (first, second, words, ROWS, COLUMNS)
    empty_like, contiguous = torch.empty_like, torch.contiguous_format
    launch: Callable[[int, int], None] | None = None

    def move(values: torch.Tensor) -> torch.Tensor:
        nonlocal launch
        target = empty_like(like, memory_format=contiguous)
        if launch is not None:
            launch(values.data_ptr(), target.data_ptr())
            return target
        source, filled = values.reshape(-1).view(WORDS[width]), target.view(-1).view(WORDS[width])
        compiled = _swap_rows[grid](source, filled, *scalars)
        if is_aligned:
            launch = bind_launch(compiled, grid, scalars)
        return target

    return move


def supports(values: torch.Tensor, height: int, width: int) -> bool:
    """Whether matrices of this size are whole tiles of elements that the kernels move."""
    whole = height % TILE == 0 and width % TILE == 0 and values.numel() > 0
    return whole and values.element_size() in WORDS and values.is_contiguous()


def reorder_tiles(values: torch.Tensor, height: int, width: int, *, to_tiles: bool) -> torch.Tensor:
    """Whole matrices to tile order, or back, as one row of elements each."""
    size = values.element_size()
    word = 8 if values.data_ptr() % 8 == 0 else size
    words = values.reshape(-1).view(WORDS[word])
    target = torch.empty_like(words)
    run = FACE * size // word
    tiles = BLOCK_WORDS // (TILE * 2 * run)
    across = width * size // word
    grid = (triton.cdiv(across, 2 * run * tiles), height // TILE, words.numel() // (height * across))
    _reorder_tiles[grid](words, target, across, TILES=tiles, RUN=run, TO_TILES=to_tiles)
    return target.view(values.dtype)


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    swap_rows(torch.ones((2, 2, 4), device="cuda", dtype=torch.float32), 0, 1)
    reorder_tiles(torch.ones((32, 32), device="cuda", dtype=torch.float32), 32, 32, to_tiles=True)
