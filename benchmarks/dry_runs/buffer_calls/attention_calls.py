"""Attention and what stands around it."""

from __future__ import annotations

from collections.abc import Iterator

import ttnn

from buffer_calls.listed_call import (
    Call,
    T,
    call,
    compute,
)


def attention() -> Iterator[Call]:
    for dq, dk in (("b16", "b16"), ("b8", "b8"), ("b16", "b8")):
        for size in (64, 128, 256):
            for chunks in ((32, 32), (64, 128), (256, 256)):
                for causal, wide_sums in ((True, False), (False, True)):
                    config = ttnn.SDPAProgramConfig(
                        compute_with_storage_grid_size=(8, 8),
                        q_chunk_size=chunks[0],
                        k_chunk_size=chunks[1],
                        exp_approx_mode=False,
                    )
                    key = T((1, 2, 512, size), dk)
                    yield call(
                        "attention",
                        "transformer.scaled_dot_product_attention",
                        T((1, 8, 512, size), dq),
                        key,
                        key,
                        note=f"{chunks} {wide_sums}",
                        is_causal=causal,
                        program_config=config,
                        compute_kernel_config=compute(wide_sums),
                    )
    for size in (64, 128):
        key = T((1, 2, 1024, size), "b8")
        yield call(
            "attention", "transformer.scaled_dot_product_attention", T((1, 8, 1024, size)), key, key, is_causal=True
        )
        yield call(
            "attention",
            "transformer.scaled_dot_product_attention",
            T((1, 8, 1024, size)),
            key,
            key,
            T((1, 1, 1024, 1024)),
            run=lambda q, k, v, m: ttnn.transformer.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=False),
        )
    for users in (1, 8, 32):
        for heads, keys in ((8, 1), (32, 8), (16, 2)):
            for size in (64, 128):
                for chunk in (0, 128, 256):
                    for dtype in ("b16", "b8"):
                        cache = T((users, keys, 1024, size), dtype)
                        config = (
                            ttnn.SDPAProgramConfig(
                                compute_with_storage_grid_size=(8, 8),
                                q_chunk_size=32,
                                k_chunk_size=chunk or 32,
                                exp_approx_mode=False,
                            )
                            if chunk
                            else None
                        )
                        if chunk != 128 or dtype == "b8":
                            yield call(
                                "attention",
                                "transformer.scaled_dot_product_attention_decode",
                                T((1, users, heads, size)),
                                cache,
                                cache,
                                T((users,), "i32", "R"),
                                note=f"chunk {chunk}",
                                run=lambda q, k, v, p, config=config: (
                                    ttnn.transformer.scaled_dot_product_attention_decode(
                                        q, k, v, cur_pos_tensor=p, program_config=config
                                    )
                                ),
                            )
    for users, heads, keys, size in ((32, 32, 8, 128), (32, 8, 1, 128), (8, 16, 2, 64)):
        cache = T((256, keys, 32, size), "b8")
        for chunk in (0, 64, 256):
            config = ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=(8, 8), q_chunk_size=0, k_chunk_size=chunk, exp_approx_mode=False
            )
            yield call(
                "attention",
                "transformer.paged_scaled_dot_product_attention_decode",
                T((1, users, heads, size)),
                cache,
                cache,
                T((users, 8), "i32", "R"),
                T((users,), "i32", "R"),
                note=f"chunk {chunk}",
                run=lambda q, k, v, t, p, config=config: ttnn.transformer.paged_scaled_dot_product_attention_decode(
                    q, k, v, cur_pos_tensor=p, page_table_tensor=t, program_config=config
                ),
            )
        yield call(
            "attention",
            "transformer.chunked_scaled_dot_product_attention",
            T((1, heads, 128, size)),
            cache,
            cache,
            T((1, 8), "i32", "R"),
            run=lambda q, k, v, t: ttnn.transformer.chunked_scaled_dot_product_attention(q, k, v, t, 0),
        )
    for rank, rope in ((512, 64),):
        yield call(
            "attention",
            "transformer.flash_mla_prefill",
            T((1, 16, 128, rank + rope)),
            T((1, 1, 128, rank + rope), "b8"),
            head_dim_v=rank,
            is_causal=True,
        )


