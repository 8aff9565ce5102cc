"""Indexers of sparse attention: scores against goldens, rows of a sequence that is sharded over a mesh, striped caches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn

WHOLE = ttnn.IndexerScoreProgramConfig(head_group_size=0, k_chunk_size=256)


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "p150x4")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 2))
    yield opened
    ttnn.close_mesh_device(opened)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Integers: sums of products are exact in any order."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def put(mesh: ttnn.MeshDevice, values: torch.Tensor, dim: int | None = None, axis: int = 0) -> ttnn.Tensor:
    placements = [ttnn.PlacementReplicate(), ttnn.PlacementReplicate()]
    if dim is not None:
        placements[axis] = ttnn.PlacementShard(dim)
    mapper = ttnn.create_mesh_mapper(mesh, ttnn.MeshMapperConfig(placements))
    return ttnn.from_torch(values, device=mesh, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16, mesh_mapper=mapper)


def each(tensor: ttnn.Tensor) -> list[torch.Tensor]:
    return [ttnn.to_torch(one).float() for one in ttnn.get_device_tensors(tensor)]


def test_scores_agree_with_the_golden(mesh: ttnn.MeshDevice) -> None:
    q, k, gates = numbers(1, 4, 64, 32), numbers(1, 1, 256, 32, seed=1), numbers(1, 4, 64, 1, seed=2)
    golden = ttnn.get_golden_function(ttnn.experimental.indexer_score_dsa)

    got = ttnn.experimental.indexer_score_dsa(
        put(mesh, q), put(mesh, k), put(mesh, gates), chunk_start_idx=0, seq_shard_axes=[0], program_config=WHOLE
    )

    for device, rank in ((0, 0), (2, 1)):
        want = golden(q, k, gates, chunk_start_idx=64 * rank)
        assert torch.equal(each(got)[device], want.bfloat16().float())


@pytest.mark.parametrize("block", [0, 32])
def test_groups_and_blocks_agree_with_the_golden(mesh: ttnn.MeshDevice, block: int) -> None:
    q, k = numbers(1, 4, 64, 32), numbers(1, 1, 256, 32, seed=1)
    golden = ttnn.get_golden_function(ttnn.experimental.indexer_score_msa)
    options = {"num_groups": 2, "scale": 0.5, "block_size": block}

    got = ttnn.experimental.indexer_score_msa(
        put(mesh, q), put(mesh, k), chunk_start_idx=0, program_config=WHOLE, **options
    )

    assert got.layout is ttnn.ROW_MAJOR_LAYOUT
    for rank, own in enumerate(each(got)):
        assert torch.equal(own, golden(q, k, chunk_start_idx=64 * rank, **options).bfloat16().float())


def test_a_striped_cache_is_read_in_the_order_of_tokens(mesh: ttnn.MeshDevice) -> None:
    q, k, gates = numbers(1, 2, 32, 32), numbers(1, 1, 128, 32, seed=1), numbers(1, 2, 32, 1, seed=2)
    striped = torch.cat([k[:, :, 0:32], k[:, :, 64:96], k[:, :, 32:64], k[:, :, 96:128]], 2)  # two devices' pieces
    options = {"chunk_start_idx": 64, "seq_shard_axes": [0]}
    tensors = put(mesh, q), put(mesh, gates)

    plain = ttnn.experimental.indexer_score_dsa(tensors[0], put(mesh, k), tensors[1], **options)
    dealt = ttnn.experimental.indexer_score_dsa(
        tensors[0], put(mesh, striped), tensors[1], block_cyclic_sp_axis=0, block_cyclic_chunk_local=32, **options
    )

    for a, b in zip(each(plain), each(dealt), strict=True):
        assert torch.equal(a, b)


def test_growing_lengths_compile_nothing(mesh: ttnn.MeshDevice) -> None:
    q, k, gates = put(mesh, numbers(1, 2, 32, 32)), put(mesh, numbers(3, 1, 512, 32)), put(mesh, numbers(1, 2, 32, 1))
    run = ttnn.experimental.indexer_score_dsa

    run(q, k, gates, chunk_start_idx=0, kv_len=256, cache_batch_idx=0)
    entries = mesh.num_program_cache_entries()
    masked = run(q, k, gates, chunk_start_idx=128, kv_len=384, cache_batch_idx=2)

    assert mesh.num_program_cache_entries() == entries
    assert bool((each(masked)[3][..., 384:] == float("-inf")).all())


def test_a_unit_of_work_writes_whole_lines(mesh: ttnn.MeshDevice) -> None:
    q, k = put(mesh, numbers(1, 2, 32, 32)), put(mesh, numbers(1, 1, 512, 32))
    config = ttnn.IndexerScoreProgramConfig(head_group_size=0, k_chunk_size=128)

    with pytest.raises(RuntimeError, match=r"k_chunk_size/block_size \(= 4\) to be a multiple of 8"):
        ttnn.experimental.indexer_score_msa(q, k, num_groups=1, chunk_start_idx=0, block_size=32, program_config=config)


def test_a_slot_that_is_not_there_is_refused(mesh: ttnn.MeshDevice) -> None:
    q, k, gates = put(mesh, numbers(1, 2, 32, 32)), put(mesh, numbers(3, 1, 512, 32)), put(mesh, numbers(1, 2, 32, 1))

    with pytest.raises(RuntimeError, match=r"cache_batch_idx \(3\) must be < k batch slots \(3\)"):
        ttnn.experimental.indexer_score_dsa(q, k, gates, chunk_start_idx=0, cache_batch_idx=3)


def test_rows_of_a_scaled_cache_keep_their_bytes(mesh: ttnn.MeshDevice) -> None:
    def rows(values: torch.Tensor) -> ttnn.Tensor:
        return ttnn.from_torch(
            values, device=mesh, mesh_mapper=ttnn.ReplicateTensorToMesh(mesh), layout=ttnn.ROW_MAJOR_LAYOUT
        )

    latent, scales = ttnn.experimental.deepseek_prefill.per_token_cast_to_fp8(rows(torch.randn(2, 3, 512).bfloat16()))
    rope = rows(torch.randn(2, 3, 64).bfloat16())

    packed = ttnn.experimental.deepseek_prefill.pack_scaled_fp8_kv_cache(latent, scales, rope)

    shards = [
        ttnn.to_torch(ttnn.get_device_tensors(t)[1]).contiguous().view(torch.uint8) for t in (latent, scales, rope)
    ]
    got = ttnn.to_torch(ttnn.get_device_tensors(packed)[1]).contiguous().view(torch.uint8)
    assert tuple(packed.shape) == (2, 3, 656)
    assert torch.equal(got, torch.cat(shards, -1))


def test_wormhole_has_no_indexer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    q, k, gates = (put(device, numbers(*s)) for s in ((1, 2, 32, 32), (1, 1, 64, 32), (1, 2, 32, 1)))

    with pytest.raises(RuntimeError, match="indexer_score is only supported on Blackhole"):
        ttnn.experimental.indexer_score_dsa(q, k, gates, chunk_start_idx=0)
    ttnn.close_mesh_device(device)
