"""ring_mla agrees with causal attention over the full sequence, whichever way the cache is laid out over the ring."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

RING, ROWS, CHUNK = 4, 64, 256
WIDTH, VALUES = 128, 64


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def put(mesh: Any, values: torch.Tensor, dim: int | None = None, dtype: Any = ttnn.bfloat16) -> Any:
    mapper = ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, 4), dims=(None, dim))
    layout = ttnn.TILE_LAYOUT if dtype == ttnn.bfloat16 else ttnn.ROW_MAJOR_LAYOUT
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=mesh, mesh_mapper=mapper)


def number(mesh: Any, value: int) -> Any:
    return put(mesh, torch.full((1, 1, 1, 1), value), dtype=ttnn.uint32)


def row(result: Any) -> torch.Tensor:
    """The shards of the first row of devices, concatenated along the sequence."""
    shards = ttnn.get_device_tensors(result)[:4]
    return torch.cat([ttnn.to_torch(tensor).float() for tensor in shards], dim=2)


def attend(mesh: Any, q: torch.Tensor, kv: torch.Tensor, *, slots: int = 1, **options: Any) -> torch.Tensor:
    cores = ttnn.CoreRangeSet([ttnn.CoreRange((0, 0), (7, 7))])
    arguments: dict[str, Any] = {
        "persistent_output_buffer_kv": put(mesh, torch.zeros(slots, *kv.shape[1:])),
        "head_dim_v": VALUES,
        "program_config": ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(4, 4)),
        "dim": 2,
        "multi_device_global_semaphore": [ttnn.create_global_semaphore(mesh, cores, 0) for _ in range(2)],
        "num_links": 1,
        "cluster_axis": 1,
        "mesh_device": mesh,
        "topology": ttnn.Topology.Linear,
        "ccl_core_grid_offset": (0, 6),
    }
    result = ttnn.transformer.ring_mla(put(mesh, q, 2), put(mesh, kv, 2), **(arguments | options))
    assert [tuple(tensor.shape)[2:] for tensor in result] == [(q.shape[2] // RING, VALUES), (q.shape[2] // 2, 1)]
    return row(result[0])


def expect(q: torch.Tensor, kv: torch.Tensor, start: int = 0) -> torch.Tensor:
    rows, keys = torch.arange(q.shape[2])[:, None] + start, torch.arange(kv.shape[2])
    return F.scaled_dot_product_attention(q, kv, kv[..., :VALUES], attn_mask=keys <= rows, enable_gqa=True)


def find_places(tokens: torch.Tensor, capacity: int) -> torch.Tensor:
    """Where a cache over the ring, shards concatenated, holds these tokens: every device has 64 of each chunk of 256."""
    group, inside = tokens // CHUNK, tokens % CHUNK
    return inside // ROWS * (capacity // RING) + group * ROWS + inside % ROWS


def test_the_first_columns_of_the_cache_are_the_values(mesh: Any) -> None:
    q, kv = draw(0, 1, 4, 256, WIDTH), draw(1, 1, 1, 256, WIDTH)

    out = attend(mesh, q, kv, logical_n=256)

    assert torch.allclose(out, expect(q, kv), atol=0.03)


def test_a_balanced_ring_holds_an_early_and_a_late_chunk_per_device(mesh: Any) -> None:
    q, kv = draw(0, 1, 4, 256, WIDTH), draw(1, 1, 1, 256, WIDTH)
    order = torch.cat([torch.tensor([i, 7 - i]) for i in range(4)])
    rows = (order[:, None] * 32 + torch.arange(32)).flatten()

    out = attend(mesh, q[:, :, rows], kv[:, :, rows], logical_n=256, is_balanced=True)

    assert torch.allclose(out, expect(q, kv)[:, :, rows], atol=0.03)


@pytest.mark.parametrize("length", [256, 512, 768])
def test_a_chunk_sees_the_chunks_before_it_in_one_slot_of_the_cache(mesh: Any, length: int) -> None:
    q, tokens = draw(0, 1, 4, CHUNK, WIDTH), draw(1, 1, 1, length, WIDTH)
    cache = draw(2, 3, 1, 768, WIDTH)
    cache[1, :, find_places(torch.arange(length), 768)] = tokens[0]

    out = attend(mesh, q, cache, logical_n=length, kv_cache_batch_idx=1)

    assert torch.allclose(out, expect(q, tokens, length - CHUNK), atol=0.03)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("start", [96, 256, 352])
def test_a_chunk_that_starts_anywhere_is_rotated_over_the_ring(mesh: Any, start: int, on_device: bool) -> None:
    length = start + CHUNK
    q, tokens = draw(0, 1, 4, CHUNK, WIDTH), draw(1, 1, 1, length, WIDTH)
    cache = draw(2, 4, 1, 768, WIDTH)
    cache[3, :, find_places(torch.arange(length), 768)] = tokens[0]
    new = torch.arange(start, length)
    owner = new % CHUNK // ROWS
    order = torch.argsort(owner, stable=True)  # every device holds its new tokens in order
    options: dict[str, Any] = {"logical_n": length, "kv_cache_batch_idx": 3, "kv_actual_isl": start}
    if on_device:
        options = {"logical_n": 1, "slot_id": number(mesh, 1), "kv_actual_isl_tensor": number(mesh, start)}
        options |= {"kv_cache_num_layers": 2, "kv_cache_layer_idx": 1}

    out = attend(mesh, q[:, :, order], cache, **options)

    assert torch.allclose(out, expect(q, tokens, start)[:, :, order], atol=0.03)


def test_rows_behind_the_last_real_token_are_left_alone(mesh: Any) -> None:
    q, tokens = draw(0, 1, 4, CHUNK, WIDTH), draw(1, 1, 1, 2 * CHUNK, WIDTH)
    cache = torch.zeros(1, 1, 768, WIDTH)
    cache[0, :, find_places(torch.arange(2 * CHUNK), 768)] = tokens[0]
    options = {"slot_id": number(mesh, 0), "kv_actual_isl_tensor": number(mesh, CHUNK)}

    out = attend(mesh, q, cache, logical_n=512, kv_valid_end_tensor=number(mesh, CHUNK + 70), **options)

    assert torch.allclose(out[:, :, :96], expect(q, tokens, CHUNK)[:, :, :96], atol=0.03)
    assert not out[:, :, 96:].any()


def test_a_longer_buffer_keeps_its_last_rows(mesh: Any) -> None:
    q, kv = draw(0, 1, 4, 256, WIDTH), draw(1, 1, 1, 256, WIDTH)
    buffer = put(mesh, torch.ones(1, 1, 320, WIDTH))

    attend(mesh, q, kv, logical_n=256, persistent_output_buffer_kv=buffer)

    held = ttnn.to_torch(ttnn.get_device_tensors(buffer)[3]).float()
    assert torch.equal(held[:, :, :256], kv)
    assert bool((held[:, :, 256:] == 1).all())


def test_slots_and_lengths_of_a_rotated_chunk_do_not_make_new_programs(mesh: Any) -> None:
    q, cache = draw(0, 1, 4, CHUNK, WIDTH), draw(2, 3, 1, 768, WIDTH)
    counts = []

    for slot, start in ((0, 96), (2, 352), (1, 256)):
        attend(mesh, q, cache, logical_n=start + CHUNK, kv_cache_batch_idx=slot, kv_actual_isl=start)
        counts.append(mesh.num_program_cache_entries())

    assert len(set(counts)) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"head_dim_v": 48}, "Latent-V head dim must be tile aligned. Got V: 48, tile width: 32"),
        ({"head_dim_v": 128}, "V head dim must be < K head dim. Got V: 128, K: 128"),
        ({"ccl_core_grid_offset": (0, 0)}, r"SDPA coregrid overlaps with AllGather coregrid \(row-major\)"),
        ({"cluster_axis": 2}, r"must be an in-range mesh axis or None; got 2 for mesh MeshShape\(\[2, 4\]\)"),
        ({"logical_n": 300}, "Got logical sequence length: 300, global sequence length: 256"),
        ({"kv_actual_isl": 0}, r"requires chunked-prefill input \(Q.seq < K.seq\). Got N_local_q=64, N_local_kv=64"),
        ({"topology": ttnn.Topology.Ring}, r"Could not find any forwarding direction from src \(M0, D0\)"),
    ],
)
def test_refusals_are_those_of_ttnn(mesh: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        attend(mesh, draw(0, 1, 4, 256, WIDTH), draw(1, 1, 1, 256, WIDTH), **({"logical_n": 256} | options))
