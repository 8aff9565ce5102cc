"""ttnn.matmul and linear follow TTMESH_NUMERICS with the defaults that TT-NN 0.81.1 resolves for the call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import ttmesh
from ttmesh import ttnn
from ttmesh.base import numerics_mode
from ttmesh.base.cores import CoreCoord, CoreGrid
from ttmesh.base.dtypes import Arch, DataType, Layout, MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.base.errors import SettingError
from ttmesh.chip.memory import MemoryMap
from ttmesh.chip.numerics import exact_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.matmul.matmul_blocks import MatmulCase, tiles_per_block
from ttmesh.ops.matmul.matmul_fpu import resolve
from ttmesh.tensor.calls.operation import Case
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, L1_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec

ROOM = 1_393_472  # bytes of L1 that a Wormhole core has for circular buffers


@pytest.fixture(params=["n150", "p100"])
def mesh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", request.param)
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield device
    ttnn.close_mesh_device(device)


@pytest.fixture
def wormhole(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield device
    ttnn.close_mesh_device(device)


def _on(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: DataType = bfloat16) -> ttnn.Tensor:
    mapper = ttnn.ReplicateTensorToMesh(mesh)
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)


def _read(tensor: ttnn.Tensor) -> torch.Tensor:
    return ttnn.to_torch(ttnn.get_device_tensors(tensor)[0])


def _compute_config(**changes: Any) -> WormholeComputeKernelConfig:
    return WormholeComputeKernelConfig(**{"math_fidelity": MathFidelity.HiFi3, "math_approx_mode": False, **changes})


# -- the setting -------------------------------------------------------------------------------------------------------


def test_ideal_is_the_default_and_a_context_goes_back_to_what_was() -> None:
    assert numerics_mode.current() == "ideal"
    with ttmesh.numerics("exact"):
        with ttmesh.numerics("realistic"):
            assert numerics_mode.current() == "realistic"
        assert numerics_mode.current() == "exact"
    assert numerics_mode.current() == "ideal"


def test_configure_and_the_variable_choose_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_NUMERICS", "realistic")
    numerics_mode.choose(None)
    try:
        assert numerics_mode.current() == "realistic"
        ttmesh.configure(numerics="exact")
        assert numerics_mode.current() == "exact"
        with pytest.raises(SettingError, match=r"TTMESH_NUMERICS='perfect' cannot be used; expected .*realistic"):
            ttmesh.configure(numerics="perfect")
    finally:
        monkeypatch.delenv("TTMESH_NUMERICS")
        numerics_mode.choose(None)


# -- what TT-NN resolves -----------------------------------------------------------------------------------------------


def _spec(shape: tuple[int, ...], dtype: DataType, memory: MemoryConfig = DRAM_MEMORY_CONFIG) -> TensorSpec:
    return TensorSpec(Shape(shape), dtype, Layout.TILE, memory_config=memory)


def _resolved(a: DataType, b: DataType, out: DataType, arch: Arch = Arch.WORMHOLE_B0, **options: Any) -> FpuConfig:
    specs = [_spec((128, 512), a), _spec((512, 256), b)]
    memory = MemoryMap.of(ttmesh.chip.catalogue.load_system("n150").chip)
    return resolve(Case({}, ("a", "b"), specs, [_spec((128, 256), out)], 2, options, arch, memory))


# What 0.81.1 printed for 128x512 times 512x256 in DRAM: fidelity, fp32_dest_acc_en, packer_l1_acc.
@pytest.mark.parametrize(
    ("a", "b", "out", "options", "printed"),
    [
        (bfloat16, bfloat16, bfloat16, {}, ("HiFi2", False, True)),
        (bfloat16, bfloat8_b, bfloat16, {}, ("HiFi2", False, True)),
        (bfloat8_b, bfloat16, bfloat8_b, {}, ("HiFi2", False, True)),
        (bfloat8_b, bfloat8_b, bfloat8_b, {}, ("LoFi", False, True)),
        (bfloat4_b, bfloat8_b, bfloat4_b, {}, ("LoFi", False, True)),
        (float32, float32, float32, {}, ("HiFi3", True, False)),
        (float32, bfloat8_b, float32, {}, ("HiFi2", True, False)),
        (bfloat16, bfloat16, float32, {}, ("HiFi2", True, False)),
        (float32, float32, bfloat16, {}, ("HiFi3", False, True)),
        (bfloat16, bfloat16, bfloat16, {"core_grid": CoreGrid(y=4, x=4)}, ("LoFi", False, True)),
        (float32, float32, float32, {"core_grid": CoreGrid(y=4, x=4)}, ("HiFi3", True, False)),
        (
            bfloat16,
            bfloat16,
            bfloat16,
            {"compute_kernel_config": _compute_config(math_fidelity=MathFidelity.HiFi4)},
            ("HiFi4", False, False),
        ),
    ],
)
def test_defaults_are_ttnn_s(
    a: DataType, b: DataType, out: DataType, options: dict[str, Any], printed: tuple[str, bool, bool]
) -> None:
    config = _resolved(a, b, out, **options)

    assert (config.fidelity.name, config.fp32_dest, config.packer_l1_acc) == printed


def test_float32_is_multiplied_in_four_phases_on_blackhole() -> None:
    assert _resolved(float32, float32, float32, Arch.BLACKHOLE).fidelity is MathFidelity.HiFi4


# Tiles of K that the circular buffers of 0.81.1's programs hold (n150, 8 x 8 cores).
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype", "tiles"),
    [
        (32, 4096, 4096, bfloat16, 2),
        (64, 512, 256, bfloat16, 2),
        (32, 96, 64, bfloat16, 1),
        (1024, 1024, 1024, bfloat16, 4),
        (2048, 2048, 64, bfloat16, 2),
        (512, 480, 512, bfloat16, 1),
        (64, 2048, 8192, bfloat16, 2),
        (2048, 4096, 2048, bfloat16, 16),
        (256, 6144, 256, bfloat16, 24),
        (4096, 4096, 4096, bfloat16, 2),
        (4096, 4096, 4096, bfloat8_b, 8),
        (4096, 4096, 4096, float32, 1),
        (2048, 8192, 4096, bfloat16, 8),
        (2048, 8192, 4096, bfloat8_b, 16),
        (1024, 7168, 2048, bfloat8_b, 28),
        (1024, 7168, 2048, float32, 7),
    ],
)
def test_blocks_of_k_are_those_of_ttnn_s_programs(m: int, k: int, n: int, dtype: DataType, tiles: int) -> None:
    assert tiles_per_block(_case(m, k, n, dtype), None) == tiles


@pytest.mark.parametrize(
    ("m", "k", "n", "tiles"),
    [(32, 1024, 1024, 2), (512, 512, 512, None), (128, 96, 128, None), (1024, 1024, 1024, 2)],
)
def test_blocks_of_k_in_l1(m: int, k: int, n: int, tiles: int | None) -> None:
    assert tiles_per_block(_case(m, k, n, bfloat16, L1_MEMORY_CONFIG), None) == tiles


@pytest.mark.parametrize(("m", "k", "n", "side", "tiles"), [(128, 512, 256, 4, 4), (32, 1024, 1024, 8, 1)])
def test_blocks_of_k_on_a_core_grid(m: int, k: int, n: int, side: int, tiles: int) -> None:
    assert tiles_per_block(_case(m, k, n, bfloat16, grid=CoreGrid(y=side, x=side)), None) == tiles


def _case(
    m: int, k: int, n: int, dtype: DataType, memory: MemoryConfig = DRAM_MEMORY_CONFIG, grid: CoreGrid | None = None
) -> MatmulCase:
    a, b = _spec((m, k), dtype, memory), _spec((k, n), dtype, memory)
    return MatmulCase(a, b, False, False, memory, dtype, dtype is float32, None, grid, CoreCoord(8, 8), ROOM)


# -- what comes out ----------------------------------------------------------------------------------------------------


def _grid(count: int, seed: int) -> torch.Tensor:
    raw = np.frombuffer(np.random.RandomState(seed).bytes(4 * count), dtype="<u4")
    return torch.from_numpy((raw >> 25).astype(np.float32) - 64) / 64


@pytest.mark.parametrize("packer_l1_acc", [False, True])
def test_exact_matmul_has_a_card_s_worst_error_and_norm(mesh: ttnn.MeshDevice, packer_l1_acc: bool) -> None:
    """tt-metal's gtest on a p100a: worst difference 0.090, relative Frobenius norm 0.0043."""
    a, b = _grid(64 * 64, 801).view(64, 64), _grid(64 * 64, 802).view(64, 64)
    expected = a.double() @ b.double()

    with ttmesh.numerics("exact"):
        config = _compute_config(packer_l1_acc=packer_l1_acc)
        result = ttnn.matmul(_on(mesh, a, float32), _on(mesh, b, float32), compute_kernel_config=config)
        difference = _read(result).double() - expected

    assert float(difference.abs().max()) == pytest.approx(0.090, abs=5e-4)
    assert float(difference.norm() / expected.norm()) == pytest.approx(0.0043, abs=5e-5)


