"""Rotary position embeddings in TT-NN's forms: rotated halves, and interleaved pairs by a transformation matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import fpu
from ttmesh.ops.attention.rope_rules import check_fused, check_llama, check_rotary
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import rope as goldens
from ttmesh.ops.stages.conversion_stages import tilized_operands_stages
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32


def rotate_halves(x: Lanes) -> Lanes:
    """(a, b) → (-b, a) for the two halves of the last dim."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def apply_rotary(x: Lanes, cos: Lanes, sin: Lanes) -> Lanes:
    """x·cos + rotate_halves(x)·sin in float32."""
    widened = x.float()
    return widened * cos.float() + rotate_halves(widened) * sin.float()


@op("ttnn.experimental.rotate_half", golden=goldens.rotate_half)
def rotate_half(input: Lanes) -> Lanes:
    """(a, b) → (-b, a) for the two halves of the last dim."""
    return rotate_halves(input)


def _rotated_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Tiles, in the shards of a sharded input."""
    config, held = call["memory_config"] or call.specs[0].memory_config, call.specs[0].memory_config
    if config.is_sharded() and held.shard_spec is not None:
        config = MemoryConfig(config.memory_layout, config.buffer_type, held.shard_spec)
    return [make_output_spec(call, inferred[0][0], layout=Layout.TILE, memory_config=config)]


@op(
    "ttnn.experimental.rotary_embedding",
    golden=goldens.rotary_embedding,
    check=check_rotary,
    out=_rotated_spec,
    stages=tilized_operands_stages,
    runtime=("token_index",),
    recheck=True,
)
def rotary_embedding(input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, token_index: int | None) -> Lanes:
    """x·cos + rotate_half(x)·sin, row by row, or all at one position."""
    rows, missing = input_tensor.shape[-2], -input_tensor.shape[-1] % TILE
    if missing:  # what is rotated is a whole tile
        input_tensor, cos_cache, sin_cache = (F.pad(x, (0, missing)) for x in (input_tensor, cos_cache, sin_cache))
    if token_index is None:
        cos, sin = (cache[..., :rows, :] for cache in (cos_cache, sin_cache))
    else:
        cos, sin = (cache[..., token_index : token_index + 1, :] for cache in (cos_cache, sin_cache))
    return F.pad(apply_rotary(input_tensor, cos, sin), (0, 0, 0, -rows % TILE))  # TT-NN pads the rows to full tiles


def _select_user_rows(cache: Lanes, users: int) -> Lanes:
    """cos or sin [.., 1, users, 1, dim] of decode from a padded cache: one row per user, the same for all heads."""
    return cache[..., :users, :1, :]


@op("ttnn.experimental.rotary_embedding_hf", golden=goldens.rotary_embedding_hf)
def rotary_embedding_hf(input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, is_decode_mode: bool) -> Lanes:
    """x·cos + rotate_half(x)·sin for prefill [1, heads, rows, dim] or decode [1, users, heads, dim]."""
    if is_decode_mode:
        users = input_tensor.shape[-3]
        return apply_rotary(input_tensor, _select_user_rows(cos_cache, users), _select_user_rows(sin_cache, users))
    rows = input_tensor.shape[-2]
    return apply_rotary(input_tensor, cos_cache[..., :rows, :], sin_cache[..., :rows, :])


def _multiply_by_tile(x: Lanes, trans_mat: Lanes) -> Lanes:
    """x times a 32x32 matrix, 32 columns at a time: (x0, x1) → (-x1, x0) for TT-NN's matrix."""
    matrix = trans_mat[..., :1, :TILE, :TILE].float()  # repeated for every user in shards
    column_blocks = torch.unflatten(x.float(), -1, (-1, TILE))
    matrix = matrix.unsqueeze(-3) if matrix.dim() < column_blocks.dim() else matrix
    return fpu.matmul(column_blocks, matrix, k_block=TILE).flatten(-2)


def apply_pair_rotary(x: Lanes, cos: Lanes, sin: Lanes, trans_mat: Lanes) -> Lanes:
    """x·cos + (x·T)·sin in float32."""
    rotated = fpu.keep(_multiply_by_tile(x, trans_mat))
    return fpu.add(fpu.multiply(x.float(), cos.float()), fpu.multiply(rotated, sin.float()))


def _match_rows(table: Lanes, rows: int) -> Lanes:
    """The first rows of a table; TT-NN takes a shorter one too and reads past its end; here that gives zeros."""
    return F.pad(table[..., :rows, :], (0, 0, 0, max(rows - table.shape[-2], 0)))


def _apply_llama_rotary(x: Lanes, cos: Lanes, sin: Lanes, trans_mat: Lanes, is_decode_mode: bool) -> Lanes:
    return apply_pair_rotary(x, *_select_rows(x, cos, sin, is_decode_mode), trans_mat)


def _select_rows(x: Lanes, cos: Lanes, sin: Lanes, is_decode_mode: bool) -> tuple[Lanes, Lanes]:
    """The rows of both tables that belong to x."""
    if is_decode_mode:
        return _select_user_rows(cos, x.shape[-3]), _select_user_rows(sin, x.shape[-3])
    return _match_rows(cos, x.shape[-2]), _match_rows(sin, x.shape[-2])


def _specialise_llama(case: Case) -> Callable[..., Lanes] | None:
    """On a GPU one kernel for bfloat16."""
    if not case.one_format(DataType.BFLOAT16):
        return None
    is_decode_mode = case["is_decode_mode"]

    def rotate(x: Lanes, cos: Lanes, sin: Lanes, trans_mat: Lanes) -> Lanes:
        cos, sin = _select_rows(x, cos, sin, is_decode_mode)
        kernels = find_gpu_kernels("gpu_decoding") if x.is_cuda else None
        rotated = None if kernels is None else kernels.rotate_pairs(x, cos, sin, trans_mat)
        return apply_pair_rotary(x, cos, sin, trans_mat) if rotated is None else rotated

    return rotate


@op(
    "ttnn.experimental.rotary_embedding_llama",
    golden=goldens.rotary_embedding_llama,
    check=check_llama,
    specialise=_specialise_llama,
)
def rotary_embedding_llama(
    input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, trans_mat: Lanes, is_decode_mode: bool
) -> Lanes:
    """x·cos + (x·T)·sin with interleaved pairs, for prefill or decode."""
    return _apply_llama_rotary(input_tensor, cos_cache, sin_cache, trans_mat, is_decode_mode)


@op(
    "ttnn.experimental.rotary_embedding_llama_fused_qk",
    golden=goldens.rotary_embedding_llama_fused_qk,
    check=check_fused,
    out=lambda call, inferred: list(call.specs[:2]),
)
def rotary_embedding_llama_fused_qk(
    q_input_tensor: Lanes, k_input_tensor: Lanes, cos_cache: Lanes, sin_cache: Lanes, trans_mat: Lanes
) -> tuple[Lanes, Lanes]:
    """`rotary_embedding_llama` of queries and keys in decode; the caches hold rows for q, then rows for k."""
    users = q_input_tensor.shape[-3]
    return (
        _apply_llama_rotary(q_input_tensor, cos_cache, sin_cache, trans_mat, True),
        _apply_llama_rotary(
            k_input_tensor, cos_cache[..., users:, :, :], sin_cache[..., users:, :, :], trans_mat, True
        ),
    )
