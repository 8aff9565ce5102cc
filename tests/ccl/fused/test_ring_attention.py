"""Attention over a sequence that is sharded over a ring agrees with attention over the full sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")


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


def put(mesh: Any, values: torch.Tensor, dim: int | None) -> Any:
    mapper = ttnn.ShardTensor2dMesh(mesh, mesh_shape=(2, 4), dims=(None, dim))
    return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def row(result: Any) -> torch.Tensor:
    """The shards of the first row of devices, concatenated along the sequence."""
    shards = ttnn.get_device_tensors(result)[:4]
    return torch.cat([ttnn.to_torch(tensor).float() for tensor in shards], dim=2)


def ring(mesh: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *joint: torch.Tensor, **options: Any) -> Any:
    full = torch.zeros(k.shape)
    return ttnn.transformer.ring_joint_scaled_dot_product_attention(
        *(put(mesh, tensor, 2) for tensor in (q, k, v)),
        *(put(mesh, tensor, None) for tensor in joint),
        persistent_output_buffer_k=put(mesh, full, None),
        persistent_output_buffer_v=put(mesh, full, None),
        joint_strategy="rear",
        program_config=ttnn.SDPAProgramConfig(compute_with_storage_grid_size=(4, 4)),
        dim=2,
        multi_device_global_semaphore=[],
        num_links=1,
        cluster_axis=1,
        mesh_device=mesh,
        topology=ttnn.Topology.Linear,
        ccl_core_grid_offset=(0, 0),
        **options,
    )


def test_joint_rows_and_sharded_rows_see_each_other(mesh: Any) -> None:
    own, joint = [draw(i, 1, 4, 256, 64) for i in range(3)], [draw(9 + i, 1, 4, 32, 64) for i in range(3)]

    out, joint_out, _ = ring(mesh, *own, *joint, logical_n=250)

    q, k, v = own
    keys, values = (torch.cat([a[:, :, :250], b], 2) for a, b in ((k, joint[1]), (v, joint[2])))
    expected = F.scaled_dot_product_attention(torch.cat([q, joint[0]], 2), keys, values)
    assert torch.allclose(row(out), expected[:, :, :256], atol=0.02)
    assert torch.allclose(ttnn.to_torch(ttnn.get_device_tensors(joint_out)[2]).float(), expected[:, :, 256:], atol=0.02)


def test_causal_ring_masks_later_devices(mesh: Any) -> None:
    q, k, v = (draw(i, 1, 4, 256, 64) for i in range(3))

    out, _, _ = ring(mesh, q, k, v, logical_n=256, is_causal=True)

    assert torch.allclose(row(out), F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=0.03)


def test_a_device_of_a_distributed_ring_gets_an_early_and_a_late_chunk(mesh: Any) -> None:
    q, k, v = (draw(i, 1, 4, 256, 64) for i in range(3))

    out = ttnn.transformer.ring_distributed_scaled_dot_product_attention(
        *(put(mesh, tensor, None) for tensor in (q, k, v)), ring_size=4, ring_id=1
    )

    full = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = torch.cat([full[:, :, 32:64], full[:, :, 192:224]], 2)
    assert torch.allclose(ttnn.to_torch(ttnn.get_device_tensors(out)[0]).float(), expected, atol=0.03)
