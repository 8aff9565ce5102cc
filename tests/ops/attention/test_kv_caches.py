"""Caches are written in place, shared ones split on the first write, and wrong calls are refused in TT-NN's words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.caches.paged_cache_update import write_rows, write_rows_without_waiting


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    yield opened
    ttnn.close_mesh_device(opened)


def put(mesh: Any, values: torch.Tensor, dim: int | None = None, dtype: Any = ttnn.bfloat16) -> Any:
    mapper = ttnn.ReplicateTensorToMesh(mesh) if dim is None else ttnn.ShardTensorToMesh(mesh, dim=dim)
    layout = ttnn.TILE_LAYOUT if values.is_floating_point() else ttnn.ROW_MAJOR_LAYOUT
    return ttnn.from_torch(
        values,
        dtype=dtype if values.is_floating_point() else ttnn.int32,
        layout=layout,
        device=mesh,
        mesh_mapper=mapper,
    )


def put_tokens(mesh: Any, values: torch.Tensor, dim: int | None = None) -> Any:
    """Tokens as the updates of paged caches take them: the heads of every user on a core of its own."""
    users = values.shape[1] // (mesh.get_num_devices() if dim == 1 else 1)
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(users - 1, 0))})
    shards = ttnn.ShardSpec(cores, [32, values.shape[-1]], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)
    return ttnn.to_memory_config(put(mesh, values, dim), config)


def storage(tensor: Any) -> int:
    return int(tensor.buffer.cell.values.untyped_storage().data_ptr())


@pytest.mark.parametrize("dtype", [ttnn.bfloat16, ttnn.bfloat8_b])
def test_updates_do_not_copy_the_cache(mesh: Any, dtype: Any) -> None:
    cache = put(mesh, torch.zeros(16, 2, 128, 64), dim=0, dtype=dtype)
    token = put_tokens(mesh, torch.ones(1, 16, 2, 64), dim=1)
    ttnn.experimental.paged_update_cache(cache, token, update_idxs=[0, 0])
    before = storage(cache)

    for position in range(1, 5):
        ttnn.experimental.paged_update_cache(cache, token, update_idxs=[position, position])
        ttnn.fill_cache(cache, put(mesh, torch.ones(1, 2, 32, 64), dtype=dtype), 1, update_idx=64)

    assert storage(cache) == before
    held = ttnn.to_torch(cache, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
    assert held[:, :, :5].eq(1).all()
    assert held[1::2, :, 64:96].eq(1).all()
    assert held[::2, :, 5:].eq(0).all()


def test_a_replicated_cache_splits_when_devices_write_different_tokens(mesh: Any) -> None:
    cache = put(mesh, torch.zeros(1, 2, 64, 64))
    token = put_tokens(mesh, torch.arange(8.0).reshape(1, 8, 1, 1).expand(1, 8, 2, 64).contiguous(), dim=1)

    ttnn.experimental.paged_update_cache(cache, token, update_idxs=[7])

    for device, shard in enumerate(ttnn.get_device_tensors(cache)):
        assert ttnn.to_torch(shard)[0, 0, 7, 0] == device


def test_somebody_who_holds_the_old_values_keeps_them(mesh: Any) -> None:
    cache = put(mesh, torch.zeros(8, 2, 64, 64), dim=0)
    copy = ttnn.clone(cache)

    ttnn.update_cache(cache, put(mesh, torch.ones(1, 2, 32, 64)), 3)

    assert ttnn.to_torch(ttnn.get_device_tensors(copy)[0]).eq(0).all()
    assert ttnn.to_torch(ttnn.get_device_tensors(cache)[0])[0, :, 3].eq(1).all()


def test_only_chosen_devices_write(mesh: Any) -> None:
    cache = put(mesh, torch.zeros(1, 2, 64, 64))
    token = put_tokens(mesh, torch.ones(1, 1, 2, 64))

    ttnn.experimental.paged_update_cache(cache, token, update_idxs=[0], mesh_coords={ttnn.MeshCoordinate(0, 3)})

    written = [bool(ttnn.to_torch(shard)[0, :, 0].eq(1).all()) for shard in ttnn.get_device_tensors(cache)]
    assert written == [device == 3 for device in range(8)]


def test_prompts_longer_than_their_pages_are_refused(mesh: Any) -> None:
    cache, table = put(mesh, torch.zeros(4, 2, 32, 64)), put(mesh, torch.arange(2).reshape(1, 2))

    with pytest.raises(RuntimeError, match=r"must fit in max_num_blocks_per_seq \(2\) \* block_size \(32\)"):
        ttnn.experimental.paged_fill_cache(cache, put(mesh, torch.zeros(1, 2, 96, 64)), table)


def test_options_of_pages_need_pages(mesh: Any) -> None:
    cache, token = put(mesh, torch.zeros(1, 2, 64, 64)), put_tokens(mesh, torch.ones(1, 1, 2, 64))

    with pytest.raises(RuntimeError, match="cache_position_modulo is only supported in paged mode"):
        ttnn.experimental.paged_update_cache(cache, token, update_idxs=[0], cache_position_modulo=32)


def test_attention_whose_chunks_do_not_fit_is_refused(mesh: Any) -> None:
    heads = put(mesh, torch.zeros(1, 1, 2048, 256))
    config = ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(8, 8), q_chunk_size=1024, k_chunk_size=1024)

    with pytest.raises(RuntimeError, match="Statically allocated circular buffers"):
        ttnn.transformer.scaled_dot_product_attention(heads, heads, heads, program_config=config)


def repeat_on_cores(mesh: Any, values: torch.Tensor, dtype: Any, cores: int) -> Any:
    """The same rows on every core, in L1, as models that decode quickly keep them."""
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(cores - 1, 0))])
    spec = ttnn.ShardSpec(grid, list(values.shape), ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    repeated = values.repeat(cores, 1)
    return ttnn.from_torch(repeated, dtype=dtype, device=mesh, memory_config=config)


def test_positions_and_pages_repeated_on_every_core_decode_as_single_ones(mesh: Any) -> None:
    torch.manual_seed(0)
    q, k, v = put(mesh, torch.randn(1, 4, 8, 64)), *(put(mesh, torch.randn(16, 1, 32, 64)) for _ in range(2))
    positions, pages = torch.tensor([[5, 40, 90, 127]]), torch.randperm(16).reshape(4, 4)

    def decode(table: Any, position: Any) -> torch.Tensor:
        out = ttnn.transformer.paged_scaled_dot_product_attention_decode(q, k, v, table, cur_pos_tensor=position)
        return ttnn.to_torch(ttnn.get_device_tensors(out)[0])

    single = decode(put(mesh, pages), put(mesh, positions[0]))
    table = repeat_on_cores(mesh, pages, ttnn.uint16, 3)

    assert torch.equal(decode(table, repeat_on_cores(mesh, positions, ttnn.int32, 3)), single)
    with pytest.raises(RuntimeError, match="only supports UINT16 datatype for sharded configurations"):
        decode(repeat_on_cores(mesh, pages, ttnn.int32, 3), put(mesh, positions[0]))
    with pytest.raises(RuntimeError, match="must have shard height batch_size 4 equal to Q on 3 cores"):
        decode(repeat_on_cores(mesh, pages[:2], ttnn.uint16, 3), put(mesh, positions[0]))


def test_rotary_tables_may_be_shorter_than_the_sequence(mesh: Any) -> None:
    torch.manual_seed(0)
    values, cos, sin, turn = (torch.randn(1, *s) for s in ((2, 128, 64), (1, 64, 64), (1, 64, 64), (1, 32, 32)))

    def rotate(rows: int) -> torch.Tensor:
        x, *tables = (put(mesh, values[..., :rows, :]), put(mesh, cos), put(mesh, sin), put(mesh, turn))
        out = ttnn.experimental.rotary_embedding_llama(x, *tables, is_decode_mode=False)
        return ttnn.to_torch(ttnn.get_device_tensors(out)[0])

    whole = rotate(128)

    assert whole.shape == values.shape
    assert torch.equal(whole[..., :64, :], rotate(64))


def test_rows_written_without_a_count_are_those_written_with_one() -> None:
    draw = torch.Generator().manual_seed(0)
    for users in (1, 5):
        for _ in range(30):
            cache = torch.randn(2, 3, 4, 2, 8, 16, generator=draw)
            block, row = (torch.randint(-1, n, (2, 3, users), generator=draw) for n in (4, 8))
            block, row = (
                block[..., :1].expand_as(block),
                row.clamp(max=2),
            )  # several write to one row: the last one stays
            values = torch.randn(2, 3, users, 2, 16, generator=draw)
            mask = torch.rand(2, 3, users, generator=draw) < 0.5
            block, row = (torch.where(mask, x, 99) for x in (block, row))  # what is not written may be anywhere
            expected = cache.clone()

            write_rows(expected, block, row, values, mask, 2)
            write_rows_without_waiting(cache, block, row, values, mask)

            assert torch.equal(cache, expected)
