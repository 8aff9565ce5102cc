"""Circular buffers of what stands around attention: heads, rotary embeddings, kv caches."""

from __future__ import annotations

from ttmesh.base.dtypes import Arch
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    FLOAT32,
    TILE,
    align,
    columns,
    has_float32_sums,
    in_l1_shards,
    page_of,
    row_bytes,
)
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule

INDEX_BYTES = 4096
UPDATED_USERS = 32  # whose rows share a tile


@buffer_rule("nlp_create_qkv_heads", "split_query_key_value_and_split_heads", "create_qkv_heads")
def create_heads_buffers(program: ProgramCall) -> int:
    """Two heads of tiles; where keys are transposed, three buffers of four tiles."""
    spec, result = program.inputs[0], program.results[0]
    if in_l1_shards(spec) and in_l1_shards(result):
        return 0
    transposed = program.options.get("transpose_k_heads", program.options.get("transpose_key", True))
    if transposed is None or transposed:
        return 12 * page_of(spec)
    return 2 * columns(result) * page_of(spec)


@buffer_rule("nlp_concat_heads", "concatenate_heads")
def concat_heads_buffers(program: ProgramCall) -> int:
    """Two rows of tiles of the result."""
    spec, result = program.inputs[0], program.results[0]
    return 0 if in_l1_shards(spec) and in_l1_shards(result) else 2 * columns(result) * page_of(spec)


@buffer_rule("nlp_create_qkv_heads_decode")
def decode_heads_buffers(program: ProgramCall) -> int:
    """The shards are the buffers; on Blackhole rows pass through two aligned ones where the input has none."""
    spec, result = program.inputs[0], program.results[0]
    if program.arch is not Arch.BLACKHOLE or in_l1_shards(spec):
        return 0
    return 2 * ((result.shape[-1] if result.shape else 1) * 2 + 64)


@buffer_rule("nlp_create_qkv_heads_falcon7b")
def falcon_heads_buffers(program: ProgramCall) -> int:
    """Two rows of tiles."""
    return 2 * columns(program.inputs[0]) * page_of(program.inputs[0])


@buffer_rule("rotary_embedding")
def rotary_buffers(program: ProgramCall) -> int:
    """Two rows of tiles of the input, of its other half, of both tables and of the result."""
    spec, result = program.inputs[0], program.results[0]
    tables = program.inputs[1:3] or (spec, spec)
    inner = FLOAT32 if has_float32_sums(program, False) else BFLOAT16
    wide = columns(spec)
    shards = in_l1_shards(spec)
    own = 0 if shards else 2 * wide * page_of(spec)
    made = 0 if shards and in_l1_shards(result) else 2 * wide * page_of(result)
    size = own + 2 * wide * page_of(spec) + sum(2 * wide * page_of(table) for table in tables) + made
    return size + BFLOAT16 + page_of(spec) + 2 * inner


@buffer_rule("rotary_embedding_llama", "rotary_embedding_llama_fused_qk", "rotary_embedding_indexed")
def llama_rotary_buffers(program: ProgramCall) -> int:
    """Three rows of tiles on the way; of tensors without shards, two of each and one more of the input."""
    spec, result = program.inputs[0], program.results[0]
    wide = columns(spec)
    if in_l1_shards(spec):
        return 3 * wide * BFLOAT16
    tables = program.inputs[1:3] or (spec, spec)
    size = 2 * wide * (page_of(spec) + page_of(result) + sum(map(page_of, tables)))
    return size + BFLOAT16 + 4 * wide * page_of(spec)


@buffer_rule("paged_update_cache", "paged_fused_update_cache", "paged_fused_update_cache second half")
def update_paged_cache_buffers(program: ProgramCall) -> int:
    """A row of tiles of the cache, as tiles and as rows, for every user."""
    cache, given = program.inputs[0], program.inputs[min(1, len(program.inputs) - 1)]
    wide, users = columns(cache), max(given.shape[1] if len(given.shape) > 2 else 1, 1)
    inner = FLOAT32 if has_float32_sums(program, False) else BFLOAT16
    size = 2 * wide * page_of(cache) + 4 * wide * inner + users * wide * page_of(cache)
    if program.options.get("update_idxs_tensor") is not None:
        size += INDEX_BYTES
    return size + _table_bytes(program)


def _table_bytes(program: ProgramCall) -> int:
    table = getattr(program.options.get("page_table"), "spec", None)
    return 0 if table is None else align((table.shape[-1] if table.shape else 1) * 4, 32)


@buffer_rule("paged_fill_cache")
def fill_paged_cache_buffers(program: ProgramCall) -> int:
    """Two rows of tiles, and the table of pages."""
    spec = program.inputs[0]
    table = program.inputs[2] if len(program.inputs) > 2 else None
    return 2 * columns(spec) * page_of(spec) + (0 if table is None else row_bytes(table, program.arch))


@buffer_rule("fill_cache", "fill_cache_for_user")
def fill_cache_buffers(program: ProgramCall) -> int:
    """Two tiles."""
    return 2 * page_of(program.inputs[0])


@buffer_rule("update_cache", "update_cache_for_token")
def update_cache_buffers(program: ProgramCall) -> int:
    """Four rows of tiles of the cache, two of the input, four on the way, and one for every user."""
    cache, given = program.inputs[0], program.inputs[min(1, len(program.inputs) - 1)]
    wide = columns(cache)
    inner = FLOAT32 if has_float32_sums(program, False) else BFLOAT16
    users = align(max(cache.shape[0] if cache.shape else 1, 1), TILE) if cache.shape else UPDATED_USERS
    own = 0 if in_l1_shards(given) else 2 * wide * page_of(given)
    return 4 * wide * page_of(cache) + own + 8 * wide * inner + min(users, UPDATED_USERS) * wide * page_of(cache)


@buffer_rule("minimal_matmul")
def minimal_matmul_buffers(program: ProgramCall) -> int:
    """Two blocks of both operands and of the result, one of sums, and a row of the bias."""
    return _size_blocks(program, results=2)


@buffer_rule("minimal_matmul gathered")
def gathered_matmul_buffers(program: ProgramCall) -> int:
    """One block of the result."""
    return _size_blocks(program, results=1)


def _size_blocks(program: ProgramCall, results: int) -> int:
    a, b, result = program.inputs[0], program.inputs[min(1, len(program.inputs) - 1)], program.results[0]
    config = program.options.get("config")
    m, k, n = (int(getattr(config, f"{side}_block_size", None) or 8) for side in "MKN")
    sums = FLOAT32 if has_float32_sums(program, True) else BFLOAT16
    bias = getattr(program.options.get("bias_tensor"), "spec", None)
    made = m * n // 2 if program.options.get("fuse_swiglu") else m * n  # gate and up become one
    size = 2 * (m * k * page_of(a) + k * n * page_of(b)) + results * made * page_of(result) + m * n * sums
    return size + (0 if bias is None else n * page_of(bias))
