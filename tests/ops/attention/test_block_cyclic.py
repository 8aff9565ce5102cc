"""Caches of chunked prefill: every device writes, clears and turns its own rows of each chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

SP, ROWS, WIDTH, CHUNKS = 4, 32, 64, 3  # devices along axis 1, rows of a chunk per device
CHUNK = SP * ROWS
prefill = ttnn.experimental.deepseek_prefill


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, SP))
    yield opened
    ttnn.close_mesh_device(opened)


def block_cyclic(tokens: torch.Tensor) -> torch.Tensor:
    """[tokens, width] as every device along the axis holds them: [devices, rows, width]."""
    return torch.stack(
        [
            torch.cat([tokens[c * CHUNK + d * ROWS : c * CHUNK + (d + 1) * ROWS] for c in range(len(tokens) // CHUNK)])
            for d in range(SP)
        ]
    )


def spread(mesh: Any, shards: torch.Tensor, **options: Any) -> Any:
    """[devices, ...] along axis 1, the same on both rows of the mesh."""
    mapper = ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, SP), dims=(None, 0))
    options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh, "mesh_mapper": mapper, **options}
    return ttnn.from_torch(shards, **options)


def on_devices(tensor: Any) -> list[torch.Tensor]:
    return [ttnn.to_torch(shard).float() for shard in ttnn.get_device_tensors(tensor)]


def number(mesh: Any, value: int) -> Any:
    mapper = ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(
        torch.tensor([[[[value]]]], dtype=torch.int32), dtype=ttnn.uint32, device=mesh, mesh_mapper=mapper
    )


def rotated(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """The rows of one chunk in the order in which devices hold them when `by` tokens came before."""
    order = torch.arange(by, by + CHUNK)
    token_lists = [sorted(t for t in order.tolist() if t // ROWS % SP == d) for d in range(SP)]
    return torch.stack([tokens[[t - by for t in token_list]] for token_list in token_lists])


@pytest.mark.parametrize("before", [0, 32, 64, CHUNK, CHUNK + 96])
@pytest.mark.parametrize("by_tensor", [False, True])
def test_tokens_land_behind_those_before_them(mesh: Any, before: int, by_tensor: bool) -> None:
    tokens = torch.randn(CHUNK, WIDTH, generator=torch.Generator().manual_seed(before)).bfloat16().float()
    cache = spread(mesh, torch.zeros(SP * 4, 1, CHUNKS * ROWS, WIDTH))  # two users, two layers
    slab = spread(mesh, rotated(tokens, before)[:, None])

    if by_tensor:
        prefill.update_padded_kv_cache(cache, slab, number(mesh, 1), number(mesh, before), 1, 2, 1)
    else:
        prefill.update_padded_kv_cache(cache, slab, 1, 1, 2, before, 1)

    full = torch.zeros(CHUNKS * CHUNK, WIDTH)
    full[before : before + CHUNK] = tokens
    expected = block_cyclic(full)
    for device, held in enumerate(on_devices(cache)):
        assert torch.equal(held[3, 0], expected[device % SP])
        assert not held[:3].any()


def test_rows_up_to_the_next_boundary_are_cleared(mesh: Any) -> None:
    ones = torch.ones(CHUNKS * CHUNK, WIDTH)
    cache = spread(mesh, block_cyclic(ones)[:, None])

    prefill.zero_padded_kv_cache(cache, 0, 0, 1, 150, CHUNK, 1, pad_align=128)

    ones[150:256] = 0
    expected = block_cyclic(ones)
    for device, held in enumerate(on_devices(cache)):
        assert torch.equal(held[0, 0], expected[device % SP])


@pytest.mark.parametrize("before", [0, 32, CHUNK + 64])
def test_angles_are_those_of_the_tokens(mesh: Any, before: int) -> None:
    draw = torch.Generator().manual_seed(before)
    angle = torch.randn(CHUNKS * CHUNK, WIDTH // 2, generator=draw).repeat_interleave(2, -1)
    tokens = torch.randn(CHUNK, WIDTH, generator=draw).bfloat16().float()
    matrix = torch.zeros(32, 32)
    matrix[range(0, 32, 2), range(1, 32, 2)], matrix[range(1, 32, 2), range(0, 32, 2)] = 1, -1
    matrix = ttnn.from_torch(
        matrix[None, None], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
        mesh_mapper=ttnn.ReplicateTensorToMesh(mesh),
    )  # fmt: skip
    cos, sin = (spread(mesh, block_cyclic(f(angle))[:, None]) for f in (torch.cos, torch.sin))

    result = prefill.rotary_embedding_indexed(
        spread(mesh, rotated(tokens, before)[:, None]), cos, sin, matrix, before, 1
    )

    pairs = torch.view_as_complex(tokens.reshape(CHUNK, -1, 2))
    rotated_pairs = pairs * torch.polar(torch.ones_like(pairs.real), angle[before : before + CHUNK, ::2])
    expected = rotated(torch.view_as_real(rotated_pairs).reshape(CHUNK, WIDTH), before)
    for device, held in enumerate(on_devices(result)):
        assert torch.allclose(held[0, 0], expected[device % SP], atol=0.05)


def test_a_chunk_that_does_not_fit_is_refused(mesh: Any) -> None:
    cache = spread(mesh, torch.zeros(SP, 1, ROWS, WIDTH))
    slab = spread(mesh, torch.zeros(SP, 1, ROWS, WIDTH))

    with pytest.raises(RuntimeError, match=r"kv_actual_global \(32\) \+ chunk_global \(128\) would overflow"):
        prefill.update_padded_kv_cache(cache, slab, 0, 0, 1, 32, 1)
