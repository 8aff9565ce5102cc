"""Circular buffers of attention over sequences equal those that TT-NN 0.81.1 prints in graph captures on an n150."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn

# Formats of q, of k and v; head size, chunks of q and k, causal, mask, float32 sums: bytes per core of all buffers.
PRINTED = [
    ("bfloat8_b", "bfloat8_b", 128, 256, 512, True, False, False, 850944),
    ("bfloat8_b", "bfloat8_b", 128, 64, 64, True, False, False, 141312),
    ("bfloat8_b", "bfloat8_b", 128, 64, 128, False, False, False, 180224),
    ("bfloat8_b", "bfloat8_b", 128, 64, 128, False, True, False, 223232 - 4096 - 2048 - 4096),  # another program's
    ("bfloat16", "bfloat16", 128, 256, 512, True, False, False, 1173504),
    ("bfloat16", "bfloat16", 128, 64, 64, True, False, False, 202752),
    ("bfloat16", "bfloat16", 128, 64, 128, False, False, False, 272384),
    ("bfloat16", "bfloat8_b", 64, 32, 32, True, False, False, 55808),
    ("bfloat16", "bfloat8_b", 64, 128, 64, True, False, False, 166912),
    ("bfloat16", "bfloat8_b", 256, 64, 64, True, False, False, 305152),
    ("bfloat16", "bfloat8_b", 128, 32, 64, True, False, False, 108544),
    ("bfloat16", "bfloat8_b", 96, 64, 64, True, False, False, 138752),
    ("bfloat16", "bfloat8_b", 128, 128, 128, True, False, False, 317440),
    ("bfloat16", "bfloat8_b", 128, 64, 64, True, False, True, 169984),
    ("bfloat16", "bfloat8_b", 64, 128, 64, True, False, True, 197632),
]


@pytest.mark.parametrize(("q", "kv", "size", "q_chunk", "k_chunk", "causal", "masked", "wide", "printed"), PRINTED)
def test_attention_takes_the_circular_buffers_that_tt_nn_prints(
    q: str, kv: str, size: int, q_chunk: int, k_chunk: int, causal: bool, masked: bool, wide: bool, printed: int
) -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))

        def make(heads: int, columns: int, name: str) -> ttnn.Tensor:
            values = torch.zeros(1, heads, 1024, columns)
            return ttnn.from_torch(values, dtype=getattr(ttnn, name), layout=ttnn.TILE_LAYOUT, device=mesh)

        ttnn.transformer.scaled_dot_product_attention(
            make(8, size, q),
            make(1, size, kv),
            make(1, size, kv),
            is_causal=causal,
            attn_mask=make(1, 1024, "bfloat16") if masked else None,
            program_config=ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=(7, 8),
                q_chunk_size=q_chunk,
                k_chunk_size=k_chunk,
                exp_approx_mode=False,
            ),
            compute_kernel_config=ttnn.WormholeComputeKernelConfig(
                math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=wide
            ),
        )
        ttnn.close_mesh_device(mesh)

    assert run.report is not None
    assert run.report.circular_buffer_bytes == printed


# Users, heads, cores that hold the queries (0: DRAM), length, chunk of keys, cores per head and user, float32 sums:
# bytes per core without the buffers in a sharded result, printed on a t3000.
DECODE = [
    (4, 128, 64, 1024, 128, 16, False, 656512),
    (4, 128, 64, 1024, 128, 8, False, 656512),
    (2, 128, 8, 1024, 128, 16, False, 803968),
    (8, 16, 64, 4096, 128, 16, False, 551232),
    (8, 32, 64, 4096, 64, 8, False, 648000),
    (4, 128, 64, 1024, 64, 16, True, 500352),
]


def _attend_latent(mesh: ttnn.MeshDevice, q: ttnn.Tensor, users: int, length: int, **options: object) -> ttnn.Tensor:
    blocks = length // 64 * users
    keys = torch.randn(blocks, 1, 64, 576, generator=torch.Generator().manual_seed(1))
    table = torch.arange(blocks, dtype=torch.int32).reshape(users, -1)
    return ttnn.transformer.paged_flash_multi_latent_attention_decode(
        q,
        ttnn.from_torch(keys, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT, device=mesh),
        head_dim_v=512,
        page_table_tensor=ttnn.from_torch(table, device=mesh),
        cur_pos_tensor=ttnn.from_torch(torch.full((users,), length // 2, dtype=torch.int32), device=mesh),
        scale=0.04,
        **options,
    )


def _shard_rows(mesh: ttnn.MeshDevice, cores: int, rows: int, columns: int) -> ttnn.MemoryConfig:
    grid = ttnn.num_cores_to_corerangeset(cores, mesh.compute_with_storage_grid_size(), row_wise=True)
    return ttnn.create_sharded_memory_config(
        (rows, columns), grid, ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
    )


@pytest.mark.parametrize(("users", "heads", "cores", "length", "chunk", "most", "wide", "printed"), DECODE)
def test_latent_decode_divides_the_heads_of_sharded_queries_over_cores(
    users: int, heads: int, cores: int, length: int, chunk: int, most: int, wide: bool, printed: int
) -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        cores = min(users * heads, cores)
        rows = -(-(users * heads // cores) // 32) * 32
        q = ttnn.from_torch(
            torch.zeros(1, users, heads, 576),
            layout=ttnn.TILE_LAYOUT,
            dtype=ttnn.bfloat16,
            device=mesh,
            memory_config=_shard_rows(mesh, cores, rows, 576),
        )

        _attend_latent(
            mesh,
            q,
            users,
            length,
            program_config=ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=mesh.compute_with_storage_grid_size(),
                q_chunk_size=0,
                k_chunk_size=chunk,
                max_cores_per_head_batch=most,
            ),
            compute_kernel_config=ttnn.WormholeComputeKernelConfig(fp32_dest_acc_en=wide),
            memory_config=_shard_rows(mesh, cores, rows, 512),
        )
        ttnn.close_mesh_device(mesh)

    assert run.report is not None
    assert run.report.circular_buffer_bytes == printed


def test_queries_repeated_for_every_core_of_a_group_give_the_result_of_the_queries() -> None:
    with ttnn.manage_device(0) as mesh:
        users, heads, most = 2, 64, 4
        torch.manual_seed(0)
        queries = torch.randn(1, users, heads, 576)
        repeated = queries.reshape(1, users, heads // 32, 32, 576).repeat_interleave(most, 2).reshape(1, 1, -1, 576)
        memory = _shard_rows(mesh, users * heads // 32 * most, 32, 576)
        config = ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(8, 8), q_chunk_size=0, k_chunk_size=128, max_cores_per_head_batch=most
        )
        options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh}

        local = _attend_latent(
            mesh, ttnn.from_torch(repeated, memory_config=memory, **options), users, 128, program_config=config
        )
        plain = _attend_latent(mesh, ttnn.from_torch(queries, **options), users, 128, program_config=config)

        assert local.shape == ttnn.Shape([1, users, heads, 512])
        torch.testing.assert_close(ttnn.to_torch(local), ttnn.to_torch(plain), rtol=0, atol=0)
