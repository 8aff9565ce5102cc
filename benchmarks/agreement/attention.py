"""Calls of attention, heads, rotary embeddings, caches, routers and recurrent layers."""

from __future__ import annotations

from calls import Call, Draw, Operand, operation
from models import grid


@operation(
    "transformer.scaled_dot_product_attention",
    "transformer.chunked_scaled_dot_product_attention",
    "transformer.joint_scaled_dot_product_attention",
    "transformer.scaled_dot_product_attention_decode",
    "transformer.paged_scaled_dot_product_attention_decode",
    "transformer.flash_mla_prefill",
    "transformer.chunked_flash_mla_prefill",
    "transformer.flash_multi_latent_attention_decode",
    "transformer.paged_flash_multi_latent_attention_decode",
    "transformer.sparse_sdpa",
    "transformer.sparse_sdpa_msa",
    "transformer.ring_distributed_scaled_dot_product_attention",
    "experimental.indexer_score_dsa",
    "experimental.indexer_score_msa",
)
def attention(draw: Draw) -> Call:
    name = draw.name.rpartition(".")[2]
    dtype = draw.dtype("bf16", "bf16", "bf16", "bf8", "f32")
    users, heads, kv, width = draw.size(1, 2, 3), draw.size(4, 8), draw.size(1, 2), draw.size(32, 64, 128)
    length, placed = draw.size(32, 64, 128), draw.placed(0.15)
    if name in ("scaled_dot_product_attention", "ring_distributed_scaled_dot_product_attention"):
        q, k = draw.plain((users, heads, length, width), dtype), draw.plain((users, kv, length, width), dtype)
        operands = {"q": q, "k": k, "v": Operand(k.shape, k.dtype, k.layout, k.memory)}
        if name.startswith("ring"):
            return draw.call(operands, "q", "k", "v", ring_size=2, ring_id=draw.pick(0, 1))
        keywords = dict(placed) | {"is_causal": str(draw.pick("True", "True", "False"))}
        if keywords["is_causal"] == "False" and draw.chance(0.6):
            operands["m"], keywords["attn_mask"] = (
                draw.plain((users, 1, length, length), draw.dtype("bf16", "bf8"), "DRAM"),
                "m",
            )
        if draw.chance(0.2):
            keywords["sliding_window_size"] = "16"
        return draw.call(operands, "q", "k", "v", **keywords)
    if name == "joint_scaled_dot_product_attention":
        q, j = (
            draw.plain((1, 3, length, width), dtype, "DRAM"),
            draw.plain((1, 3, draw.size(9, 32), width), dtype, "DRAM"),
        )
        config = (
            f"ttnn.SDPAProgramConfig(compute_with_storage_grid_size={grid(draw)}, q_chunk_size=32, k_chunk_size=32)"
        )
        return draw.call({"q": q, "j": j}, "q", "q", "q", "j", "j", "j", joint_strategy="'rear'", program_config=config)
    blocks, per_user = draw.size(9, 10), draw.size(2, 3)
    table = Operand((users, per_user), "i32", "RM")
    position = Operand((users,), "i32", "RM")
    if name == "chunked_scaled_dot_product_attention":
        cache = draw.plain((blocks, kv, 32, width), dtype, "DRAM")
        operands = {"q": draw.plain((users, heads, 32, width), dtype, "DRAM"), "k": cache, "v": cache, "g": table}
        return draw.call(operands, "q", "k", "v", "g", draw.size(0, 32))
    if name == "scaled_dot_product_attention_decode":
        cache = draw.plain((users, kv, length, width), dtype, "DRAM")
        operands = {"q": draw.plain((1, users, heads, width), dtype), "k": cache, "v": cache, "p": position}
        where = {"cur_pos": list(range(users))} if draw.chance(0.5) else {"cur_pos_tensor": "p"}
        return draw.call(operands, "q", "k", "v", **where, **placed)
    if name == "paged_scaled_dot_product_attention_decode":
        cache = draw.plain((blocks, kv, 32, width), dtype, "DRAM")
        operands = {"q": draw.plain((1, users, heads, width), dtype), "k": cache, "v": cache, "g": table, "p": position}
        return draw.call(operands, "q", "k", "v", "g", cur_pos_tensor="p", **placed)
    if name == "flash_mla_prefill":
        operands = {
            "q": draw.plain((1, heads, length, 96), dtype, "DRAM"),
            "k": draw.plain((1, 1, length, 96), dtype, "DRAM"),
        }
        return draw.call(operands, "q", "k", draw.size(32, 64), is_causal=draw.pick(None, "True"), **placed)
    if name == "chunked_flash_mla_prefill":
        operands = {
            "q": draw.plain((1, heads, 32, 96), dtype, "DRAM"),
            "k": draw.plain((5, 1, 32, 96), dtype, "DRAM"),
            "g": Operand((1, per_user), "i32", "RM"),
        }
        return draw.call(operands, "q", "k", 64, "g", 32)
    if name == "flash_multi_latent_attention_decode":
        operands = {
            "q": draw.plain((1, users, 16, 96), dtype),
            "k": draw.plain((users, 1, 64, 96), dtype, "DRAM"),
            "p": position,
        }
        where = {"cur_pos": list(range(users))} if draw.chance(0.5) else {"cur_pos_tensor": "p"}
        return draw.call(operands, "q", "k", "None", draw.size(32, 64), **where)
    if name == "paged_flash_multi_latent_attention_decode":
        operands = {
            "q": draw.plain((1, users, 16, 96), dtype),
            "k": draw.plain((blocks, 1, 32, 96), dtype, "DRAM"),
            "g": table,
            "p": position,
        }
        return draw.call(operands, "q", "k", "None", 64, "g", cur_pos_tensor="p")
    rows = draw.size(5, 8)
    if name == "sparse_sdpa":
        operands = {
            "q": draw.rows((1, 32, rows, 96)),
            "k": draw.rows((1, 1, 64, 96)),
            "i": Operand((1, 1, rows, 32), "u32", "RM"),
        }
        return draw.call(operands, "q", "k", "i", 64, kv_format="ttnn.SparseKVFormat.BF16")
    if name == "sparse_sdpa_msa":
        operands = {
            "q": draw.rows((1, 32, 8, 64)),
            "k": draw.plain((1, 2, 128, 64), "bf16"),
            "v": draw.plain((1, 2, 128, 32), "bf16"),
            "i": Operand((1, 2, 8, 4), "u32", "RM"),
        }
        return draw.call(operands, "q", "k", "v", "i", block_size=32)
    operands = {
        "q": draw.plain((1, heads, 64, width), dtype),
        "k": draw.plain((1, 1, 128, width), dtype),
        "w": draw.plain((1, heads, 64, 1), dtype),
    }
    if name == "indexer_score_dsa":
        return draw.call(operands, "q", "k", "w", chunk_start_idx=draw.pick(None, 64))
    operands.pop("w")
    return draw.call(
        operands, "q", "k", num_groups=1, block_size=draw.pick(None, 32), chunk_start_idx=draw.pick(None, 64)
    )


