"""Operations of the FPU follow TTMESH_NUMERICS with TT-NN's defaults, and the page lists every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh
from ttmesh import ttnn
from ttmesh.base import numerics_mode, settings
from ttmesh.base.dtypes import DataType, MathFidelity, bfloat8_b, bfloat16, float32
from ttmesh.chip.numerics import fpu
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.fpu_defaults import NOT_IN_TABLE, fpu_rules
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig

PAGE = Path(__file__).parents[3] / "docs" / "numerics.md"


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=16384)
    yield device
    ttnn.close_mesh_device(device)


def _on(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: DataType = bfloat16, layout: Any = None) -> ttnn.Tensor:
    return ttnn.from_torch(values, dtype=dtype, layout=layout or ttnn.TILE_LAYOUT, device=mesh)


def _pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[FpuConfig]:
    """The settings of every FPU that a call used."""
    used: list[FpuConfig] = []
    before = fpu.run_in

    def run_in(chosen: fpu.Fpu, lane: Callable[..., Any]) -> Callable[..., Any]:
        used.append(chosen.config)
        return before(chosen, lane)

    monkeypatch.setattr(fpu, "run_in", run_in)
    return used


def test_realistic_is_what_users_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TTMESH_NUMERICS", raising=False)
    numerics_mode.choose(None)

    assert numerics_mode.current() == settings.get_str("TTMESH_NUMERICS") == "realistic"


def test_every_operation_in_the_tables_is_on_the_page() -> None:
    known, page = families.load(), PAGE.read_text()
    listed = {name for name in (*fpu_rules, *NOT_IN_TABLE) if name in known}
    missing = [name for name in sorted(listed) if f"`{name.rpartition('.')[2]}`" not in page]
    forms = ("moreh_", "scaled_dot_product_attention")  # the page names these families by their forms

    assert [name for name in missing if not any(form in name for form in forms)] == []


CALLS: dict[str, tuple[Callable[[Any, Any], Any], str, bool]] = {
    "sum": (lambda a, b: ttnn.sum(a, -1), "HiFi3", True),
    "mean": (lambda a, b: ttnn.mean(a, -1), "HiFi3", True),
    "softmax": (lambda a, b: ttnn.softmax(a, -1), "HiFi3", True),
    "rms_norm": (lambda a, b: ttnn.rms_norm(a), "HiFi4", False),
    "layer_norm": (lambda a, b: ttnn.layer_norm(a), "HiFi4", True),
    "minimal_matmul": (lambda a, b: ttnn.experimental.minimal_matmul(a, b), "HiFi2", True),
    "moreh_sum": (lambda a, b: ttnn.moreh_sum(a, dim=3), "HiFi4", False),
    "moreh_matmul": (lambda a, b: ttnn.moreh_matmul(a, b), "LoFi", False),
    "attention": (lambda a, b: ttnn.transformer.scaled_dot_product_attention(a, a, a), "HiFi2", False),
    "fast_reduce_nc": (lambda a, b: ttnn.experimental.fast_reduce_nc(a, dims=[0]), "HiFi4", False),
}


@pytest.mark.parametrize("name", CALLS)
def test_defaults_are_those_that_ttnn_printed(mesh: ttnn.MeshDevice, settled: list[FpuConfig], name: str) -> None:
    a, b = _on(mesh, torch.ones(1, 1, 64, 64)), _on(mesh, torch.ones(1, 1, 64, 64))
    call, fidelity, wide = CALLS[name]

    with ttmesh.numerics("realistic"):
        call(a, b)

    assert (settled[0].fidelity.name, settled[0].fp32_dest) == (fidelity, wide)


def test_a_compute_config_wins_over_the_default(mesh: ttnn.MeshDevice, settled: list[FpuConfig]) -> None:
    config = WormholeComputeKernelConfig(math_fidelity=MathFidelity.LoFi, fp32_dest_acc_en=True)

    with ttmesh.numerics("realistic"):
        ttnn.softmax(_on(mesh, torch.ones(1, 1, 32, 64)), -1, compute_kernel_config=config)

    assert settled[0].fidelity is MathFidelity.LoFi
    assert settled[0].fp32_dest


def test_integers_and_float32_means_take_the_vector_unit(mesh: ttnn.MeshDevice, settled: list[FpuConfig]) -> None:
    fine = torch.full((32, 32), 1 + 2**-20)

    with ttmesh.numerics("realistic"):
        mean = ttnn.to_torch(ttnn.mean(_on(mesh, fine, float32), -1))
        total = ttnn.to_torch(ttnn.sum(_on(mesh, fine, float32), -1))

    assert len(settled) == 1  # the sum's: float32 is cut to 10 fraction bits
    assert torch.equal(mean, fine[:, 0])
    assert torch.equal(total, torch.full((32,), 32.0))


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_a_convolution_is_not_exactly_torch_s(mesh: ttnn.MeshDevice, mode: str) -> None:
    """tt-metal's own tests require a PCC that is not 1."""
    x, w = torch.randn(1, 8, 8, 32).bfloat16().float(), torch.randn(32, 32, 3, 3).bfloat16().float()
    expected = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, padding=1).permute(0, 2, 3, 1)

    found = {}
    for chosen in ("ideal", mode):
        with ttmesh.numerics(chosen):
            out = ttnn.conv2d(
                input_tensor=_on(mesh, x, layout=ttnn.ROW_MAJOR_LAYOUT),
                weight_tensor=ttnn.from_torch(w, dtype=bfloat16),
                device=mesh,
                in_channels=32,
                out_channels=32,
                batch_size=1,
                input_height=8,
                input_width=8,
                kernel_size=(3, 3),
                stride=(1, 1),
                padding=(1, 1),
            )
        found[chosen] = _pcc(ttnn.to_torch(out).reshape(expected.shape), expected)

    assert 0.997 < found[mode] < found["ideal"] - 1e-6


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_attention_loses_what_16_bit_registers_lose(mesh: ttnn.MeshDevice, mode: str) -> None:
    q, k, v = (torch.randn(1, 4, 96, 64) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with ttmesh.numerics(mode):
        out = ttnn.transformer.scaled_dot_product_attention(_on(mesh, q), _on(mesh, k), _on(mesh, v), is_causal=True)

    assert 0.999 < _pcc(ttnn.to_torch(out), expected) < 0.99999


def test_block_floats_are_packed_by_the_chip_s_packer_on_every_route(mesh: ttnn.MeshDevice) -> None:
    half_up = torch.tensor([[1.0, 1 + 2**-7] * 16])  # between two of 7 bits

    with ttmesh.numerics("realistic"):
        moved = ttnn.to_torch(ttnn.multiply(_on(mesh, half_up), 1.0, dtype=bfloat8_b))

    assert moved[0, 1].item() == 1 + 2**-6


@pytest.mark.parametrize("dim", [-1, -2])
def test_the_variance_of_a_16_bit_destination_is_rounded_before_its_root(mesh, dim):
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    narrow = ttnn.WormholeComputeKernelConfig(fp32_dest_acc_en=False)
    x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh)

    with ttmesh.numerics("realistic"):
        wide_std = ttnn.to_torch(ttnn.std(x, dim))
        narrow_std = ttnn.to_torch(ttnn.std(x, dim, compute_kernel_config=narrow))

    exact = values.double().var(dim)
    assert torch.equal(wide_std, exact.float().sqrt().bfloat16())
    assert torch.equal(narrow_std, exact.bfloat16().float().sqrt().bfloat16())
    assert not torch.equal(wide_std, narrow_std)


@pytest.mark.parametrize("operation", [ttnn.var, ttnn.std], ids=["var", "std"])
def test_float32_needs_a_32_bit_destination_for_a_variance(mesh, operation):
    x = ttnn.from_torch(torch.rand(64, 64), layout=ttnn.TILE_LAYOUT, device=mesh)
    narrow = ttnn.WormholeComputeKernelConfig(fp32_dest_acc_en=False)

    with pytest.raises(RuntimeError, match=r"ttnn.std/var with Float32 input requires fp32_dest_acc_en=true"):
        operation(x, -1, compute_kernel_config=narrow)
