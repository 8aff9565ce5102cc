"""Rotary position embeddings, element by element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TILE = 32


def rotate_half(input: Tensor, **_: Any) -> Tensor:
    """The negated second half, then the first half."""
    first, second = input.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotary_embedding(
    input_tensor: Tensor, cos_cache: Tensor, sin_cache: Tensor, token_index: int | None = None, **_: Any
) -> Tensor:
    rows, half = input_tensor.shape[-2], rotate_half(input_tensor)
    result = input_tensor.new_zeros(*input_tensor.shape[:-2], -(-rows // TILE) * TILE, input_tensor.shape[-1])
    for row in range(rows):
        position = row if token_index is None else token_index
        result[..., row, :] = (
            input_tensor[..., row, :] * cos_cache[..., position, :] + half[..., row, :] * sin_cache[..., position, :]
        )
    return result


def rotary_embedding_hf(
    input_tensor: Tensor, cos_cache: Tensor, sin_cache: Tensor, *, is_decode_mode: bool = False, **_: Any
) -> Tensor:
    half, result = rotate_half(input_tensor), torch.empty_like(input_tensor)
    if is_decode_mode:
        for user in range(input_tensor.shape[1]):
            cos, sin = cos_cache[0, user, 0], sin_cache[0, user, 0]
            result[:, user] = input_tensor[:, user] * cos + half[:, user] * sin
        return result
    for row in range(input_tensor.shape[2]):
        cos, sin = (cache[..., row, :] for cache in (cos_cache, sin_cache))
        result[:, :, row] = input_tensor[:, :, row] * cos + half[:, :, row] * sin
    return result


def rotary_embedding_llama(
    input_tensor: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    trans_mat: Tensor,
    *,
    is_decode_mode: bool = False,
    **_: Any,
) -> Tensor:
    """x cos + (x rotated) sin; the matrix rotates every tile of columns. Decode takes one row per user, for all heads."""
    matrix = trans_mat.reshape(-1, TILE)[:TILE]
    rotated = torch.cat([columns @ matrix for columns in torch.split(input_tensor, TILE, -1)], -1)
    result = torch.empty_like(input_tensor)
    if is_decode_mode:
        for user in range(input_tensor.shape[-3]):
            cos, sin = cos_cache[0, user, 0], sin_cache[0, user, 0]
            result[:, user] = input_tensor[:, user] * cos + rotated[:, user] * sin
        return result
    for row in range(input_tensor.shape[-2]):
        cos, sin = (cache[..., row, :] for cache in (cos_cache, sin_cache))
        result[..., row, :] = input_tensor[..., row, :] * cos + rotated[..., row, :] * sin
    return result


def rotary_embedding_llama_fused_qk(
    q_input_tensor: Tensor, k_input_tensor: Tensor, cos_cache: Tensor, sin_cache: Tensor, trans_mat: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    users = q_input_tensor.shape[-3]
    return (
        rotary_embedding_llama(q_input_tensor, cos_cache, sin_cache, trans_mat, is_decode_mode=True),
        rotary_embedding_llama(
            k_input_tensor, cos_cache[..., users:, :, :], sin_cache[..., users:, :, :], trans_mat, is_decode_mode=True
        ),
    )