@operation(
    "transformer.split_query_key_value_and_split_heads",
    "transformer.concatenate_heads",
    "experimental.nlp_create_qkv_heads",
    "experimental.nlp_create_qkv_heads_falcon7b",
    "experimental.nlp_create_qkv_heads_vit",
    "experimental.nlp_create_qkv_heads_segformer",
    "experimental.nlp_create_qkv_heads_boltz",
    "experimental.nlp_create_qkv_heads_decode",
    "experimental.nlp_concat_heads",
    "experimental.nlp_concat_heads_boltz",
    "experimental.nlp_concat_heads_decode",
    "experimental.create_qkv_heads",
    "experimental.concatenate_heads",
    "experimental.create_qkv_heads_from_separate_tensors",
    "experimental.split_query_key_value_and_split_heads",
    "experimental.nlp_kv_cache_load_slice",
    "experimental.rotate_half",
)
def heads(draw: Draw) -> Call:
    name = draw.name.rpartition(".")[2]
    dtype, placed = draw.dtype("bf16", "bf16", "bf16", "bf8", "f32"), draw.placed(0.2)
    batch, rows, count, width = draw.size(1, 2), draw.size(32, 33, 64), draw.size(2, 4), draw.size(32, 64)
    if name == "split_query_key_value_and_split_heads" and draw.name.startswith("transformer"):
        return draw.call(
            {"x": draw.plain((batch, rows, 3 * count * width), dtype)},
            "x",
            num_heads=count,
            transpose_key=draw.pick(None, "False"),
            **placed,
        )
    if name == "split_query_key_value_and_split_heads":
        return draw.call(
            {"x": draw.plain((7, 1, 32, 384), dtype)},
            "x",
            compute_with_storage_grid_size=grid(draw),
            num_heads=2,
            **placed,
        )
    if draw.name == "experimental.concatenate_heads":
        return draw.call(
            {"x": draw.plain((draw.size(7, 8, 2), draw.size(16, 16, 4), draw.size(384, 32), 64), dtype)},
            "x",
            compute_with_storage_grid_size=grid(draw),
            **placed,
        )
    if name in ("concatenate_heads", "nlp_concat_heads"):
        return draw.call({"x": draw.operand((batch, count, rows, width), dtype, rows=0.03, sharded=0.1)}, "x", **placed)
    if name == "nlp_concat_heads_boltz":
        return draw.call({"x": draw.plain((count, rows, rows, 32), dtype)}, "x", **placed)
    if name == "nlp_create_qkv_heads":
        kv = draw.size(1, 2)
        return draw.call(
            {"x": draw.plain((batch, 1, rows, (count + 2 * kv) * width), dtype)},
            "x",
            num_heads=count,
            num_kv_heads=kv,
            transpose_k_heads=draw.pick(None, "False"),
            **placed,
        )
    if name == "nlp_create_qkv_heads_boltz":
        return draw.call(
            {"x": draw.plain((1, 32, 32, 3 * count * 32), dtype)},
            "x",
            num_heads=count,
            transpose_k_heads="False",
            **placed,
        )
    widths = {
        "nlp_create_qkv_heads_falcon7b": 73 * 64,
        "nlp_create_qkv_heads_vit": 2304,
        "nlp_create_qkv_heads_segformer": draw.size(32, 96),
    }
    if name in widths:
        return draw.call({"x": draw.plain((1, 1, rows, widths[name]), dtype)}, "x", **placed)
    users = draw.size(1, 3, 8)
    if name == "nlp_create_qkv_heads_decode":
        return draw.call(
            {"x": draw.plain((1, 1, users, (count + 4) * width), dtype)},
            "x",
            num_heads=count,
            num_kv_heads=2,
            overlap_qk_coregrid=draw.pick(None, "False"),
        )
    if name == "nlp_concat_heads_decode":
        return draw.call(
            {"x": Operand((1, users, 32, width), dtype, "TILE", f"shards('h', (32, {width}), {users}, 1)")},
            "x",
            num_heads=count,
        )
    if name.startswith("create_qkv_heads"):
        shards = "shards('b', ({}, {}), 2, 2)"
        memory = "ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG"
        if name == "create_qkv_heads":
            return draw.call(
                {"x": Operand((2, 1, 32, 512), dtype, "TILE", shards.format(32, 256))},
                "x",
                num_heads=4,
                num_kv_heads=2,
                memory_config=memory,
                transpose_k_heads=draw.pick(None, "False"),
            )
        operands = {key: Operand((2, 1, 32, 256), dtype, "TILE", shards.format(32, 128)) for key in ("x", "y")}
        return draw.call(
            operands,
            "x",
            "y",
            num_heads=4,
            num_kv_heads=2,
            memory_config=memory,
            transpose_k_heads=draw.pick(None, "False"),
        )
    if name == "rotate_half":
        return draw.call({"x": draw.plain((batch, count, rows, draw.size(64, 128)), dtype)}, "x", **placed)
    return draw.call(
        {"x": draw.plain((batch, 2, 96, width), dtype)},
        "x",
        seq_len_start=draw.size(0, 32),
        seq_len_end=draw.size(64, 96),
        **placed,
    )


