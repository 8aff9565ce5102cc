"""Statistics before an all-gather by Welford's method: each device's mean and variance, joined afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import ttmesh
import ttmesh.ttnn as ttnn

WELFORD = ttnn.LayerNormDefaultProgramConfig(use_welford=True)
WIDTH = 128


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "n300")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def _on(mesh: ttnn.MeshDevice, values: torch.Tensor) -> ttnn.Tensor:
    mapper = ttnn.ShardTensorToMesh(mesh, dim=-1)
    return ttnn.from_torch(values, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def _reciprocals(mesh: ttnn.MeshDevice) -> ttnn.Tensor:
    core = ttnn.CoreCoord(0, 0)
    return ttnn.create_layer_norm_reciprocals(mesh, ttnn.CoreRangeSet({ttnn.CoreRange(core, core)}), WIDTH)


def _wide() -> ttnn.WormholeComputeKernelConfig:
    return ttnn.WormholeComputeKernelConfig(math_fidelity=ttnn.MathFidelity.HiFi4, fp32_dest_acc_en=True)


@pytest.mark.parametrize("mode", ["ideal", "realistic", "exact"])
@pytest.mark.parametrize("has_residual", [False, True])
def test_float32_rows_far_from_zero_keep_their_variance(mesh: ttnn.MeshDevice, mode: str, has_residual: bool) -> None:
    values = torch.randn(1, 1, 32, 2 * WIDTH, generator=torch.Generator().manual_seed(1)) + 1000
    residual = torch.randn(values.shape) if has_residual else torch.zeros(values.shape)
    options = {"compute_kernel_config": _wide(), "program_config": WELFORD}

    with ttmesh.numerics(mode):
        x = _on(mesh, values)
        added = {"residual_input_tensor": _on(mesh, residual)} if has_residual else {}
        stats = ttnn.layer_norm_pre_all_gather(
            x, dtype=ttnn.float32, recip_tensor=_reciprocals(mesh), **options, **added
        )
        gathered = ttnn.all_gather(stats, dim=3)
        out = ttnn.layer_norm_post_all_gather(x, gathered, epsilon=1e-5, **options)

    total = (values + residual).double()
    moments = ttnn.to_torch(stats, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=-1))
    for i, part in enumerate(total.chunk(2, -1)):
        mean, variance = moments[..., 64 * i].double(), moments[..., 64 * i + 32].double()
        assert torch.allclose(mean, part.mean(-1), rtol=1e-6)
        assert torch.allclose(variance, part.var(-1, correction=0), rtol=1e-3)
    if not has_residual:
        result = ttnn.to_torch(out, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=-1))
        assert torch.allclose(result, F.layer_norm(total, (2 * WIDTH,), eps=1e-5).float(), atol=2e-2)


def test_what_ttnn_refuses(mesh: ttnn.MeshDevice) -> None:
    x = _on(mesh, torch.randn(1, 1, 32, 2 * WIDTH))

    with pytest.raises(
        RuntimeError, match=r"Welford algorithm requires recip_tensor\. Use ttnn\.create_layer_norm_reci"
    ):
        ttnn.layer_norm_pre_all_gather(x, compute_kernel_config=_wide(), program_config=WELFORD)
    with pytest.raises(RuntimeError, match="RMSNorm with Welford's algorithm not supported in pre_all_gather"):
        ttnn.rms_norm_pre_all_gather(x, compute_kernel_config=_wide(), program_config=WELFORD)


@pytest.mark.parametrize("name", ["layer_norm_pre_all_gather", "rms_norm_pre_all_gather"])
def test_float32_statistics_take_the_vector_unit_and_bfloat16_ones_the_fpu(mesh: ttnn.MeshDevice, name: str) -> None:
    values = torch.randn(1, 1, 32, 2 * WIDTH, generator=torch.Generator().manual_seed(2))
    found = {}
    for mode in ("ideal", "exact"):
        with ttmesh.numerics(mode):
            for wide in (True, False):
                x = _on(mesh, values) if wide else ttnn.typecast(_on(mesh, values), ttnn.bfloat16)
                dtype = ttnn.float32 if wide else ttnn.bfloat16
                stats = getattr(ttnn, name)(x, dtype=dtype, compute_kernel_config=_wide() if wide else None)
                found[mode, wide] = ttnn.to_torch(stats, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=-1))

    assert torch.equal(found["ideal", True], found["exact", True])
    assert not torch.equal(found["ideal", False], found["exact", False])
