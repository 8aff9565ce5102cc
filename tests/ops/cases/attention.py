"""Attention, heads, rotary embeddings and kv caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import (
    ROW_MAJOR_LAYOUT,
    BufferType,
    TensorMemoryLayout,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint32,
)
from ttmesh.ops.attention.sparse_attention import SparseKVFormat
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec

FLOATS = (bfloat16, float32, bfloat8_b)
HALF = (bfloat16,)
ATTENDED = (bfloat16, bfloat8_b)  # TT-NN takes no float32 over sequences


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(*shapes: tuple[int, ...], **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, *shape) for shape in shapes], options)


def ints(values: torch.Tensor) -> On:
    return On(values.to(torch.int32), int32, ROW_MAJOR_LAYOUT)


def pages(g: torch.Generator, users: int, per_user: int, blocks: int) -> On:
    return ints(torch.randperm(blocks, generator=g)[: users * per_user].reshape(users, per_user))


def masked(g: torch.Generator) -> Arguments:
    tensors = [normal(g, 2, 4, 33, 64), normal(g, 2, 2, 65, 64), normal(g, 2, 2, 65, 64)]
    return tensors, {"attn_mask": normal(g, 2, 1, 33, 65), "is_causal": False}


def sunk(g: torch.Generator) -> Arguments:
    tensors = [normal(g, 2, 4, 64, 32), normal(g, 2, 2, 64, 32), normal(g, 2, 2, 64, 32)]
    return tensors, {"attention_sink": normal(g, 1, 4, 1, 1)}


def packed(g: torch.Generator) -> Arguments:
    tensors, _ = args(*QKV)(g)
    middle = torch.randperm(63, generator=g)[:2].sort().values + 1
    return tensors, {"is_causal": False, "cu_window_seqlens": ints(torch.tensor([0, *middle, 64]))}


def chunk(g: torch.Generator) -> Arguments:
    caches = [normal(g, 9, 2, 32, 64) for _ in range(2)]
    return [normal(g, 2, 4, 32, 64), *caches, pages(g, 2, 4, 9), 64], {}


def decode(**options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, 1, 3, 8, 64), normal(g, 3, 2, 96, 64), normal(g, 3, 2, 96, 64)], options)


def decode_at_tensor(g: torch.Generator) -> Arguments:
    tensors, _ = decode()(g)
    return tensors, {"cur_pos_tensor": ints(torch.randint(0, 96, (3,), generator=g))}


def decode_masked(g: torch.Generator) -> Arguments:
    tensors, _ = decode()(g)
    return tensors, {"is_causal": False, "attn_mask": normal(g, 3, 1, 8, 96)}


def decode_window(g: torch.Generator) -> Arguments:
    tensors, _ = decode()(g)
    return tensors, {"cur_pos_tensor": ints(torch.tensor([5, -1, 90])), "sliding_window_size": 16, "scale": 0.3}


def decode_sunk(g: torch.Generator) -> Arguments:
    tensors, _ = decode()(g)
    return tensors, {"cur_pos": [0, 40, 95], "attention_sink": normal(g, 8, 32)}


def decode_ring(g: torch.Generator) -> Arguments:
    tensors, _ = decode_paged(g)
    return tensors, {"cur_pos_tensor": ints(torch.tensor([5, 63, 200])), "cache_position_modulo": 64}


def decode_paged(g: torch.Generator) -> Arguments:
    tensors = [normal(g, 1, 3, 8, 64), normal(g, 10, 2, 32, 64), normal(g, 10, 2, 32, 64), pages(g, 3, 3, 10)]
    return tensors, {"cur_pos_tensor": ints(torch.randint(0, 96, (3,), generator=g))}


def latent_decode(g: torch.Generator) -> Arguments:
    return [normal(g, 1, 2, 16, 96), normal(g, 2, 1, 64, 96), None, 64], {"cur_pos": [7, 63]}


def latent_paged(g: torch.Generator) -> Arguments:
    tensors = [normal(g, 1, 2, 16, 96), normal(g, 7, 1, 32, 96), None, 64, pages(g, 2, 3, 7)]
    return tensors, {"cur_pos_tensor": ints(torch.randint(0, 96, (2,), generator=g))}


def users(heads: int, count: int = 3, dim: int = 64, row: int = 0) -> MemoryConfig:
    cores = CoreRangeSet([CoreRange(CoreCoord(0, row), CoreCoord(count - 1, row))])
    return MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, ShardSpec(cores, (heads, dim)))


def blocks(rows: int, columns: int) -> MemoryConfig:
    cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(1, 1))])
    return MemoryConfig(TensorMemoryLayout.BLOCK_SHARDED, BufferType.L1, ShardSpec(cores, (rows, columns)))


def in_blocks(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], Arguments]:
    config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1)
    options = {"num_heads": 4, "num_kv_heads": 2, "memory_config": config}
    return lambda g: (
        [On(normal(g, *shape), memory_config=blocks(shape[2], shape[3] // 2)) for shape in shapes],
        options,
    )


def rotation() -> torch.Tensor:
    matrix = torch.zeros(1, 1, 32, 32)
    matrix[..., torch.arange(0, 32, 2), torch.arange(1, 32, 2)] = 1
    matrix[..., torch.arange(1, 32, 2), torch.arange(0, 32, 2)] = -1
    return matrix


def angles(g: torch.Generator, *shape: int) -> list[torch.Tensor]:
    angle = normal(g, *shape)
    return [angle.cos(), angle.sin()]


def llama(g: torch.Generator) -> Arguments:
    return [normal(g, 1, 4, 33, 64), *angles(g, 1, 1, 64, 64), rotation()], {}


def llama_decode(g: torch.Generator) -> Arguments:
    x = On(normal(g, 1, 3, 8, 64), memory_config=users(32))
    tables = [On(table, memory_config=users(32)) for table in angles(g, 1, 3, 32, 64)]
    return [x, *tables, On(rotation(), memory_config=users(32, 1, 32))], {"is_decode_mode": True}


def llama_fused(g: torch.Generator) -> Arguments:
    q = On(normal(g, 1, 3, 8, 64), memory_config=users(32))
    k = On(normal(g, 1, 3, 2, 64), memory_config=users(32, row=1))
    tables = [On(table, memory_config=users(32, 6)) for table in angles(g, 1, 6, 32, 64)]
    return [q, k, *tables, On(rotation().repeat(1, 1, 6, 1), memory_config=users(32, 6, 32))], {}


def updates(g: torch.Generator, *, paged: bool) -> Arguments:
    where = {"update_idxs_tensor": ints(torch.tensor([3, -1, 70]))}
    tokens = On(normal(g, 1, 3, 2, 64), memory_config=users(32))
    if not paged:
        return [normal(g, 3, 2, 96, 64), tokens], where
    return [normal(g, 10, 2, 32, 64), tokens], {**where, "page_table": pages(g, 3, 3, 10)}


def fill_pages(g: torch.Generator) -> Arguments:
    return [normal(g, 10, 2, 32, 64), normal(g, 1, 2, 50, 64), pages(g, 3, 3, 10)], {"batch_idx": 1}


def fused_updates(g: torch.Generator) -> Arguments:
    first, second = normal(g, 3, 2, 96, 64), normal(g, 3, 2, 96, 64)
    tokens = [On(normal(g, 1, 3, 2, 64), memory_config=users(32, row=row)) for row in range(2)]
    return [first, tokens[0], second, tokens[1]], {"update_idxs": [1, 2, 3]}


def hf_decode(g: torch.Generator) -> Arguments:
    return [normal(g, 1, 3, 8, 64), *angles(g, 1, 3, 32, 64)], {"is_decode_mode": True}


def distinct(g: torch.Generator, rows: int, width: int) -> torch.Tensor:
    """Scores that stay different in bfloat16, so that there is one right choice."""
    return torch.stack([torch.randperm(width, generator=g) for _ in range(rows)]).float() / 16 - 2


def routed(g: torch.Generator) -> Arguments:
    expert_mask, topk_mask = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 32)
    expert_mask[..., 48:], topk_mask[..., 20:] = float("-inf"), float("-inf")
    return [distinct(g, 33, 64).reshape(1, 1, 33, 64), expert_mask, topk_mask], {}


def gated(g: torch.Generator) -> Arguments:
    bias = torch.randperm(256, generator=g).float().reshape(1, 1, 1, 256) / 1024
    return [distinct(g, 9, 256).reshape(1, 1, 9, 256) / 4, bias.expand(1, 1, 9, 256).contiguous()], {"route_scale": 2.5}


def chosen_keys(g: torch.Generator, rows: int, keys: int) -> On:
    picks = torch.stack([torch.randperm(keys, generator=g)[:32] for _ in range(rows)])
    picks[0, 20:] = 0xFFFFFFFF  # no key
    return On(picks.reshape(1, 1, rows, 32), uint32, ROW_MAJOR_LAYOUT)


def sparse(g: torch.Generator) -> Arguments:
    q, kv = (On(normal(g, *shape), layout=ROW_MAJOR_LAYOUT) for shape in ((1, 32, 5, 96), (1, 1, 64, 96)))
    return [q, kv, chosen_keys(g, 5, 64), 64], {"kv_format": SparseKVFormat.BF16, "k_chunk_size": 32}


def sparse_slot(g: torch.Generator) -> Arguments:
    (q, _, picks, v_dim), options = sparse(g)
    cache = On(normal(g, 3, 1, 64, 96), layout=ROW_MAJOR_LAYOUT)
    return [q, cache, picks, v_dim], {**options, "cache_batch_idx": 2, "scale": 0.2}


SDPA = "ttnn.transformer.scaled_dot_product_attention"
QKV = ((2, 4, 64, 32), (2, 2, 64, 32), (2, 2, 64, 32))
CASES = [
    Case(SDPA, args(*QKV), ATTENDED, pcc=0.999),
    Case(f"{SDPA}/mask", masked, ATTENDED, pcc=0.999),
    Case(f"{SDPA}/window", args(*QKV, sliding_window_size=16, scale=0.2), ATTENDED, pcc=0.999),
    Case(f"{SDPA}/full", args(*QKV, is_causal=False), ATTENDED, pcc=0.999),
    Case(f"{SDPA}/sink", sunk, ATTENDED, pcc=0.999),
    Case(f"{SDPA}/window on both sides", args(*QKV, sliding_window_size=16, is_causal=False), ATTENDED, pcc=0.999),
    Case(f"{SDPA}/packed sequences", packed, ATTENDED, pcc=0.999),
    Case("ttnn.transformer.chunked_scaled_dot_product_attention", chunk, pcc=0.999),
    Case(
        "ttnn.transformer.joint_scaled_dot_product_attention",
        args(*[(1, 3, 40, 32)] * 3, *[(1, 3, 9, 32)] * 3, joint_strategy="rear", program_config=None),
        HALF,
        pcc=0.999,
    ),
    Case(f"{SDPA}_decode", decode(cur_pos=[0, 40, 95]), HALF, pcc=0.999),
    Case(f"{SDPA}_decode/tensor", decode_at_tensor, pcc=0.999),
    Case(f"{SDPA}_decode/mask", decode_masked, pcc=0.999),
    Case(f"{SDPA}_decode/window", decode_window, pcc=0.999),
    Case(f"{SDPA}_decode/sink", decode_sunk, pcc=0.999),
    Case("ttnn.transformer.paged_scaled_dot_product_attention_decode", decode_paged, pcc=0.999),
    Case("ttnn.transformer.paged_scaled_dot_product_attention_decode/ring", decode_ring, pcc=0.999),
    Case(
        "ttnn.transformer.flash_mla_prefill",
        lambda g: ([normal(g, 1, 4, 64, 96), normal(g, 1, 1, 64, 96), 64], {}),
        pcc=0.999,
    ),
    Case(
        "ttnn.transformer.flash_mla_prefill/values",
        lambda g: ([normal(g, 1, 4, 64, 96), normal(g, 1, 1, 64, 96), normal(g, 1, 4, 64, 32)], {}),
        pcc=0.999,
    ),
    Case(
        "ttnn.transformer.chunked_flash_mla_prefill",
        lambda g: ([normal(g, 1, 4, 32, 96), normal(g, 5, 1, 32, 96), 64, pages(g, 1, 3, 5), 32], {}),
        pcc=0.999,
    ),
    Case("ttnn.transformer.flash_multi_latent_attention_decode", latent_decode, pcc=0.999),
    Case("ttnn.transformer.paged_flash_multi_latent_attention_decode", latent_paged, pcc=0.999),
    Case("ttnn.transformer.split_query_key_value_and_split_heads", args((2, 33, 384), num_heads=4)),
    Case(
        "ttnn.transformer.split_query_key_value_and_split_heads/groups",
        args((2, 33, 256), (2, 33, 256), num_heads=4, num_kv_heads=2, transpose_key=False),
    ),
    Case("ttnn.transformer.concatenate_heads", args((2, 4, 33, 32))),
    Case("ttnn.experimental.nlp_create_qkv_heads", args((2, 1, 33, 512), num_heads=4, num_kv_heads=2)),
    Case("ttnn.experimental.nlp_create_qkv_heads_falcon7b", args((1, 1, 33, 73 * 64))),
    Case("ttnn.experimental.nlp_create_qkv_heads_vit", args((1, 1, 33, 2304))),
    Case("ttnn.experimental.nlp_create_qkv_heads_segformer", args((1, 1, 33, 96))),
    Case("ttnn.experimental.nlp_concat_heads", args((2, 4, 33, 32))),
    Case("ttnn.experimental.nlp_concat_heads_boltz", args((4, 33, 33, 32))),
    Case("ttnn.experimental.create_qkv_heads", in_blocks((2, 1, 32, 512)), placements=False),
    Case(
        "ttnn.experimental.create_qkv_heads_from_separate_tensors",
        in_blocks((2, 1, 32, 256), (2, 1, 32, 256)),
        placements=False,
    ),
    Case("ttnn.experimental.nlp_create_qkv_heads_decode", args((1, 1, 3, 512), num_heads=4, num_kv_heads=2)),
    Case(
        "ttnn.experimental.nlp_concat_heads_decode",
        lambda g: ([On(normal(g, 1, 3, 32, 64), memory_config=users(32))], {"num_heads": 4}),
    ),
    Case("ttnn.experimental.nlp_kv_cache_load_slice", args((2, 2, 96, 64), seq_len_start=32, seq_len_end=64)),
    Case("ttnn.experimental.rotate_half", args((2, 4, 33, 64))),
    Case("ttnn.experimental.rotary_embedding", lambda g: ([normal(g, 2, 4, 33, 64), *angles(g, 1, 1, 64, 64)], {})),
    Case(
        "ttnn.experimental.rotary_embedding/token",
        lambda g: ([normal(g, 1, 4, 32, 64), *angles(g, 1, 1, 64, 64), 9], {}),
    ),
    Case("ttnn.experimental.rotary_embedding_hf", lambda g: ([normal(g, 1, 4, 33, 64), *angles(g, 1, 1, 64, 64)], {})),
    Case("ttnn.experimental.rotary_embedding_llama", llama, HALF),
    Case("ttnn.experimental.rotary_embedding_llama/decode", llama_decode, HALF),
    Case("ttnn.experimental.rotary_embedding_llama_fused_qk", llama_fused, HALF),
    Case(
        "ttnn.fill_cache", lambda g: ([normal(g, 3, 2, 96, 64), normal(g, 1, 2, 40, 64), 1], {"update_idx": 32}), FLOATS
    ),
    Case("ttnn.kv_cache.fill_cache_for_user_", lambda g: ([normal(g, 3, 2, 96, 64), normal(g, 1, 2, 40, 64), 1], {})),
    Case("ttnn.update_cache", lambda g: ([normal(g, 3, 2, 96, 64), normal(g, 1, 2, 32, 64), 17], {}), FLOATS),
    Case(
        "ttnn.kv_cache.update_cache_for_token_", lambda g: ([normal(g, 3, 2, 96, 64), normal(g, 1, 2, 32, 64), 17], {})
    ),
    Case("ttnn.experimental.paged_update_cache", lambda g: updates(g, paged=False)),
    Case("ttnn.experimental.paged_update_cache/pages", lambda g: updates(g, paged=True)),
    Case("ttnn.experimental.paged_fill_cache", fill_pages, FLOATS),
    Case("ttnn.experimental.paged_fused_update_cache", fused_updates),
    Case(
        "ttnn.transformer.ring_distributed_scaled_dot_product_attention",
        args(*[(1, 4, 128, 32)] * 3, ring_size=2, ring_id=1),
        pcc=0.999,
    ),
    Case("ttnn.moe", routed, HALF, pcc=0.99),
    Case("ttnn.experimental.deepseek_grouped_gate", gated, HALF, pcc=0.98),
    Case(
        "ttnn.experimental.nlp_create_qkv_heads/tied", args((2, 1, 33, 320), num_heads=4, num_kv_heads=1, kv_tied=True)
    ),
    Case("ttnn.experimental.nlp_create_qkv_heads/narrow", args((2, 1, 33, 96), num_heads=2, num_kv_heads=1)),
    Case("ttnn.experimental.nlp_create_qkv_heads_boltz", args((1, 32, 32, 384), num_heads=4, transpose_k_heads=False)),
    Case(
        "ttnn.experimental.concatenate_heads",
        args((7, 16, 384, 64), compute_with_storage_grid_size=CoreCoord(8, 8)),
        ATTENDED,
        placements=False,
    ),
    Case(
        "ttnn.experimental.split_query_key_value_and_split_heads",
        args((7, 1, 32, 384), compute_with_storage_grid_size=CoreCoord(8, 8), num_heads=2),
        ATTENDED,
        placements=False,
    ),
    Case("ttnn.experimental.rotary_embedding_hf/decode", hf_decode),
    Case("ttnn.transformer.sparse_sdpa", sparse, HALF, pcc=0.999, system="p150x8"),
    Case("ttnn.transformer.sparse_sdpa/slot", sparse_slot, HALF, pcc=0.999, system="p150x8"),
]