@operation(
    "experimental.rotary_embedding",
    "experimental.rotary_embedding_hf",
    "experimental.rotary_embedding_llama",
    "experimental.rotary_embedding_llama_fused_qk",
    "fill_cache",
    "update_cache",
    "kv_cache.fill_cache_for_user_",
    "kv_cache.update_cache_for_token_",
    "experimental.paged_update_cache",
    "experimental.paged_fill_cache",
    "experimental.paged_fused_update_cache",
)
def caches(draw: Draw) -> Call:
    name = draw.name.rpartition(".")[2]
    dtype, placed = draw.dtype("bf16", "bf16", "bf16", "bf8", "f32"), draw.placed(0.15)
    users, count, width = draw.size(1, 3), draw.size(2, 4), draw.size(32, 64, 128)
    rows = draw.size(32, 33, 64)
    cos = draw.plain((1, 1, 128, width), dtype, "DRAM")
    each = "shards('h', (32, {}), {}, 1)"
    if name == "rotary_embedding":
        operands = {
            "x": draw.operand((1, count, rows, max(width, 64)), dtype, rows=0.03, sharded=0.1),
            "c": draw.plain((1, 1, 128, max(width, 64)), dtype, "DRAM"),
        }
        return draw.call(operands, "x", "c", "c", *draw.pick((), (), (9,)), **placed)
    if name == "rotary_embedding_hf":
        return draw.call({"x": draw.plain((1, count, rows, width), dtype), "c": cos}, "x", "c", "c", **placed)
    if name == "rotary_embedding_llama":
        if draw.chance(0.4):
            operands = {
                "x": Operand((1, users, 8, width), dtype, "TILE", each.format(width, users)),
                "c": Operand((1, users, 32, width), dtype, "TILE", each.format(width, users)),
            }
            operands["t"] = Operand((1, 1, 32 * users, 32), dtype, "TILE", each.format(32, users))
            return draw.call(operands, "x", "c", "c", "t", is_decode_mode="True")
        operands = {
            "x": draw.plain((1, count, rows, width), dtype),
            "c": cos,
            "t": draw.plain((1, 1, 32, 32), dtype, "DRAM"),
        }
        return draw.call(operands, "x", "c", "c", "t", **placed)
    if name == "rotary_embedding_llama_fused_qk":
        operands = {
            "q": Operand((1, 2, 8, 64), dtype, "TILE", "shards('h', (32, 64), 2, 1)"),
            "k": Operand((1, 2, 2, 64), dtype, "TILE", "shards('h', (32, 64), 2, 1, 0, 1)"),
        }
        operands["c"] = Operand((1, 4, 32, 64), dtype, "TILE", "shards('h', (32, 64), 4, 1)")
        operands["t"] = Operand((1, 1, 128, 32), dtype, "TILE", "shards('h', (32, 32), 4, 1)")
        return draw.call(operands, "q", "k", "c", "c", "t")
    cache = draw.plain((users, 2, 96, width), dtype, "DRAM")
    if name in ("fill_cache", "fill_cache_for_user_"):
        operands = {
            "c": cache,
            "x": draw.plain((1, 2, draw.size(32, 40, 96), width), dtype if draw.chance(0.8) else "bf16"),
        }
        return draw.call(operands, "c", "x", draw.random.randrange(users), update_idx=draw.pick(None, 0, 32))
    if name in ("update_cache", "update_cache_for_token_"):
        cache.shape = (draw.size(3, 32), 2, 96, width)
        return draw.call(
            {"c": cache, "x": draw.plain((1, 2, 32, width), dtype if draw.chance(0.8) else "bf16")},
            "c",
            "x",
            draw.size(0, 17, 70),
        )
    fresh = Operand(
        (1, users, draw.size(2, 32), width), draw.dtype("bf16", "bf16", "f32"), "TILE", each.format(width, users)
    )
    table, index = Operand((users, 3), "i32", "RM"), Operand((users,), "i32", "RM")
    if name == "paged_update_cache":
        if draw.chance(0.5):
            cache.shape = (10, 2, 32, width)
            return draw.call(
                {"c": cache, "x": fresh, "i": index, "g": table}, "c", "x", update_idxs_tensor="i", page_table="g"
            )
        where = {"update_idxs_tensor": "i"} if draw.chance(0.5) else {"update_idxs": list(range(users))}
        return draw.call({"c": cache, "x": fresh, "i": index}, "c", "x", **where)
    if name == "paged_fill_cache":
        cache.shape = (10, 2, 32, width)
        return draw.call(
            {"c": cache, "x": draw.plain((1, 2, draw.size(32, 50, 64), width), dtype), "g": table},
            "c",
            "x",
            "g",
            batch_idx=draw.random.randrange(users),
        )
    other = Operand(fresh.shape, fresh.dtype, "TILE", f"shards('h', (32, {width}), {users}, 1, 0, 1)")
    operands = {"c": cache, "x": fresh, "d": Operand(cache.shape, cache.dtype, "TILE"), "y": other, "i": index}
    return draw.call(
        operands, "c", "x", "d", "y", **draw.pick({"update_idxs": list(range(users))}, {"update_idxs_tensor": "i"})
    )


