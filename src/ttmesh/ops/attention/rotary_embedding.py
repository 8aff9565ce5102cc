"""Rotary position embeddings in TT-NN's forms: rotated halves, and interleaved pairs by a transformation matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.ops.catalogue.definition import op
from ttmesh.tensor.calls.launch_op import Call

TILE = 32


def rotated_half(x: Lanes) -> Lanes:
    """(a, b) → (-b, a) for the two halves of the last dim."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def turned(x: Lanes, cos: Lanes, sin: Lanes) -> Lanes:
    """x·cos + rotated_half(x)·sin in float32."""
    wide = x.float()
    return wide * cos.float() + rotated_half(wide) * sin.float()


def _golden_half(x: Lanes) -> Lanes:
    """The columns of the other half, those of the second one with their sign changed."""
    half = x.shape[-1] // 2
    return torch.roll(x, half, dims=-1) * torch.tensor([-1.0] * half + [1.0] * half, device=x.device)


@op("ttnn.experimental.rotate_half", golden=lambda input, **_: _golden_half(input))
def rotate_half(input: Lanes) -> Lanes:
    """(a, b) → (-b, a) for the two halves of the last dim."""
    return rotated_half(input)


def _check_rotary(call: Call) -> None:
    x, cos, sin = call.specs[:3]
    if x.padded_shape[-1] % (2 * TILE):
        raise ShapeError(
            f"Input X dim ({x.shape[-1]}) must be divisible into tiles after halving",
            expected="a multiple of 64",
            fix="Pad the head size.",
        )
    if tuple(cos.shape) != tuple(sin.shape) or cos.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"Cos and Sin dims must match; got {cos.shape}, {sin.shape} for an input of {x.shape}",
            expected="equal shapes with the input's width",
            fix="Check the caches.",
        )


