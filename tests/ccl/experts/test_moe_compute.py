"""moe_compute, moe_gpt and selective_reduce_combine against torch; weights are packed here in the order of the ring."""

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.ccl.experts.moe_weights import TILE, RingShards, make_ring_shards

RING, EXPERTS, K = 12, 2, 2


def open_mesh(*shape, system="t3000"):
    settings.override("TTMESH_SYSTEM", system)
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    return ttnn.open_mesh_device(ttnn.MeshShape(*shape))


def assert_correlated(expected, found, least):
    pair = torch.stack([expected.flatten().double(), found.flatten().double()])
    assert torch.corrcoef(pair)[0, 1] >= least


def pack_columns(gate, up, shards, rows):
    """[experts, rows, columns] twice → [ring, 1, experts, groups, rows, 128]."""
    experts, given, _ = gate.shape
    groups = max(-(-max(shards.columns) // 2), 2)
    packed = torch.zeros(RING, 1, experts, groups, rows, 2, 2, TILE)
    start = 0
    for position, count in enumerate(shards.columns):
        for i in range(count):
            for which, weights in enumerate((gate, up)):
                tile = weights[:, :, (start + i) * TILE : (start + i + 1) * TILE]
                packed[position, 0, :, i // 2, :given, i % 2, which] = tile
        start += count
    return packed.reshape(RING, 1, experts, groups, rows, 4 * TILE)


def pack_rows(down, bias, shards, rows):
    """[experts, inner, hidden] → [ring, 1, experts, groups, rows, 128]: every core in its own order of the ring."""
    experts, inner, _ = down.shape
    groups = -(-max(shards.outputs) // 4)
    starts = [sum(shards.columns[:i]) for i in range(RING + 1)]
    packed = torch.zeros(RING, 1, experts, rows, groups * 4 * TILE)
    column = 0
    for position, count in enumerate(shards.outputs):
        sources = [(position - step) % RING for step in range(RING)]
        order = [tile for source in sources for tile in range(starts[source], starts[source + 1])]
        columns = slice(column * TILE, (column + count) * TILE)
        tiles = down.reshape(experts, inner // TILE, TILE, -1)[:, order].reshape(experts, inner, -1)
        packed[position, 0, :, :inner, : count * TILE] = tiles[:, :, columns]
        if bias is not None:
            packed[position, 0, :, inner, : count * TILE] = bias[:, columns]
        column += count
    return packed.reshape(RING, 1, experts, rows, groups, 4 * TILE).permute(0, 1, 2, 4, 3, 5)


def make_weights(hidden, inner, shards, *, biased, block=7 * TILE):
    gate, up, down = (torch.randn(EXPERTS, a, b) / 8 for a, b in ((hidden, inner), (hidden, inner), (inner, hidden)))
    b0, b1, b2 = (torch.randn(EXPERTS, n) if biased else torch.zeros(EXPERTS, n) for n in (inner, inner, hidden))
    extra = TILE if biased else 0
    rows, inner_rows = (-(-(n + extra) // block) * block for n in (hidden, inner))
    columns = pack_columns(
        *(torch.cat([w, b[:, None]], 1) if biased else w for w, b in ((gate, b0), (up, b1))), shards, rows
    )
    packed = columns, pack_rows(down, b2 if biased else None, shards, inner_rows)

    def run(token, expert, activation):
        g, u = token @ gate[expert] + b0[expert], token @ up[expert] + b1[expert]
        if activation is ttnn.MoEActivationFunction.SWIGLU:
            g, u = g.clamp(max=7), u.clamp(-7, 7)
            return (u + 1) * g * torch.sigmoid(1.702 * g) @ down[expert] + b2[expert]
        curve = (
            torch.nn.functional.silu(g)
            if activation is ttnn.MoEActivationFunction.SILU
            else torch.nn.functional.gelu(g)
        )
        return curve * u @ down[expert] + b2[expert]

    return packed, run


def upload(mesh, values, dtype, mapper=None, memory_config=ttnn.DRAM_MEMORY_CONFIG, layout=ttnn.ROW_MAJOR_LAYOUT):
    mapper = ttnn.ReplicateTensorToMesh(mesh) if mapper is None else mapper
    return ttnn.from_torch(
        values, dtype=dtype, layout=layout, device=mesh, mesh_mapper=mapper, memory_config=memory_config
    )


def in_one_core(core, rows):
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(core, core)})
    shard = ttnn.ShardSpec(cores, [rows, K], ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)


@pytest.mark.parametrize(
    ("activation", "biased"), [("SILU", False), ("SWIGLU", True), ("GELU", False)], ids=["silu", "swiglu_bias", "gelu"]
)
def test_every_choice_gets_its_experts_result_on_the_chip_of_the_token(activation, biased):
    mesh = open_mesh(1, 4)
    hidden, inner, own = 128, 384, 3
    tokens, devices = own * 4, 4
    torch.manual_seed(0)
    shards = make_ring_shards(hidden, inner, RING)
    packed, run = make_weights(hidden, inner, shards, biased=biased)
    x = torch.randn(tokens, hidden).bfloat16()
    chosen = torch.stack([torch.randperm(devices * EXPERTS)[:K] for _ in range(tokens)])
    scores = torch.rand(tokens, K).bfloat16()
    mapping = (torch.arange(devices * EXPERTS) // EXPERTS).expand(devices, -1)
    core = ttnn.experimental.get_moe_tilize_drain_core(mesh, 4, 4, hidden)
    one_core = in_one_core(core, tokens)
    kind = ttnn.MoEActivationFunction[activation]

    results = ttnn.experimental.moe_compute(
        upload(mesh, x[None], ttnn.bfloat16),
        upload(mesh, chosen[None], ttnn.uint16, memory_config=one_core),
        upload(mesh, scores[None], ttnn.bfloat16, memory_config=one_core),
        upload(mesh, mapping, ttnn.uint16),
        upload(mesh, packed[0], ttnn.bfloat16, layout=ttnn.TILE_LAYOUT),
        upload(mesh, packed[1], ttnn.bfloat16, layout=ttnn.TILE_LAYOUT),
        layer_id=0, output_height_shard_dim=4, intermediate_size=inner, has_bias=biased, cluster_axis=1,
        topology=ttnn.Topology.Linear, activation_type=kind,
    )  # fmt: skip

    counts, activations, lists, tiles, rows, combined = results
    assert tiles.buffer_address() == rows.buffer_address()
    assert tiles.layout is ttnn.TILE_LAYOUT
    found = ttnn.to_torch(combined, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=1)).float()
    expected = torch.stack([
        torch.stack([run(x[t].float(), int(chosen[t, i]) % EXPERTS, kind) for t in range(tokens)]) for i in range(K)
    ])  # fmt: skip
    assert_correlated(expected, found, 0.999)
    for device, (count, table, tokens_of) in enumerate(
        zip(*(map(ttnn.to_torch, ttnn.get_device_tensors(t)) for t in (counts, activations, lists)), strict=True)
    ):
        for expert in range(EXPERTS):
            wanted = (chosen == device * EXPERTS + expert).any(1).nonzero()[:, 0].tolist()
            assert count[0, expert] == len(wanted)
            assert tokens_of[expert, ::4][: len(wanted)].tolist() == wanted
            assert tokens_of[expert, 4 * len(wanted)] in (-1, 0xFFFFFFFF)
        here = (chosen // EXPERTS == device).any(1).nonzero()[:, 0].tolist()
        assert table.reshape(tokens, -1)[: len(here), 0].tolist() == here


def test_gpt_experts_and_combine_give_the_same():
    mesh = open_mesh(4, 2)
    hidden, own = 2880, 4
    tokens, devices = own * 4, 8
    torch.manual_seed(0)
    shards = RingShards((8, 8, 7, 7) * 3, (8, 8, 7, 7) * 3)
    packed, run = make_weights(hidden, hidden, shards, biased=True, block=TILE)
    x = torch.randn(tokens, hidden).bfloat16()
    chosen = torch.stack([torch.randperm(devices * EXPERTS)[:K] for _ in range(tokens)])
    mapping = (torch.arange(devices * EXPERTS) // EXPERTS).expand(devices, -1)
    one_core = in_one_core(ttnn.CoreCoord(7, 7), tokens)

    results = ttnn.experimental.moe_gpt(
        upload(mesh, x, ttnn.bfloat16),
        expert_indices=upload(mesh, chosen, ttnn.uint16, memory_config=one_core),
        expert_scores=upload(mesh, torch.rand(tokens, K), ttnn.bfloat16, memory_config=one_core),
        expert_mapping=upload(mesh, mapping, ttnn.uint16),
        w0_w1_tensor=upload(mesh, packed[0], ttnn.bfloat16, layout=ttnn.TILE_LAYOUT),
        w2_tensor=upload(mesh, packed[1], ttnn.bfloat16, layout=ttnn.TILE_LAYOUT),
        cluster_axis=0,
    )
    cores = [ttnn.CoreCoord(1 + i % 3, i // 3) for i in range(12)]
    combined = ttnn.experimental.selective_reduce_combine(
        results[4], results[1], results[2], results[0], hidden_size=hidden, batch_size=tokens, seq_size=1,
        select_experts_k=K, cluster_axis=0, topology=ttnn.Topology.Linear, num_links=1, token_parallel_core_dim=4,
        data_parallel_core_dim=3, worker_cores=cores,
        mux_core_range_set=ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(5, 5), ttnn.CoreCoord(6, 6))]),
    )  # fmt: skip

    for device, values in enumerate(map(ttnn.to_torch, ttnn.get_device_tensors(combined))):
        row, column = divmod(device, 2)
        for t in range(own):
            token = row * own + t
            for i in range(K):
                expert = int(chosen[token, i])
                wanted = torch.zeros(hidden)  # experts of the other column are in another ring
                if expert // EXPERTS % 2 == column:
                    wanted = run(x[token].float(), expert % EXPERTS, ttnn.MoEActivationFunction.SWIGLU)
                    assert_correlated(wanted, values[i, t].float(), 0.99)
                else:
                    assert torch.equal(wanted, values[i, t].float())


def test_moe_cores_are_ttnns():
    mesh = open_mesh(1, 1, system="n150")  # grid 8x8: asked of TT-NN 0.81.1 on a Wormhole of that grid

    assert [(c.x, c.y) for c in ttnn.experimental.get_moe_combine_cores(mesh, 4, 3, 2880)] == [
        (x, y) for x in (6, 7) for y in range(6)
    ]
    assert [(c.x, c.y) for c in ttnn.experimental.get_moe_combine_cores(mesh, 4, 4, 4096)] == [
        (x, y) for x in range(8) for y in (2, 3)
    ]
    assert str(ttnn.experimental.get_moe_worker_mcast_bounding_box(mesh, 4, 3, 2880)) == "[0-0 - 7-7]"
    with pytest.raises(RuntimeError, match="could not place a column-0-anchored compact 12-core matmul ring together"):
        ttnn.experimental.get_moe_combine_cores(mesh, 10, 5, 4096)


def test_fabric_options_of_moe_compute_need_an_axis():
    mesh = open_mesh(1, 1, system="n150")
    tensor = upload(mesh, torch.zeros(1, 1, 64), ttnn.bfloat16)

    with pytest.raises(RuntimeError, match=r"moe_compute\(cluster_axis=None\) requires num_links to be std::nullopt"):
        ttnn.experimental.moe_compute(
            *[tensor] * 6, layer_id=0, output_height_shard_dim=4, intermediate_size=384, num_links=2
        )


def test_workers_beside_dram_banks_are_ttnns():
    mesh = open_mesh(1, 1, system="n150")

    cores = mesh.get_optimal_dram_bank_to_logical_worker_assignment(ttnn.NOC.NOC_0)

    assert [(c.x, c.y) for c in cores] == [
        (3, 7), (0, 0), (0, 4), (0, 5), (4, 0), (7, 7), (4, 1), (4, 6), (6, 3), (4, 2), (4, 4), (4, 5)
    ]  # fmt: skip


def test_rows_in_shards_that_are_no_tiles_are_converted_by_the_host():
    mesh = open_mesh(1, 4)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 7))})
    shard = ttnn.ShardSpec(cores, [1, K], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)

    tensor = upload(mesh, torch.ones(8, K), ttnn.bfloat16, memory_config=config)  # float32 to bfloat16

    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(tensor)[0]).float(), torch.ones(8, K))
