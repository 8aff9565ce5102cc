"""Every kernel over shapes, formats, tiles and numbers of threads, beside torch."""

from __future__ import annotations

import itertools

import torch
from sanitized import use_sanitized_kernels, use_threads

from ttmesh.base import settings
from ttmesh.base.dtypes import BLOCK_FLOATS, Layout, MathFidelity, float32
from ttmesh.chip.formats import block_float, packing
from ttmesh.chip.formats.kernels import loader, sgemm
from ttmesh.chip.formats.kernels.attention import attend
from ttmesh.chip.formats.kernels.fpu_gemm import multiply
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.formats.tiles import Tile
from ttmesh.chip.formats.tilize import tilize, untilize
from ttmesh.chip.numerics.exact_matmul import dest_of_matmul
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_lanes
from ttmesh.chip.numerics.realistic_matmul import choose_masks

SHAPES = [(1, 1), (1, 17), (5, 16), (31, 33), (32, 32), (70, 90), (257, 48)]
THREADS = (1, 3, 8)
TILES = [Tile((32, 32)), Tile((16, 32)), Tile((32, 16)), Tile((16, 16))]
ELEMENTS = [torch.uint8, torch.bfloat16, torch.float32, torch.int64]


def results(shape: tuple[int, int], matrices: int) -> list[torch.Tensor]:
    """What every kernel makes of values that include all kinds of floats."""
    generator = torch.Generator().manual_seed(shape[0] * 1000 + shape[1])
    bits = torch.randint(-(2**31), 2**31, (matrices, *shape), generator=generator).to(torch.int32)
    wide = bits.view(torch.float32)
    plain = torch.randn(matrices, *shape, generator=generator)
    found: list[torch.Tensor] = []
    for tile, element in itertools.product(TILES, ELEMENTS):
        ordered = tilize(plain.to(element), tile)
        found += [ordered, untilize(ordered, shape, tile)]
    for dtype, values in itertools.product(BLOCK_FLOATS, (wide, plain, plain.bfloat16())):
        found += [block_float.quantise(values, dtype, packer=packer) for packer in ("host", "device")]
        for tile in TILES:
            packed = packing.pack(values, dtype, Layout.TILE, tile)
            found += [packed, packing.unpack(packed, shape, dtype, Layout.TILE, tile)]
    for values, out in itertools.product((plain, plain.bfloat16()), (torch.float32, torch.bfloat16)):
        lanes = values.expand(3, *values.shape)
        found += [lane_sum(lanes.contiguous(), axes, dtype=out) for axes in ((0,), (1,), (0, 1))]
        found += [lane_sum(lanes, (0,), dtype=out)]
    for values in (wide, plain):
        found += [dest_of_matmul(values, values.mT, FpuConfig(fp32_dest=fp32)) for fp32 in (False, True)]
        found += [add_lanes(values, values.flip(-1), FpuConfig(fp32_dest=True, out_dtype=float32))]
        found += [add_lanes(values.bfloat16(), values.flip(-1).bfloat16(), FpuConfig(), negate=True)]
    return found


def float_sums(shape: tuple[int, int], matrices: int) -> list[torch.Tensor]:
    """What the GEMMs and attention make of them: an order of additions of their own, for any threads."""
    generator = torch.Generator().manual_seed(shape[0] * 1000 + shape[1])
    values = torch.randn(matrices, *shape, generator=generator)
    forms = [(FpuConfig(fidelity=MathFidelity.HiFi3, fp32_dest=True, out_dtype=float32), None), (FpuConfig(), 32)]
    operands = itertools.product(forms, (values, values.bfloat16()), (values.mT, values.mT.contiguous().bfloat16()))
    found = [multiply(a, b, choose_masks(config), block=block, lower=0.02) for (config, block), a, b in operands]
    sgemm.SPLIT_PRODUCTS = 0  # many threads for little work
    found += [
        sgemm.multiply(a, b)
        for a, b in itertools.product((values, values.mT.contiguous().mT), (values.mT, values.mT.contiguous()))
    ]
    found += [sgemm.multiply(values.mT[:1], values)]  # K is short, and one matrix serves all batches
    for kind, mask in itertools.product((torch.float32, torch.bfloat16), (None, torch.linspace(-1, 1, shape[0]))):
        q, k, v = (
            torch.randn(matrices, 2, n, 48, generator=generator).to(kind)
            for n in (shape[1] % 16 + 1, shape[0], shape[0])
        )
        found.append(attend(q, k, v, scale=0.2, mask=mask if mask is None else mask.expand(1, 1, 1, -1)))
    return found


def main() -> None:
    use_sanitized_kernels()
    count = 0
    for shape, matrices in itertools.product(SHAPES, (1, 3)):
        settings.override("TTMESH_KERNELS", False)
        loader.library.cache_clear()
        expected = results(shape, matrices)
        settings.override("TTMESH_KERNELS", None)
        loader.library.cache_clear()
        alone: list[torch.Tensor] = []
        for number in THREADS:
            use_threads(number)
            mine = float_sums(shape, matrices)
            alone = alone or mine
            assert all(torch.equal(a, b) for a, b in zip(mine, alone, strict=True)), (shape, matrices, number)
            for found, torchs in zip(results(shape, matrices), expected, strict=True):
                integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
                assert torch.equal(found.view(integers), torchs.view(integers)), (shape, matrices, number, found.dtype)
                count += 1
    print(f"{count} results", flush=True)


main()