@pytest.mark.parametrize(("fp32_dest", "silicon"), [(False, 128.0), (True, 32.0)])
def test_exact_cancelling_pairs(mesh: ttnn.MeshDevice, fp32_dest: bool, silicon: float) -> None:
    a = _on(mesh, torch.tensor([1024.0, -1023.0]).repeat(64, 32), float32)
    ones = _on(mesh, torch.ones(64, 64), float32)

    with ttmesh.numerics("exact"):
        result = ttnn.matmul(a, ones, compute_kernel_config=_compute_config(fp32_dest_acc_en=fp32_dest))

        assert torch.equal(_read(result), torch.full((64, 64), silicon))


@pytest.mark.parametrize(("fp32_dest", "silicon"), [(False, 8192.0), (True, 6144.0)])
def test_exact_all_ones_over_6144(mesh: ttnn.MeshDevice, fp32_dest: bool, silicon: float) -> None:
    a, b = _on(mesh, torch.ones(32, 6144)), _on(mesh, torch.ones(6144, 32))

    with ttmesh.numerics("exact"):
        result = ttnn.matmul(a, b, compute_kernel_config=_compute_config(fp32_dest_acc_en=fp32_dest))

        assert torch.equal(_read(result).float(), torch.full((32, 32), silicon))
    assert _read(ttnn.matmul(a, b))[0, 0].item() == 6144


