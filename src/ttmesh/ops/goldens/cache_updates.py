"""Filling and updating of key-value caches, contiguous and paged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def fill_cache(cache: Tensor, input: Tensor, batch_idx: int, *, update_idx: int = 0, **_: Any) -> Tensor:
    filled = cache.clone()
    filled[batch_idx, :, update_idx : update_idx + input.shape[-2]] = input[0]
    return filled


def update_cache(cache: Tensor, input: Tensor, update_idx: int, *, batch_offset: int = 0, **_: Any) -> Tensor:
    updated = cache.clone()
    users = min(cache.shape[0], input.shape[-2] - batch_offset)
    updated[:users, :, update_idx] = input[0, :, batch_offset : batch_offset + users].transpose(0, 1)
    return updated


def paged_update_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    *,
    update_idxs: Sequence[int] = (),
    update_idxs_tensor: Tensor | None = None,
    page_table: Tensor | None = None,
    share_cache: bool | None = None,
    **_: Any,
) -> Tensor:
    updated = cache_tensor.clone()
    positions = list(update_idxs) if update_idxs_tensor is None else update_idxs_tensor.flatten().tolist()
    heads, size = updated.shape[1:3]
    for user, position in enumerate(positions):
        if position < 0:
            continue
        block = 0 if share_cache else user
        if page_table is not None:
            block = int(page_table[user, position // size])
        updated[block, :, position % size if page_table is not None else position] = input_tensor[0, user, :heads]
    return updated


def paged_fused_update_cache(
    cache_tensor1: Tensor, input_tensor1: Tensor, cache_tensor2: Tensor, input_tensor2: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    first = paged_update_cache(cache_tensor1, input_tensor1, **options)
    return first, paged_update_cache(cache_tensor2, input_tensor2, **options)


def paged_fill_cache(
    cache_tensor: Tensor,
    input_tensor: Tensor,
    page_table: Tensor,
    *,
    batch_idx: int = 0,
    batch_idx_tensor: Tensor | None = None,
    **_: Any,
) -> Tensor:
    filled = cache_tensor.clone()
    size = filled.shape[2]
    for batch in range(input_tensor.shape[0]):
        user = batch_idx + batch if batch_idx_tensor is None else int(batch_idx_tensor.flatten()[batch])
        for token in range(input_tensor.shape[2]):
            block = int(page_table[user, token // size])
            if block >= 0:
                filled[block, :, token % size] = input_tensor[batch, :, token]
    return filled


def indexed_fused_update_cache(
    cache_tensor1: Tensor,
    input_tensor1: Tensor,
    cache_tensor2: Tensor,
    input_tensor2: Tensor,
    physical_update_idxs_tensor: Tensor,
) -> tuple[Tensor, Tensor]:
    caches = cache_tensor1.clone(), cache_tensor2.clone()
    for cache, values in zip(caches, (input_tensor1, input_tensor2), strict=True):
        for i in range(values.shape[2]):
            page, row = divmod(int(physical_update_idxs_tensor[0, i]), cache.shape[2])
            if 0 <= page < cache.shape[0]:
                cache[page, :, row] = values[0, :, i]
    return caches
