"""Rows of key-value caches written by index on a GPU: one kernel, for which the host does not wait."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

ROWS = 64  # of one program
NONE = 2**62  # beyond every index


@triton.jit
def _write_rows(
    cache,
    values,
    block,
    row,
    mask,
    extremes,
    count,
    columns,
    blocks,
    heads,
    size,
    dim,
    value_outer,
    value_inner,
    value_row,
    value_head,
    block_outer,
    block_inner,
    block_row,
    row_outer,
    row_inner,
    row_row,
    mask_outer,
    mask_inner,
    mask_row,
    MASKED: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    NONE: tl.constexpr,
):
    """cache[lane, block, head, row] = values for a head of a lane; of rows that go to one place the last is written.

    The program behind those of the heads widens the extremes.
    """
    head = tl.program_id(0)
    outer = (tl.program_id(1) // columns).to(tl.int64)
    inner = (tl.program_id(1) % columns).to(tl.int64)
    i = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    used = i < count
    blocks_of = tl.load(block + outer * block_outer + inner * block_inner + i * block_row, mask=used, other=0)
    rows_of = tl.load(row + outer * row_outer + inner * row_inner + i * row_row, mask=used, other=0)
    blocks_of, rows_of = blocks_of.to(tl.int64), rows_of.to(tl.int64)
    if MASKED:
        used = used & (tl.load(mask + outer * mask_outer + inner * mask_inner + i * mask_row, mask=used, other=0) != 0)
    else:
        used = used & (rows_of >= 0)
    if head == heads:
        tl.atomic_min(extremes, tl.min(tl.where(used, blocks_of, NONE)))
        tl.atomic_max(extremes + 1, tl.max(tl.where(used, blocks_of, -NONE)))
        tl.atomic_min(extremes + 2, tl.min(tl.where(used, rows_of, NONE)))
        tl.atomic_max(extremes + 3, tl.max(tl.where(used, rows_of, -NONE)))
    else:
        element = tl.arange(0, DIM)
        source = values + outer * value_outer + inner * value_inner + head * value_head
        read = (i < count)[:, None] & (element < dim)[None, :]
        new = tl.load(source + i[:, None] * value_row + element[None, :], mask=read)  # while indices are on their way
        blocks_of = tl.where(blocks_of < 0, blocks_of + blocks, blocks_of)
        rows_of = tl.where(rows_of < 0, rows_of + size, rows_of)
        used = used & (blocks_of >= 0) & (blocks_of < blocks) & (rows_of >= 0) & (rows_of < size)
        place = tl.where(used, blocks_of * size + rows_of, -1 - i)
        later = (place[:, None] == place[None, :]) & (i[None, :] > i[:, None])
        used = used & (tl.max(later.to(tl.int32), axis=1) == 0)
        start = (((tl.program_id(1).to(tl.int64) * blocks + blocks_of) * heads + head) * size + rows_of) * dim
        written = used[:, None] & (element < dim)[None, :]
        tl.store(cache + start[:, None] + element[None, :], new, mask=written)


def supports(cache: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether lanes [rows, columns, blocks, heads, size, dim] and their new rows are such as the kernel takes."""
    if cache.dim() != 6 or not cache.is_contiguous() or cache.dtype is not values.dtype:
        return False
    return tuple(values.shape[-2:]) == (cache.shape[3], cache.shape[5])


def write_rows(
    cache: torch.Tensor,
    block: torch.Tensor,
    row: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    extremes: torch.Tensor,
) -> None:
    """cache[lane, block, :, row] = values [*lanes, n, heads, dim] where the mask is true.

    Without a mask, where the row is not negative.

    Args:
        extremes: [2, 2], of the blocks and of the rows: widened by those that are used. What is out of range is left out.
    """
    if not values.numel():
        return
    if values.stride(-1) != 1:
        values = values.contiguous()
    outer, columns, blocks, heads, size, dim = cache.shape
    count = block.shape[-1]
    chosen = block if mask is None else mask.view(torch.uint8)
    side = min(ROWS, triton.next_power_of_2(count))
    _write_rows[(heads + 1, outer * columns, triton.cdiv(count, side))](
        *(cache, values, block, row, chosen, extremes, count, columns, blocks, heads, size, dim, *values.stride()[:4]),
        *(*block.stride(), *row.stride(), *chosen.stride(), mask is not None, side, triton.next_power_of_2(dim), NONE),
        num_warps=1 if side <= 8 else 4,
    )


def warm_up() -> None:
    """Compile and launch once: what cannot work here fails now."""
    cache, zeros = (
        torch.zeros((1, 1, 1, 1, 1, 16), device="cuda", dtype=torch.float32),
        torch.zeros((1, 1, 1), dtype=torch.int64, device="cpu").cuda(),
    )
    write_rows(cache, zeros, zeros, cache[:, :, 0], None, torch.zeros((2, 2), dtype=torch.int64, device="cuda"))
