"""Adaptive means are sums of the FPU: the compute config of a call decides their bits."""

from __future__ import annotations

import pytest
import torch

import ttmesh
from ttmesh import ttnn


@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize("size", [(2, 3), (5, 5)])
def test_fidelity_and_destination_reach_adaptive_means(mode: str, size: tuple[int, int]) -> None:
    values = torch.rand(1, 1, 144, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    images = values.float().reshape(1, 12, 12, 64).permute(0, 3, 1, 2)
    expected = torch.nn.functional.adaptive_avg_pool2d(images, size).permute(0, 2, 3, 1).reshape(1, 1, -1, 64)

    def average(fidelity: ttnn.MathFidelity, *, wide: bool) -> torch.Tensor:
        config = ttnn.WormholeComputeKernelConfig(math_fidelity=fidelity, fp32_dest_acc_en=wide)
        x = ttnn.from_torch(values, dtype=ttnn.bfloat16, device=mesh)
        pooled = ttnn.adaptive_avg_pool2d(
            x, batch_size=1, input_h=12, input_w=12, channels=64, output_size=size, compute_kernel_config=config
        )
        return ttnn.to_torch(pooled).float()

    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh, ttmesh.numerics(mode):
        fine = average(ttnn.MathFidelity.HiFi4, wide=True)
        cut = average(ttnn.MathFidelity.LoFi, wide=True)
        narrow = average(ttnn.MathFidelity.HiFi4, wide=False)

    assert torch.allclose(fine, expected, rtol=0.01)  # two roundings to bfloat16: the scaler's and the result's
    assert (cut < fine).float().mean() > 0.9  # bits of SrcA are cut, not rounded
    assert not torch.equal(narrow, fine)
    assert torch.allclose(narrow, expected, rtol=0.03)