@operation(
    "moe",
    "moe_routing_remap",
    "moe_expert_token_remap",
    "experimental.deepseek_grouped_gate",
    "experimental.deepseek_moe_fast_reduce_nc",
    "experimental.deepseek_prefill.extract",
    "experimental.deepseek_prefill.insert",
    "experimental.deepseek_prefill.masked_bincount",
    "experimental.deepseek_prefill.moe_grouped_topk",
    "experimental.deepseek_prefill.moe_hash_gate",
    "experimental.deepseek_prefill.per_token_cast_to_fp8",
    "experimental.deepseek_prefill.post_combine_reduce",
    "experimental.deepseek_prefill.routed_expert_ffn",
    "experimental.hc_sum_reduce",
    "experimental.repeat_and_interleave_eltwise_mul",
    "experimental.prefix_scan",
    "experimental.topk_router_gpt",
    "experimental.kda.qkv_causal_conv1d_silu",
)
def experts(draw: Draw) -> Call:
    name = draw.name.rpartition(".")[2]
    dtype = draw.dtype("bf16", "bf16", "bf16", "bf8", "f32")
    rows = draw.size(32, 64)
    if name == "moe":
        width = draw.size(64, 128)
        operands = {
            "x": draw.plain((1, 1, rows, width), draw.dtype("bf16", "bf16", "bf8")),
            "e": draw.plain((1, 1, 1, width), "bf16"),
            "t": draw.plain((1, 1, 1, 32), "bf16"),
        }
        return draw.call(operands, "x", "e", "t", 32)
    if name == "moe_routing_remap":
        return draw.call(
            {"x": Operand((1, draw.size(32, 64)), draw.dtype("bf16", "f32"), "RM")},
            "x",
            draw.size(4, 8),
            draw.size(4, 8),
            draw.size(0, 1),
        )
    if name == "moe_expert_token_remap":
        operands = {
            "t": Operand((1, 2, 32, 64), draw.dtype("bf16", "f32"), "RM"),
            "m": Operand((1, 1, 64, 1), "u16", "RM"),
            "d": Operand((1, 2, 32, 4), "u16", "RM"),
        }
        return draw.call(operands, "t", "m", "d", reduction_size=draw.pick(None, 16, 32))
    if name in ("deepseek_grouped_gate", "moe_grouped_topk"):
        tokens = draw.size(9, 32, 64)
        operands = {key: draw.plain((1, 1, tokens, 256), draw.dtype("bf16", "bf16", "f32")) for key in ("x", "b")}
        return draw.call(operands, "x", "b", route_scale=draw.pick(None, 2.5))
    if name == "deepseek_moe_fast_reduce_nc":
        return draw.call(
            {"x": draw.plain((draw.size(4, 8), 1, 32, 256), dtype)}, "x", dim=0, split_size=draw.size(64, 128)
        )
    s = Operand((1, 3), "u32", "RM")
    if name == "extract":
        return draw.call(
            {"x": draw.plain((128, 64), dtype, "DRAM"), "s": s},
            "x",
            "s",
            "s",
            "s",
            local_expert_id=draw.size(0, 1),
            max_dispatched_tokens_per_expert=draw.size(64, 96),
        )
    if name == "insert":
        return draw.call(
            {"x": draw.plain((128, 64), dtype, "DRAM"), "y": draw.plain((64, 64), dtype, "DRAM"), "s": s},
            "x",
            "y",
            "s",
            "s",
            "s",
            local_expert_id=draw.size(0, 1),
        )
    if name == "masked_bincount":
        return draw.call(
            {
                "x": Operand((64, 8), "u16", "TILE", "shards('h', (32, 8), 2, 1)" if draw.chance(0.5) else "DRAM"),
                "m": Operand((1, 17), "i32", "RM"),
            },
            "x",
            "m",
            16,
            6,
        )
    if name == "moe_hash_gate":
        operands = {
            "x": draw.plain((1, 1, 40, 64), draw.dtype("f32", "bf16")),
            "i": Operand((2, 32), "u32", "RM"),
            "t": Operand((50, 8), "u16", "RM"),
        }
        return draw.call(operands, "x", "i", "t", n_activated_experts=6, route_scale=1.5)
    if name == "per_token_cast_to_fp8":
        return draw.call({"x": draw.rows((3, draw.size(5, 8), draw.size(128, 256)), draw.dtype("bf16", "f32"))}, "x")
    if name == "post_combine_reduce":
        width = draw.size(64, 1024)
        return draw.call({"x": draw.rows((1, 1, 32, 4, width)), "w": draw.rows((1, 1, 32, 4, 1))}, "x", "w")
    if name == "routed_expert_ffn":
        operands = {
            "x": draw.plain((rows, 64), dtype, "DRAM"),
            "a": draw.plain((64, 96), dtype, "DRAM"),
            "b": draw.plain((96, 64), dtype, "DRAM"),
        }
        return draw.call(operands, "x", "a", "a", "b")
    if name == "hc_sum_reduce":
        return draw.call(
            {"x": draw.plain((1, 1, 32, draw.size(1024, 2048)), draw.dtype("bf16", "bf16", "bf8"))},
            "x",
            **draw.placed(0.2),
        )
    if name == "repeat_and_interleave_eltwise_mul":
        operands = {
            "a": draw.plain((1, 1, 32, 32), draw.dtype("bf16", "bf16", "bf8")),
            "b": draw.plain((1, 1, 32, draw.size(5120, 5120, 5120, 2560)), draw.dtype("bf16", "bf16", "bf8")),
        }
        return draw.call(operands, "a", "b", **draw.placed(0.2))
    if name == "prefix_scan":
        width = draw.size(64, 128)
        shards = "shards('w', ({}, 32), {}, 1)"
        operands = {
            key: Operand((1, 1, 32, width), draw.dtype("bf16", "bf16", "bf8"), "TILE", shards.format(32, width // 32))
            for key in ("a", "b")
        }
        operands["h"] = Operand((1, 1, 1, width), "bf16", "RM", shards.format(1, width // 32))
        return draw.call(operands, "a", "b", "h")
    if name == "topk_router_gpt":
        depth = draw.size(64, 2880)
        operands = {
            "x": draw.plain((32, depth), "bf16", "DRAM"),
            "w": draw.plain((depth, 128), "bf16", "DRAM"),
            "b": draw.plain((32, 128), "bf16", "DRAM"),
        }
        return draw.call(operands, "x", weight_tensor="w", bias_tensor="b", k=4, num_experts=128)
    config = "ttnn.QkvCausalConv1dSiluProgramConfig(channel_chunk_size=32)"
    operands = {"x": draw.rows((1, 64, 160)), "h": draw.rows((1, 3, 160)), "t": draw.plain((1, 1, 160), "bf16")}
    return draw.call(operands, "x", "h", "t", "t", "t", "t", 64, 64, 32, program_config=config)


@operation(
    "transformer.chunk_gated_delta_rule",
    "transformer.fused_recurrent_gated_delta_rule",
    "transformer.gated_delta_attn_seq",
)
def recurrent(draw: Draw) -> Call:
    dtype = draw.dtype("bf16", "bf16", "f32")
    if draw.name.endswith("seq"):
        operands = {
            "x": draw.plain((2, 2, 128, 128), draw.dtype("f32", "f32", "bf16")),
            "l": draw.plain((2, 2, 1, 1), "f32"),
            "i": draw.plain((2, 2, 128, 32), "f32"),
        }
        return draw.call(operands, "x", "x", "x", "x", "x", "x", "l", "i")
    batch, length, keys, values = draw.size(1, 2), draw.size(32, 64, 70, 128), draw.size(1, 2), draw.size(2, 4)
    q, v, g = (batch, length, keys, 32), (batch, length, values, draw.size(32, 64)), (batch, length, values)
    operands = {"q": draw.plain(q, dtype), "v": draw.plain(v, dtype), "g": draw.plain(g, dtype)}
    keywords = {"scale": draw.pick(None, 0.5), "output_final_state": draw.pick(None, "True")}
    return draw.call(operands, "q", "q", "v", "g", "g", **keywords)