def _golden_rotary(
    input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, token_index: int | None = None, **_: Any
) -> Lanes:
    rows, half = input_tensor.shape[-2], _golden_half(input_tensor)
    result = input_tensor.new_zeros(*input_tensor.shape[:-2], -(-rows // TILE) * TILE, input_tensor.shape[-1])
    for row in range(rows):
        at = row if token_index is None else token_index
        result[..., row, :] = (
            input_tensor[..., row, :] * cos_cache[..., at, :] + half[..., row, :] * sin_cache[..., at, :]
        )
    return result


@op("ttnn.experimental.rotary_embedding", golden=_golden_rotary, check=_check_rotary, runtime=("token_index",))
def rotary_embedding(input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, token_index: int | None) -> Lanes:
    """x·cos + rotate_half(x)·sin, row by row, or all at one position."""
    rows = input_tensor.shape[-2]
    if token_index is None:
        cos, sin = (cache[..., :rows, :] for cache in (cos_cache, sin_cache))
    else:
        cos, sin = (cache[..., token_index : token_index + 1, :] for cache in (cos_cache, sin_cache))
    return F.pad(turned(input_tensor, cos, sin), (0, 0, 0, -rows % TILE))  # TT-NN's result has whole tiles of rows


def _of_users(cache: Lanes, users: int) -> Lanes:
    """cos or sin [.., 1, users.., 1 | 32, dim] of decode: one row per user, the same for all heads."""
    return cache[..., :users, :1, :]


def _golden_hf(
    input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, *, is_decode_mode: bool = False, **_: Any
) -> Lanes:
    half, result = _golden_half(input_tensor), torch.empty_like(input_tensor)
    if is_decode_mode:
        for user in range(input_tensor.shape[1]):
            cos, sin = cos_cache[0, user, 0], sin_cache[0, user, 0]
            result[:, user] = input_tensor[:, user] * cos + half[:, user] * sin
        return result
    for row in range(input_tensor.shape[2]):
        cos, sin = (cache[..., row, :] for cache in (cos_cache, sin_cache))
        result[:, :, row] = input_tensor[:, :, row] * cos + half[:, :, row] * sin
    return result


@op("ttnn.experimental.rotary_embedding_hf", golden=_golden_hf)
def rotary_embedding_hf(input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, is_decode_mode: bool) -> Lanes:
    """x·cos + rotate_half(x)·sin for prefill [1, heads, rows, dim] or decode [1, users, heads, dim]."""
    if is_decode_mode:
        users = input_tensor.shape[-3]
        return turned(input_tensor, _of_users(cos_cache, users), _of_users(sin_cache, users))
    rows = input_tensor.shape[-2]
    return turned(input_tensor, cos_cache[..., :rows, :], sin_cache[..., :rows, :])


def _mixed(x: Lanes, trans_mat: Lanes) -> Lanes:
    """x times a 32x32 matrix, 32 columns at a time: (x0, x1) → (-x1, x0) for TT-NN's matrix."""
    matrix = trans_mat[..., :TILE, :TILE].float()
    pieces = torch.unflatten(x.float(), -1, (-1, TILE))
    matrix = matrix.unsqueeze(-3) if matrix.dim() < pieces.dim() else matrix
    return (pieces @ matrix).flatten(-2)


def by_pairs(x: Lanes, cos: Lanes, sin: Lanes, trans_mat: Lanes) -> Lanes:
    """x·cos + (x·T)·sin in float32."""
    return x.float() * cos.float() + _mixed(x, trans_mat) * sin.float()


def _llama(x: Lanes, cos: Lanes, sin: Lanes, trans_mat: Lanes, is_decode_mode: bool) -> Lanes:
    if is_decode_mode:
        cos, sin = _of_users(cos, x.shape[-3]), _of_users(sin, x.shape[-3])
    else:
        cos, sin = cos[..., : x.shape[-2], :], sin[..., : x.shape[-2], :]
    return by_pairs(x, cos, sin, trans_mat)


def _check_llama(call: Call) -> None:
    if any(spec.dtype is not DataType.BFLOAT16 for spec in call.specs):
        raise MeshError(
            f"All input tensors must have dtype = bfloat16; got {[spec.dtype for spec in call.specs]}",
            expected="bfloat16",
            fix="Typecast them.",
        )
    if call["is_decode_mode"] and any(spec.memory_config.interleaved for spec in call.specs[:1]):
        raise MeshError(
            "Sharded inputs for RoPE must be HEIGHT_SHARDED. Decode mode needs a height-sharded input",
            expected="a HEIGHT_SHARDED input",
            fix="Shard the input, one user per core.",
        )


def _golden_llama(
    input_tensor: Lanes,
    cos_cache: Lanes,
    sin_cache: Lanes,
    trans_mat: Lanes,
    *,
    is_decode_mode: bool = False,
    **_: Any,
) -> Lanes:
    pairs = torch.stack([-input_tensor[..., 1::2], input_tensor[..., ::2]], dim=-1).flatten(-2)
    cos, sin = cos_cache, sin_cache
    if is_decode_mode:
        users = input_tensor.shape[-3]
        cos, sin = _of_users(cos, users), _of_users(sin, users)
    rows = slice(None) if is_decode_mode else slice(input_tensor.shape[-2])
    return input_tensor * cos[..., rows, :] + pairs * sin[..., rows, :]


@op("ttnn.experimental.rotary_embedding_llama", golden=_golden_llama, check=_check_llama)
def rotary_embedding_llama(
    input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, trans_mat: Lanes, is_decode_mode: bool
) -> Lanes:
    """x·cos + (x·T)·sin with interleaved pairs, for prefill or decode."""
    return _llama(input_tensor, cos_cache, sin_cache, trans_mat, is_decode_mode)


def _golden_fused(
    q_input_tensor: Lanes, k_input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, trans_mat: Lanes, **_: Any
) -> tuple[Lanes, Lanes]:
    users = q_input_tensor.shape[-3]
    return (
        _golden_llama(q_input_tensor, cos_cache, sin_cache, trans_mat, is_decode_mode=True),
        _golden_llama(
            k_input_tensor, cos_cache[..., users:, :, :], sin_cache[..., users:, :, :], trans_mat, is_decode_mode=True
        ),
    )


@op(
    "ttnn.experimental.rotary_embedding_llama_fused_qk",
    golden=_golden_fused,
    out=lambda call, inferred: list(call.specs[:2]),
)
def rotary_embedding_llama_fused_qk(
    q_input_tensor: Lanes, k_input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, trans_mat: Lanes
) -> tuple[Lanes, Lanes]:
    """`rotary_embedding_llama` of queries and keys in decode; the caches hold rows for q, then rows for k."""
    users = q_input_tensor.shape[-3]
    return (
        _llama(q_input_tensor, cos_cache, sin_cache, trans_mat, True),
        _llama(k_input_tensor, cos_cache[..., users:, :, :], sin_cache[..., users:, :, :], trans_mat, True),
    )
