"""The model of the FPU gives the bits of a simulator of the chip, on both architectures, 0 differences.

fpu_goldens.npz holds operands and results as patterns (uint16 bfloat16, uint32 float32, uint8 block-float codes); keys
are paths such as mm/<data>/K<K>/<in0>x<in1>/<fidelity>_dst<bits>. A key with @wh is Wormhole's where it differs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ttmesh.base.dtypes import Arch, DataType, MathFidelity, bfloat4_b, bfloat8_b, bfloat16, float32
from ttmesh.chip.numerics.exact_matmul import dest_of_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_elements, add_lanes, multiply_elements
from ttmesh.chip.numerics.fpu_pools import max_rows, sum_rows
from ttmesh.chip.numerics.packer import accumulate, pack, pack_codes, to_bfloat16
from ttmesh.chip.numerics.unpacker import unpack, unpack_codes

FILE = Path(__file__).parent / "fpu_goldens.npz"
FORMATS = {"bf16": bfloat16, "fp32": float32, "bf8": bfloat8_b, "bf4": bfloat4_b}
ARCHITECTURES = [Arch.WORMHOLE_B0, Arch.BLACKHOLE]
Goldens = dict[str, npt.NDArray[np.generic]]


@pytest.fixture(scope="module")
def goldens() -> Goldens:
    with np.load(FILE) as file:
        return {key: file[key] for key in file.files}


def _keys(prefix: str) -> list[str]:
    with np.load(FILE) as file:
        return [key for key in file.files if key.startswith(prefix) and "_dst" in key and "@" not in key]


def _folders(prefix: str) -> list[str]:
    return sorted({key.rsplit("/", 1)[0] for key in _keys(prefix)})


def _values(patterns: npt.NDArray[np.generic]) -> torch.Tensor:
    wide = patterns.astype(np.uint32) << (16 if patterns.dtype == np.uint16 else 0)
    return torch.from_numpy(wide.view(np.float32))


def _operand(goldens: Goldens, name: str, dtype: DataType, *, fp32_dest: bool) -> torch.Tensor:
    patterns = goldens[f"{name}_u"]
    if patterns.dtype == np.uint8:
        return unpack_codes(torch.from_numpy(patterns), torch.from_numpy(goldens[f"{name}_e"]), dtype)
    return unpack(_values(patterns), dtype, fp32_dest=fp32_dest)


def _differences(result: torch.Tensor, golden: npt.NDArray[np.generic]) -> int:
    return int((result.contiguous().view(torch.int32) != _values(golden).view(torch.int32)).sum())


def _config(name: str, arch: Arch) -> FpuConfig:
    fidelity = next((f for f in MathFidelity if f.name in name.split("_")), MathFidelity.HiFi4)
    return FpuConfig(arch=arch, fidelity=fidelity, fp32_dest=name.endswith("dst32"))


def _compare_matmul(goldens: Goldens, folder: str, arch: Arch) -> None:
    formats = [FORMATS[name] for name in folder.rsplit("/", 1)[1].split("x")]
    for key in (k for k in goldens if k.startswith(f"{folder}/") and "_dst" in k and "@" not in k):
        config = _config(key.rsplit("/", 1)[1], arch)
        a = _operand(goldens, f"{folder}/in0", formats[0], fp32_dest=config.fp32_dest)
        b = _operand(goldens, f"{folder}/in1", formats[1], fp32_dest=config.fp32_dest)
        golden = goldens.get(f"{key}@wh", goldens[key]) if arch is Arch.WORMHOLE_B0 else goldens[key]

        assert _differences(dest_of_matmul(a, b, config), golden) == 0, key


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_matmul_has_the_bits_of_the_chip(goldens: Goldens, arch: Arch, served: bool) -> None:
    for folder in _folders("mm/"):
        if served or "/K32/" in folder or ("/bits/" in folder and "fp32" in folder):  # torch takes its time
            _compare_matmul(goldens, folder, arch)


@pytest.mark.deep
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("folder", _folders("mm/"))
def test_every_matmul_golden_with_and_without_the_kernel(goldens: Goldens, arch: Arch, folder: str) -> None:
    _compare_matmul(goldens, folder, arch)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("folder", _folders("elw/"))
def test_elementwise_has_the_bits_of_the_chip(goldens: Goldens, arch: Arch, folder: str) -> None:
    dtype = FORMATS[folder.rsplit("/", 1)[1]]

    for key in (k for k in goldens if k.startswith(f"{folder}/") and "_dst" in k):
        name = key.rsplit("/", 1)[1]
        config = _config(name, arch)
        a = _operand(goldens, f"{folder}/a", dtype, fp32_dest=config.fp32_dest)
        b = _operand(goldens, f"{folder}/b", dtype, fp32_dest=config.fp32_dest)
        if name.startswith("mul"):
            result = multiply_elements(a, b, config)
        else:
            result = add_elements(a, b, config, negate=name.startswith("sub"))
            compiled = add_lanes(
                a, b, replace(config, a_dtype=dtype, b_dtype=dtype, out_dtype=float32), negate="sub" in name
            )
            assert _differences(compiled, goldens[key]) == 0, key
            if not config.fp32_dest:
                half = add_lanes(a.bfloat16(), b.bfloat16(), config, negate="sub" in name)
                keep = ~(a.isnan() | b.isnan())  # bfloat16 lanes hold no NaN patterns of the chip's
                assert _differences(half.float()[keep], goldens[key][keep.numpy()]) == 0, key
        assert _differences(result, goldens[key]) == 0, key


@pytest.mark.parametrize("fp32_dest", [False, True])
def test_packer_has_the_bits_of_the_chip(goldens: Goldens, fp32_dest: bool) -> None:
    folder, bits = "pack/normal/K64/bf16xbf16", 32 if fp32_dest else 16
    a, b = _values(goldens[f"{folder}/in0_u"]), _values(goldens[f"{folder}/in1_u"])
    config = FpuConfig(fidelity=MathFidelity.HiFi4, fp32_dest=fp32_dest, arch=Arch.BLACKHOLE)

    dest = dest_of_matmul(a, b, config)

    for name, dtype, precise in [
        ("bf8", bfloat8_b, False),
        ("bf8_precise", bfloat8_b, True),
        ("bf4", bfloat4_b, False),
    ]:
        codes, exponents = pack_codes(dest, dtype, precise=precise)
        assert np.array_equal(codes.numpy(), goldens[f"{folder}/dst{bits}_to_{name}_u"])
        assert np.array_equal(exponents.numpy(), goldens[f"{folder}/dst{bits}_to_{name}_e"])
    if fp32_dest:
        assert _differences(to_bfloat16(dest), goldens[f"{folder}/dst32_to_bf16"]) == 0
    else:
        assert _differences(pack(dest, float32), goldens[f"{folder}/dst16_to_fp32"]) == 0


@pytest.mark.parametrize(
    ("name", "fp32_dest", "dtype"),
    [("bf16", False, bfloat16), ("fp32", True, float32), ("dst32_bf16", True, bfloat16)],
)
def test_l1_accumulation_has_the_bits_of_the_chip(
    goldens: Goldens, name: str, fp32_dest: bool, dtype: DataType
) -> None:
    folder = "pack/normal/K64/bf16xbf16"
    a, b = _values(goldens[f"{folder}/in0_u"]), _values(goldens[f"{folder}/in1_u"])
    dest = dest_of_matmul(a, b, FpuConfig(fidelity=MathFidelity.HiFi4, fp32_dest=fp32_dest, arch=Arch.BLACKHOLE))

    result = accumulate(_values(goldens[f"{folder}/l1acc_{name}_old"]), pack(dest, dtype), dtype)

    assert _differences(result, goldens[f"{folder}/l1acc_{name}"]) == 0


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_pools_have_the_bits_of_the_chip(goldens: Goldens, arch: Arch) -> None:
    for folder in _folders("pool/"):
        values = _values(goldens[f"{folder}/x_u"])[:, :16]
        for key in (k for k in goldens if k.startswith(f"{folder}/col")):
            name = key.rsplit("/", 1)[1]
            config = _config(name, arch)
            result = max_rows(values) if name.startswith("colmax") else sum_rows(values, config, scaler=1 / 32)

            assert _differences(result[0], goldens[key]) == 0, key