def heads() -> Iterator[Call]:
    for count, keys, size in ((8, 2, 64), (32, 8, 128), (8, 1, 128), (4, 4, 64)):
        width = (count + 2 * keys) * size
        for rows in (32, 128, 1024):
            for dtype in ("b16", "b8", "f32"):
                yield call(
                    "heads",
                    "experimental.nlp_create_qkv_heads",
                    T((1, 1, rows, width), dtype),
                    num_heads=count,
                    num_kv_heads=keys,
                    transpose_k_heads=False,
                )
                yield call("heads", "experimental.nlp_concat_heads", T((1, count, rows, size), dtype))
        for users in (8, 32):
            yield call(
                "heads",
                "experimental.nlp_create_qkv_heads_decode",
                T((1, 1, users, width)),
                num_heads=count,
                num_kv_heads=keys,
                memory_config=ttnn.L1_HEIGHT_SHARDED_MEMORY_CONFIG,
            )
            yield call(
                "heads",
                "experimental.nlp_concat_heads_decode",
                T((1, users, 32, size), "b16", "T", f"height@{users // 8}x8"),
                num_heads=count,
            )
        yield call(
            "heads",
            "experimental.nlp_create_qkv_heads",
            T((1, 1, 128, width)),
            num_heads=count,
            num_kv_heads=keys,
            transpose_k_heads=True,
        )
    yield call("heads", "transformer.split_query_key_value_and_split_heads", T((2, 128, 3 * 512)), num_heads=8)
    yield call("heads", "transformer.concatenate_heads", T((2, 8, 128, 64)))
    yield call("heads", "experimental.nlp_create_qkv_heads_falcon7b", T((1, 1, 128, 4672)))


def rotary() -> Iterator[Call]:
    for rows in (32, 128, 1024):
        for size in (64, 128):
            for dtype in ("b16", "f32", "b8"):
                table = T((1, 1, rows, size))
                yield call("rotary", "experimental.rotary_embedding", T((1, 8, rows, size), dtype), table, table)
                if dtype != "f32":
                    yield call(
                        "rotary",
                        "experimental.rotary_embedding_llama",
                        T((1, 8, rows, size), dtype),
                        table,
                        table,
                        T((1, 1, 32, 32)),
                    )
    for users in (8, 32):
        for size in (64, 128):
            at = f"height@{users // 8}x8"
            x, table, change = (
                T((1, users, 32, size), "b16", "T", at),
                T((1, users, 32, size), "b16", "T", at),
                T((1, 1, users * 32, 32), "b16", "T", at),
            )
            yield call("rotary", "experimental.rotary_embedding_llama", x, table, table, change, is_decode_mode=True)


def caches() -> Iterator[Call]:
    for users, keys, size in ((8, 8, 128), (32, 8, 128), (32, 1, 64)):
        for dtype in ("b16", "b8"):
            at = f"height@{users // 8}x8"
            x = T((1, users, 32, size), "b16", "T", at)
            yield call(
                "cache",
                "experimental.paged_update_cache",
                T((users, keys, 1024, size), dtype),
                x,
                T((users,), "i32", "R"),
                run=lambda c, a, p: ttnn.experimental.paged_update_cache(c, a, update_idxs_tensor=p),
            )
            yield call(
                "cache",
                "experimental.paged_update_cache",
                T((256, keys, 32, size), dtype),
                x,
                T((users,), "i32", "R"),
                T((users, 8), "i32", "R"),
                run=lambda c, a, p, t: ttnn.experimental.paged_update_cache(c, a, update_idxs_tensor=p, page_table=t),
            )
            yield call(
                "cache",
                "experimental.paged_fill_cache",
                T((256, keys, 32, size), dtype),
                T((1, keys, 128, size), dtype),
                T((1, 8), "i32", "R"),
                run=lambda c, a, t: ttnn.experimental.paged_fill_cache(c, a, t, batch_idx=0),
            )
            yield call(
                "cache",
                "fill_cache",
                T((users, keys, 1024, size), dtype),
                T((1, keys, 128, size), dtype),
                run=lambda c, a: ttnn.fill_cache(c, a, 0),
            )
            yield call(
                "cache",
                "update_cache",
                T((32, keys, 1024, size), dtype),
                T((1, keys, 32, size)),
                run=lambda c, a: ttnn.update_cache(c, a, 5),
            )
