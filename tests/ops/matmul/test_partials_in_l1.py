"""Exact matmuls keep their partials in L1 as TT-NN's programs do: blocks of every size, with and without a fused bias."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh
from ttmesh import ttnn
from ttmesh.base.dtypes import DataType, MathFidelity, bfloat8_b, bfloat16, float32
from ttmesh.chip.numerics.exact_matmul import multiply_onto
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_elements
from ttmesh.chip.numerics.packer import accumulate, pack
from ttmesh.chip.numerics.unpacker import unpack
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig

TILES_OF_K = 4


@pytest.fixture(scope="module")
def device() -> Iterator[ttnn.MeshDevice]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTMESH_SYSTEM", "n150")
        opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        yield opened
        ttnn.close_mesh_device(opened)


def _program(name: str, tiles: int) -> object:
    sizes = {"in0_block_w": tiles, "out_subblock_h": 1, "out_subblock_w": 1, "per_core_M": 1, "per_core_N": 1}
    grid = (1, 1)
    if name == "2D":
        return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=grid, transpose_mcast=False, **sizes
        )
    return ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=grid, fuse_batch=True, mcast_in0=name == "1D, a shared", **sizes
    )


@pytest.mark.parametrize("program", ["2D", "1D, a shared", "1D, b shared"])
@pytest.mark.parametrize("out", [bfloat16, bfloat8_b, float32], ids=str)
@pytest.mark.parametrize("l1_acc", [False, True], ids=["reloaded", "added in L1"])
@pytest.mark.parametrize("has_bias", [False, True], ids=["no bias", "bias"])
def test_blocks_of_every_size(
    device: ttnn.MeshDevice, program: str, out: DataType, l1_acc: bool, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    x, w, bias = (torch.rand(shape, generator=generator).bfloat16() - 0.25 for shape in ((32, 128), (128, 32), (1, 32)))
    operands = [ttnn.from_torch(v, layout=ttnn.TILE_LAYOUT, device=device) for v in (x, w, bias)]
    config = FpuConfig(fidelity=MathFidelity.HiFi2, fp32_dest=out is float32, out_dtype=out)
    compute = WormholeComputeKernelConfig(MathFidelity.HiFi2, False, config.fp32_dest, l1_acc)
    for tiles in (1, 2, 4):
        with ttmesh.numerics("exact"):
            found = ttnn.linear(
                *operands[:2],
                bias=operands[2] if has_bias else None,
                dtype=out,
                program_config=_program(program, tiles),
                compute_kernel_config=compute,
            )

        starts_l1 = 1 if has_bias or program == "1D, a shared" else 2
        in_l1 = l1_acc and TILES_OF_K // tiles > starts_l1
        expected = _linear(x, w, bias if has_bias else None, tiles * 32, config, in_l1)
        assert torch.equal(ttnn.to_torch(found).float(), expected), tiles


def _linear(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, size: int, config: FpuConfig, in_l1: bool
) -> torch.Tensor:
    """Block by block, from the parts that goldens of the simulator check."""
    partial = float32 if config.fp32_dest else bfloat16 if in_l1 else config.out_dtype
    held: torch.Tensor | None = None
    dest = torch.zeros(32, 32)
    for k in range(0, x.shape[1], size):
        fresh = in_l1 and (bias is not None or k + size < x.shape[1])
        start = None if fresh or held is None else held
        dest = multiply_onto(x[:, k : k + size].float(), w[k : k + size].float(), start, config)
        packed = pack(dest, partial)
        held = accumulate(held, packed, partial) if fresh and held is not None else packed
    if bias is None:
        return pack(dest, config.out_dtype)
    assert held is not None
    partials = unpack(held, float32, fp32_dest=config.fp32_dest)
    return pack(add_elements(partials, bias.float().expand(32, 32), config), config.out_dtype)
