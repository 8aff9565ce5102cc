"""Fused collectives equal their separate operations; tokens reach their experts and return; halos are neighbours' edges."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes, semaphore

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import DataType, Layout, bfloat16, float32
from ttmesh.base.geometry import MeshCoordinate

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

TILE = Layout.TILE


def test_gather_and_multiply() -> None:
    with opened((1, 4)) as mesh:
        values, weight = (
            random_lanes((1, 4), (1, 1, 32, 32), float32),
            random_lanes((1, 4), (1, 1, 128, 64), float32, seed=1),
        )
        a, w = on(mesh, values, float32, layout=TILE), on(mesh, weight, float32, layout=TILE)

        gathered, multiplied = ttnn.experimental.all_gather_matmul_async(a, w, None, 3, [], (0, 6))

        full = torch.cat(list(values[0]), -1)
        assert torch.equal(lanes_of(gathered)[0, 2], full)
        assert torch.allclose(lanes_of(multiplied)[0], full @ weight[0], atol=1e-3)


def test_gather_and_multiply_takes_a_result_on_more_cores_than_compute() -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 1))})
    result = ttnn.create_sharded_memory_config(
        (32, 32), cores, ttnn.ShardStrategy.WIDTH, use_height_and_width_as_shard_shape=True
    )
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(8, 1), in0_block_w=4, out_subblock_h=1, out_subblock_w=2, per_core_M=1,
        per_core_N=2, fuse_batch=True, mcast_in0=True,
    )  # fmt: skip
    with opened((1, 4)) as mesh:
        a = on(mesh, random_lanes((1, 4), (1, 1, 32, 32), float32), float32, layout=TILE)
        w = on(mesh, torch.ones(1, 1, 1, 1, 128, 512), float32, layout=TILE)
        options = {"memory_config_mm": result, "program_config": config}
        fused = partial(ttnn.experimental.all_gather_matmul_async, a, w, dim=3)
        asked = {"multi_device_global_semaphore": [], "all_gather_core_grid_offset": (0, 6)}
        gathered, multiplied = fused(persistent_output_buffer=None, **asked, **options)

        assert list(multiplied.shape) == [1, 1, 32, 512]
        with pytest.raises(RuntimeError, match=r"output shard grid .*must lie within extent 8-1"):
            ttnn.linear(gathered, w, memory_config=result, program_config=config, dtype=ttnn.bfloat16)
        with pytest.raises(RuntimeError, match=r"output shard grid .*must lie within extent 8-1"):
            fused(persistent_output_buffer=gathered, dtype=ttnn.bfloat16, **asked, **options)


def test_multiply_and_scatter() -> None:
    with opened((1, 4)) as mesh:
        values, weight = (
            random_lanes((1, 4), (1, 1, 32, 64), float32),
            random_lanes((1, 4), (1, 1, 64, 128), float32, seed=1),
        )
        a, w = on(mesh, values, float32, layout=TILE), on(mesh, weight, float32, layout=TILE)

        multiplied, shard = ttnn.experimental.matmul_reduce_scatter_async(
            a,
            w,
            on(mesh, torch.zeros(1, 1, 1, 1, 32, 128), float32, layout=TILE),
            on(mesh, torch.zeros(1, 1, 1, 1, 32, 32), float32, layout=TILE),
            3,
            [],
            (0, 6),
        )

        total = (values[0] @ weight[0]).sum(0)
        assert torch.allclose(lanes_of(multiplied)[0], values[0] @ weight[0], atol=1e-3)
        assert torch.allclose(lanes_of(shard)[0], torch.stack(total.chunk(4, -1)), atol=1e-3)


def test_two_products_and_the_scatter_of_the_first() -> None:
    with opened((1, 4)) as mesh:
        values, *weights = (
            random_lanes((1, 4), (1, 1, *s), float32, seed=n) for n, s in enumerate(((32, 64),) + ((64, 128),) * 2)
        )
        a, w, second = (on(mesh, x, float32, layout=TILE) for x in (values, *weights))
        config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=(4, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
            per_core_N=1, transpose_mcast=False, fused_activation=None,
        )  # fmt: skip
        fused = partial(
            ttnn.experimental.llama_rs_matmul,
            a,
            w,
            a,
            3,
            semaphore(mesh),
            1,
            mesh,
            1,
            ttnn.SubDeviceId(0),
            program_config=config,
        )

        multiplied, other, shard = fused(second_weight_tensor=second)

        expected = [values[0] @ weight[0] for weight in weights]
        assert torch.allclose(lanes_of(multiplied)[0], expected[0], atol=1e-3)
        assert torch.allclose(lanes_of(other)[0], expected[1], atol=1e-3)
        assert torch.allclose(lanes_of(shard)[0], torch.stack(expected[0].sum(0).chunk(4, -1)), atol=1e-3)
        with pytest.raises(RuntimeError, match="Exactly one of rs_tensor or second_weight_tensor must have a value"):
            fused()
        with pytest.raises(RuntimeError, match="Exactly one of rs_tensor or second_weight_tensor must have a value"):
            fused(second_weight_tensor=second, rs_tensor=a)


def test_a_norm_over_cut_columns_replaces_its_residual() -> None:
    with opened((2, 4)) as mesh:
        values, old = (
            random_lanes((2, 4), (1, 1, 32, 64), float32),
            random_lanes((2, 4), (1, 1, 32, 64), float32, seed=1),
        )
        weight = random_lanes((1, 4), (1, 1, 2, 32), float32, seed=2)
        residual = on(mesh, old, float32, layout=TILE)
        config = ttnn.create_sharded_memory_config((32, 64), ttnn.CoreGrid(y=1, x=2), ttnn.ShardStrategy.WIDTH)

        normed = ttnn.fused_rms_minimal(
            on(mesh, values, float32, layout=TILE), ttnn.LayerNormDefaultProgramConfig(), 1, mesh, semaphore(mesh),
            residual_input_tensor=residual, epsilon=1e-5, stats=residual, memory_config=config,
            weight=on(mesh, weight, float32),
        )  # fmt: skip

        total = values + old
        mean = total.square().mean(-1, keepdim=True).mean(1, keepdim=True)
        expected = total * torch.rsqrt(mean + 1e-5) * weight.reshape(1, 4, 1, 1, 1, 64)
        assert torch.allclose(lanes_of(normed), expected, atol=1e-5)
        assert torch.equal(lanes_of(residual), total)


def test_tokens_go_to_their_experts_and_come_back() -> None:
    experts, k, hidden, tokens = 16, 3, 32, 2
    with opened((2, 4), config=ttnn.FabricConfig.FABRIC_2D) as mesh:
        generator = torch.Generator().manual_seed(0)
        home = torch.randperm(experts, generator=generator) % 8  # the device of every expert
        mapping = torch.nn.functional.one_hot(home, 8).int()[None, None]
        chosen = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(2 * 4 * tokens)])
        indices = chosen.reshape(2, 4, tokens, 1, 1, k).int()
        values = random_lanes((2, 4), (tokens, 1, 1, hidden), bfloat16)
        table = on(mesh, mapping.expand(1, 1, 1, 1, experts, 8), DataType.UINT16)

        sent, metadata = ttnn.all_to_all_dispatch(
            on(mesh, values, bfloat16), on(mesh, indices, DataType.UINT16), table, cluster_axis=1
        )

        for r in range(2):
            everyone = values[r].reshape(4 * tokens, 1, hidden)
            assert torch.equal(lanes_of(metadata)[r, 0, 0, :, 0], indices[r].reshape(4 * tokens, k))
            for c in range(4):
                mine = (home[indices[r].reshape(4 * tokens, k).long()] == r * 4 + c).any(-1)
                assert torch.equal(lanes_of(sent)[r, c, 0][mine], everyone[mine])
        assert mesh.traffic.counters.fabric_bytes() > 0

        made = torch.randn(2, 4, 2, 4 * tokens, 1, hidden, generator=generator).bfloat16()  # two experts per device
        back = ttnn.all_to_all_combine(on(mesh, made, bfloat16), metadata, table, cluster_axis=1)

        got = lanes_of(back)
        for r in range(2):
            for c in range(4):
                for t in range(tokens):
                    for slot in range(k):
                        expert = int(indices[r, c, t, 0, 0, slot])
                        row, col = divmod(int(home[expert]), 4)
                        if row == r:  # experts in another row are another group's
                            index = int((home[:expert] == home[expert]).sum())
                            assert torch.equal(got[r, c, slot, t, 0], made[r, col, index, c * tokens + t, 0])


def test_halos_are_the_neighbours_edges() -> None:
    with opened((1, 4)) as mesh:
        values = random_lanes((1, 4), (4, 1, 2, 16), bfloat16)
        tensor = on(mesh, values, bfloat16)

        for mode in ("zeros", "replicate"):
            padded = ttnn.experimental.neighbor_pad_async(
                tensor, [0], [2], [1], mode, [1], [semaphore(mesh)], [semaphore(mesh)]
            )

            full = values[0].flatten(0, 1)
            before = torch.zeros_like(full[:2]) if mode == "zeros" else full[:1].expand(2, -1, -1, -1)
            after = torch.zeros_like(full[:1]) if mode == "zeros" else full[-1:]
            line = torch.cat([before, full, after])
            for i in range(4):
                assert torch.equal(lanes_of(padded)[0, i], line[4 * i : 4 * i + 7])


def test_a_slice_is_cut_anew() -> None:
    with opened((1, 4)) as mesh:
        values = random_lanes((1, 4), (4, 1, 2, 16), bfloat16)

        sharded = ttnn.experimental.slice_reshard_async(
            on(mesh, values, bfloat16), 0, 3, 16, 1, semaphore(mesh), semaphore(mesh)
        )

        full = torch.nn.functional.pad(values[0].flatten(0, 1)[3:], (0, 0, 0, 0, 0, 0, 0, 3))
        assert torch.equal(lanes_of(sharded)[0], full.reshape(4, 4, 1, 2, 16))


def test_partial_attention_states_merge_on_the_root() -> None:
    with opened((1, 4)) as mesh:
        cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))])

        def state(width: int, seed: int) -> tuple[torch.Tensor, ttnn.Tensor]:
            spec = ttnn.ShardSpec(cores, [32, width], ttnn.ShardOrientation.ROW_MAJOR)
            memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)
            lanes = random_lanes((1, 1), (4, 32, 2 * width), float32, seed=seed)[0, 0]
            mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
            return lanes, ttnn.from_torch(
                lanes, dtype=float32, layout=TILE, device=mesh, memory_config=memory, mesh_mapper=mapper
            )

        (values, tt_l), (sums, tt_s), (maxima, tt_m) = state(64, 0), state(32, 1), state(32, 2)

        merged, total, top = ttnn.reduce_to_root(tt_l, tt_s, tt_m, MeshCoordinate(0, 1))

        best = maxima.amax(0)
        factors = torch.exp(maxima - best)
        expected_sum = (sums * factors).sum(0)
        expand = lambda t: t[..., ::32].repeat_interleave(64, -1)  # noqa: E731
        expected = (values * expand(factors)).sum(0) / expand(expected_sum)
        assert torch.allclose(lanes_of(total)[0, 1, 0], expected_sum, atol=1e-4)
        assert torch.equal(lanes_of(top)[0, 1, 0], best)
        assert torch.allclose(lanes_of(merged)[0, 1, 0], expected, rtol=1e-3, atol=1e-3)


def test_a_ring_gather_leaves_the_own_part_of_its_buffer_alone() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), (1, 2, 32, 64), bfloat16)
        buffer = on(mesh, torch.full((1, 1, 1, 2, 128, 64), 7.0).bfloat16(), bfloat16, layout=TILE)

        semaphores = [ttnn.create_global_semaphore(mesh, ttnn.CoreRange((0, 0), (0, 0)), 0) for _ in range(2)]
        (result,) = ttnn.experimental.ring_attention_all_gather_async(
            [on(mesh, values, bfloat16, layout=TILE)], persistent_output_buffer=[buffer], dim=2,
            multi_device_global_semaphore=semaphores, cluster_axis=1, mesh_device=mesh, topology=ttnn.Topology.Linear,
        )  # fmt: skip

        for r in range(2):
            for c in range(4):
                expected = torch.cat([torch.full_like(v, 7.0) if i == c else v for i, v in enumerate(values[r])], 2)
                assert torch.equal(lanes_of(result)[r, c], expected)
        assert torch.equal(lanes_of(buffer), lanes_of(result))


def test_experts_are_summed_and_cut_for_the_scatter() -> None:
    with opened((1, 4)) as mesh:
        values = random_lanes((1, 4), (8, 1, 32, 256), bfloat16)

        sharded = ttnn.experimental.deepseek_moe_fast_reduce_nc(
            on(mesh, values, bfloat16, layout=TILE), 0, split_size=64, output_memory_config=ttnn.L1_MEMORY_CONFIG
        )

        full = torch.cat([lanes_of(shard) for shard in sharded], -1)
        assert [tuple(shard.shape) for shard in sharded] == [(1, 1, 32, 64)] * 4
        assert torch.allclose(full.float(), values.float().sum(2, keepdim=True), rtol=2**-6, atol=2**-6)


def test_inputs_that_stand_side_by_side_are_filled_up_to_tiles() -> None:
    with opened((1, 4)) as mesh:
        left, right = (
            random_lanes((1, 4), (1, 1, 32, 11), bfloat16),
            random_lanes((1, 4), (1, 1, 32, 21), bfloat16, seed=1),
        )
        weight = random_lanes((1, 4), (1, 1, 64, 128), bfloat16, seed=2)
        weight[:, :, :, :, 11:32] = weight[:, :, :, :, 53:] = 0

        multiplied, shard = ttnn.experimental.minimal_matmul_strided_reduce_scatter_async(
            [on(mesh, v, bfloat16, layout=TILE) for v in (left, right)], on(mesh, weight, bfloat16, layout=TILE), 3, [],
            reduce_scatter_core_grid_offset=ttnn.CoreCoord(0, 6),
            compute_kernel_config=ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4),
        )  # fmt: skip

        left, right, weight = (values.float() for values in (left, right, weight))
        full = left @ weight[:, :, :, :, :11] + right @ weight[:, :, :, :, 32:53]
        assert torch.allclose(lanes_of(multiplied).float(), full, rtol=2**-7, atol=0.1)
        sums = torch.stack(full[0].sum(0).chunk(4, -1))
        assert torch.allclose(lanes_of(shard)[0].float(), sums, rtol=2**-6, atol=0.2)


def test_every_chip_of_the_axis_gets_the_heads_of_its_users() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), (1, 1, 32, 10 * 32), float32)
        grid = ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (7, 3))])
        rows = ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (4, 1))])
        sharded = ttnn.create_sharded_memory_config(
            (32, 32), rows, ttnn.ShardStrategy.WIDTH, use_height_and_width_as_shard_shape=True
        )
        config = ttnn.create_sharded_memory_config(
            (32, 32), grid, ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
        )
        x = ttnn.to_memory_config(on(mesh, values, float32, layout=TILE), sharded)

        q, k, v = ttnn.experimental.llama_rs_create_heads(
            x, x, 3, semaphore(mesh), ttnn.SubDeviceId(0), 1, mesh, ttnn.Topology.Linear, num_links=1, num_heads=8,
            num_kv_heads=1,
            memory_config=sharded, qkv_memory_config=config,
        )  # fmt: skip

        assert [tuple(heads.shape) for heads in (q, k, v)] == [(1, 8, 8, 32)] * 3
        cores = [heads.memory_config().shard_spec.grid for heads in (q, k, v)]
        assert [grid.num_cores() for grid in cores] == [8, 8, 8]
        assert cores[0].merge(cores[1]).merge(cores[2]).num_cores() == 24
        total = values.sum(1, keepdim=True)[..., 8:16, :]  # the second column's users
        assert torch.allclose(lanes_of(q)[0, 1, 0], total[0, 0, 0, 0, :, :256].reshape(8, 8, 32), atol=1e-3)
        assert torch.allclose(lanes_of(k)[1, 1, 0, :, :1], total[1, 0, 0, 0, :, None, 256:288], atol=1e-3)
        assert torch.allclose(lanes_of(v)[1, 1, 0, :, :1], total[1, 0, 0, 0, :, None, 288:], atol=1e-3)


@pytest.mark.parametrize("layout", [TILE, Layout.ROW_MAJOR])
def test_heads_of_rows_stay_rows_and_are_concatenated_as_tiles(layout: Layout) -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), (1, 8, 8, 32), bfloat16)
        cores = ttnn.CoreRangeSet([ttnn.CoreRange((1, 0), (3, 1)), ttnn.CoreRange((1, 2), (2, 2))])
        height = 8 if layout is Layout.ROW_MAJOR else 32
        users = ttnn.create_sharded_memory_config(
            (height, 32), cores, ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
        )
        heads = ttnn.to_memory_config(on(mesh, values, bfloat16, layout=layout), users)
        wide = ttnn.create_sharded_memory_config(
            (32, 32), cores, ttnn.ShardStrategy.WIDTH, use_height_and_width_as_shard_shape=True
        )

        joined = ttnn.experimental.all_gather_concat(
            heads, heads, 1, 1, mesh, semaphore(mesh), num_heads=8, memory_config=wide, topology=ttnn.Topology.Linear
        )

        assert (joined.layout, tuple(joined.shape), joined.memory_config()) == (TILE, (1, 1, 32, 256), wide)
        everyone = values[0, :, 0].reshape(32, 256)
        assert torch.equal(lanes_of(joined)[0, 3, 0, 0], everyone)


def test_the_heads_of_a_projection_in_rows_are_rows_without_padding() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), (1, 1, 32, 10 * 32), float32)
        grid = ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (7, 3))])
        rows = ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (4, 1))])
        sharded = ttnn.create_sharded_memory_config(
            (32, 32), rows, ttnn.ShardStrategy.WIDTH, use_height_and_width_as_shard_shape=True
        )
        config = ttnn.create_sharded_memory_config(
            (32, 32), grid, ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
        )
        x = ttnn.to_memory_config(on(mesh, values, float32, layout=Layout.ROW_MAJOR), sharded)

        q, k, v = ttnn.experimental.llama_rs_create_heads(
            x, x, 3, semaphore(mesh), ttnn.SubDeviceId(0), 1, mesh, ttnn.Topology.Linear, num_links=1, num_heads=8,
            num_kv_heads=1,
            memory_config=sharded, qkv_memory_config=config,
        )  # fmt: skip

        assert [heads.layout for heads in (q, k, v)] == [Layout.ROW_MAJOR] * 3
        assert [tuple(heads.memory_config().shard_spec.shape) for heads in (q, k, v)] == [(8, 32)] * 3