def test_a_call_s_compute_config_changes_its_numbers_and_ideal_ignores_it(wormhole: ttnn.MeshDevice) -> None:
    generator = torch.Generator().manual_seed(1)
    a = _on(wormhole, torch.randn(64, 256, generator=generator))
    b = _on(wormhole, torch.randn(256, 64, generator=generator))
    configs = [_compute_config(math_fidelity=f, fp32_dest_acc_en=True) for f in (MathFidelity.LoFi, MathFidelity.HiFi4)]

    ideal = [_read(ttnn.matmul(a, b, compute_kernel_config=config)) for config in configs]
    for mode in ("realistic", "exact"):
        with ttmesh.numerics(mode):
            low, high = (_read(ttnn.matmul(a, b, compute_kernel_config=config)) for config in configs)
        assert not torch.equal(low, high), mode

    assert torch.equal(*ideal)


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_batches_transposes_bias_and_activation_follow_the_mode(wormhole: ttnn.MeshDevice, mode: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(2, 3, 40, 96, generator=generator), torch.randn(2, 3, 50, 96, generator=generator)
    x, w, bias = torch.randn(2, 33, 64), torch.randn(64, 70), torch.randn(1, 70)

    with ttmesh.numerics(mode):
        scores = _read(ttnn.matmul(_on(wormhole, a), _on(wormhole, b), transpose_b=True))
        out = ttnn.linear(_on(wormhole, x), _on(wormhole, w), bias=_on(wormhole, bias), activation="relu")
        layer = _read(out)

    for result, expected in ((scores, a @ b.mT), (layer, torch.relu(x @ w + bias))):
        pair = torch.stack([result.double().flatten(), expected.double().flatten()])
        assert 0.999 < float(torch.corrcoef(pair)[0, 1]) < 1
    config = FpuConfig(packer_l1_acc=True, k_block=32)
    if mode == "exact":
        assert torch.equal(scores, exact_matmul.matmul(a.bfloat16(), b.bfloat16().mT, config))


def test_uniform_matmuls_lose_what_they_lose_on_the_chip(wormhole: ttnn.MeshDevice) -> None:
    """tt-metal #32584, PCC 0.98 at K = 1024."""
    generator = torch.Generator().manual_seed(3)
    a, b = torch.rand(32, 1024, generator=generator), torch.rand(1024, 256, generator=generator)
    expected, found = a.bfloat16().double() @ b.bfloat16().double(), {}

    for mode in numerics_mode.MODES:
        with ttmesh.numerics(mode):
            result = _read(ttnn.matmul(_on(wormhole, a), _on(wormhole, b))).double()
        found[mode] = float(torch.corrcoef(torch.stack([result.flatten(), expected.flatten()]))[0, 1])

    assert all(0.98 <= found[mode] < 0.99 for mode in ("exact", "realistic"))
    assert found["ideal"] > 0.995


# -- element-wise ------------------------------------------------------------------------------------------------------


def test_sums_of_bfloat16_round_ties_away_as_the_fpu_does(wormhole: ttnn.MeshDevice) -> None:
    a = _on(wormhole, torch.tensor([[1.0, -1.0, 1.0, 256.0]]))
    b = _on(wormhole, torch.tensor([[2**-8, -(2**-8), 1.0, 2.0]]))

    ideal = _read(ttnn.add(a, b))
    with ttmesh.numerics("exact"):
        added, subtracted = _read(ttnn.add(a, b)), _read(ttnn.subtract(b, a))

    assert ideal.tolist() == [[1.0, -1.0, 2.0, 258.0]]  # ties to even
    assert added.tolist() == [[1 + 2**-7, -1 - 2**-7, 2.0, 258.0]]
    assert subtracted.tolist() == [[-(1 - 2**-8), 1 - 2**-8, 0.0, -254.0]]


@pytest.mark.parametrize("mode", ["realistic", "exact"])
def test_float32_pairs_are_added_by_the_vector_unit_and_mixed_ones_are_not(
    wormhole: ttnn.MeshDevice, mode: str
) -> None:
    fine = _on(wormhole, torch.full((1, 4), 1 + 2**-20), float32)
    coarse = _on(wormhole, torch.ones(1, 4))

    with ttmesh.numerics(mode):
        pair, mixed = _read(ttnn.add(fine, fine)), _read(ttnn.add(fine, coarse))

    assert pair.tolist() == [[2 + 2**-19] * 4]
    assert mixed.tolist() == [[2.0] * 4]


def test_in_place_sums_and_broadcasts_follow_the_mode(wormhole: ttnn.MeshDevice) -> None:
    a, row = torch.full((2, 3, 4), 1.0), torch.full((1, 4), 2.0**-8)

    with ttmesh.numerics("exact"):
        x = _on(wormhole, a)
        ttnn.add_(x, _on(wormhole, row.expand(2, 3, 4).contiguous()))
        result = ttnn.add(_on(wormhole, a), _on(wormhole, row.view(1, 1, 4)))

    assert torch.equal(_read(x).float(), a + 2**-7)
    assert torch.equal(_read(result).float(), a + 2**-7)


@pytest.mark.parametrize("schedule", ["async", "adversarial"])
def test_a_call_keeps_the_mode_it_was_made_in(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    monkeypatch.setenv("TTMESH_SCHEDULE", schedule)
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    a, b = _on(device, torch.ones(32, 32)), _on(device, torch.full((32, 32), 2.0**-8))

    with ttmesh.numerics("exact"):
        exact = ttnn.add(a, b)
    ideal = ttnn.add(a, b)

    assert _read(exact)[0, 0].item() == 1 + 2**-7
    assert _read(ideal)[0, 0].item() == 1
    ttnn.close_mesh_device(device)


def test_the_mode_adds_no_program(wormhole: ttnn.MeshDevice) -> None:
    a = _on(wormhole, torch.ones(32, 32))
    ttnn.add(a, a)
    counted = wormhole.num_program_cache_entries()

    with ttmesh.numerics("exact"):
        ttnn.add(a, a)

    assert wormhole.num_program_cache_entries() == counted
