"""The Triton kernels give the bits of the torch forms, on the same GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from ttmesh.base.dtypes import DataType
from ttmesh.chip.formats import block_float, block_float_packing, packing
from ttmesh.chip.formats.kernels import gpu_loader, lane_sum
from ttmesh.chip.formats.storage import finish
from ttmesh.chip.formats.tiles import Tile
from ttmesh.chip.formats.tilize import tilize, untilize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
BLOCKS = (DataType.BFLOAT8_B, DataType.BFLOAT4_B)


def awkward_values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random bits: every exponent, zeros of both signs, subnormals, infinities and NaN."""
    bits = torch.randint(-(2**31), 2**31, shape, dtype=torch.int64).to(torch.int32).cuda()
    values = bits.view(torch.float32)
    plain = torch.randn(shape).cuda()
    chosen = torch.randint(0, 8, shape).cuda()
    values = torch.where(chosen > 1, plain, values)
    return torch.where(chosen == 7, torch.copysign(torch.zeros_like(plain), plain), values).to(dtype)


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (block_float, block_float_packing, lane_sum):
        monkeypatch.setattr(module, "find_gpu_kernels", lambda name: None)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    nan = torch.isnan(a) & torch.isnan(b) if a.is_floating_point() else torch.zeros_like(a, dtype=torch.bool)
    return bool(((a.view(width) == b.view(width)) | nan).all())


def test_the_kernels_are_in_use() -> None:
    assert gpu_loader.find_gpu_kernels("gpu_lane_sum") is not None
    assert gpu_loader.find_gpu_kernels("gpu_block_float") is not None


@pytest.mark.parametrize("packer", block_float.PACKERS)
@pytest.mark.parametrize("dtype", BLOCKS)
def test_rounding_to_a_block_float(dtype, packer, monkeypatch):
    inputs = [
        (awkward_values(*shape, dtype=source), pad, narrow)
        for shape, source, pad, narrow in itertools.product(
            [(64, 64), (3, 5, 40), (7, 1), (2, 4096)], [torch.float32, torch.bfloat16], [0.0, 3.5, -1e30], [False, True]
        )
    ]
    fast = [block_float.quantise(x, dtype, packer=packer, pad_value=p, narrow=n) for x, p, n in inputs]
    without_kernels(monkeypatch)
    for (x, p, n), result in zip(inputs, fast, strict=True):
        assert same_bits(result, block_float.quantise(x, dtype, packer=packer, pad_value=p, narrow=n)), (x.shape, p, n)


@pytest.mark.parametrize("dtype", BLOCKS)
@pytest.mark.parametrize("shape", [(32, 32), (16, 32), (32, 16), (8, 32), (1, 16)])
def test_packed_tiles_and_back(dtype, shape, monkeypatch):
    tile = Tile(shape)
    matrices = awkward_values(3, 70, 45)
    packed = packing.pack(matrices, dtype, packing.Layout.TILE, tile, 2.5)
    back = packing.unpack(packed, (70, 45), dtype, packing.Layout.TILE, tile)
    without_kernels(monkeypatch)
    assert torch.equal(packed, packing.pack(matrices, dtype, packing.Layout.TILE, tile, 2.5))
    assert same_bits(back, packing.unpack(packed, (70, 45), dtype, packing.Layout.TILE, tile))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (1, 0)])
def test_sums_over_mesh_axes(axes, monkeypatch):
    inputs = []
    for source, target in itertools.product([torch.float32, torch.bfloat16], repeat=2):
        inputs.append((torch.randn(4, 8, 33, 70).cuda().to(source), target))
        inputs.append((torch.randn(1, 1, 2, 64).cuda().to(source).expand(4, 8, 2, 64), target))
        inputs.append((torch.randn(8, 4, 3, 64).cuda().to(source).transpose(0, 1), target))
    inputs.append((torch.randint(-(2**31), 2**31, (4, 8, 100)).cuda().to(torch.int32), torch.int32))
    inputs.append((torch.randint(0, 2**32, (4, 8, 100)).cuda(), torch.int64))
    fast = [lane_sum.lane_sum(lanes, axes, dtype=dtype) for lanes, dtype in inputs]
    without_kernels(monkeypatch)
    for (lanes, dtype), result in zip(inputs, fast, strict=True):
        expected = lane_sum.lane_sum(lanes, axes, dtype=dtype)
        assert result.shape == expected.shape
        assert same_bits(result, expected)
        if dtype.is_floating_point:
            assert same_bits(result.cpu(), lane_sum.lane_sum(lanes.cpu(), axes, dtype=dtype))


def test_results_of_operations_are_rounded_once(monkeypatch):
    values = awkward_values(4, 64, 64)
    fast = [finish(values, dtype) for dtype in BLOCKS]
    without_kernels(monkeypatch)
    assert all(same_bits(a, finish(values, dtype)) for a, dtype in zip(fast, BLOCKS, strict=True))


@pytest.mark.parametrize("shape", [(1, 8, 4, 96, 256), (2, 4, 3, 40, 24), (1, 2, 64, 4096)])
def test_sums_that_are_scattered_on_the_way(shape, monkeypatch):
    inputs = [torch.randn(shape).cuda().to(source) for source in (torch.float32, torch.bfloat16)]
    dims = [dim for dim, extent in enumerate(shape[2:]) if extent % shape[1] == 0]
    fast = [lane_sum.scatter_lane_sum(lanes, dim) for lanes, dim in itertools.product(inputs, dims)]
    without_kernels(monkeypatch)
    for (lanes, dim), result in zip(itertools.product(inputs, dims), fast, strict=True):
        assert result.is_contiguous()
        assert same_bits(result, lane_sum.scatter_lane_sum(lanes, dim))


@pytest.mark.parametrize("dtype", BLOCKS)
@pytest.mark.parametrize("operation", ["add", "subtract", "multiply"])
def test_operations_that_are_rounded_in_one_kernel(operation, dtype):
    a, b = awkward_values(3, 64, 256, dtype=torch.bfloat16), awkward_values(3, 64, 256, dtype=torch.bfloat16)
    plain, other = torch.randn(3, 64, 256).cuda().bfloat16(), torch.randn(3, 64, 256).cuda().bfloat16()
    function = {"add": torch.add, "subtract": torch.sub, "multiply": torch.mul}[operation]
    for left, right in ((a, b), (plain, other)):
        found = block_float.combine_and_quantise(left, right, operation, dtype)
        assert found is not None
        assert same_bits(found, finish(function(left, right), dtype))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(1, 8, 70, 33), (2, 3, 1024, 64), (1, 32, 5, 1), (4, 2, 1, 2048)])
def test_lanes_are_moved_as_torch_moves_them(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.randint(0, 200, shape).to(dtype).cuda()
    kernels = gpu_loader.find_gpu_kernels("gpu_moves")

    assert torch.equal(kernels.swap_rows(values, 1, 1), values.movedim(1, 2))
    assert torch.equal(kernels.swap_rows(values, 0, 2), values.movedim(0, 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(32, 32), (3, 64, 96), (2, 2, 32, 1024)])
def test_tiles_are_ordered_as_on_the_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.randint(0, 200, shape).to(dtype)

    tiles = tilize(values.cuda())

    assert torch.equal(tiles.cpu(), tilize(values))
    assert torch.equal(untilize(tiles, shape[-2:]).cpu(), values)
