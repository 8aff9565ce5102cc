"""A matmul with weights in DRAM shards takes what TT-NN 0.81.1 takes, and refuses the rest with its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn

PREFIX = "MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig: "
BY_WIDTH = ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG
ROW_MAJOR, COL_MAJOR = ttnn.ShardOrientation.ROW_MAJOR, ttnn.ShardOrientation.COL_MAJOR
K, N = 1024, 768


@pytest.fixture(scope="module")
def device() -> Iterator[ttnn.MeshDevice]:
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def _shards(
    width: bool, memory: ttnn.BufferType, cores: int, shape: tuple[int, int], orientation: ttnn.ShardOrientation
) -> ttnn.MemoryConfig:
    layout = ttnn.TensorMemoryLayout.WIDTH_SHARDED if width else ttnn.TensorMemoryLayout.HEIGHT_SHARDED
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(cores - 1, 0))])
    return ttnn.MemoryConfig(layout, memory, ttnn.ShardSpec(grid, shape, orientation))


def _multiply(
    device: ttnn.MeshDevice,
    *,
    rows: int = 32,
    block: int = 2,
    a: str = "width",
    b: str = "width",
    orientation: ttnn.ShardOrientation = ROW_MAJOR,
    memory_config: ttnn.MemoryConfig | None = BY_WIDTH,
) -> ttnn.Tensor:
    banks = device.dram_grid_size().x
    operands = {
        "width": _shards(True, ttnn.BufferType.L1, 8, (rows, K // 8), orientation),
        "height": _shards(False, ttnn.BufferType.L1, 1, (rows, K), orientation),
        "none": ttnn.L1_MEMORY_CONFIG,
    }
    weights = _shards(True, ttnn.BufferType.DRAM, banks, (K, N // banks), ROW_MAJOR)
    return ttnn.matmul(
        ttnn.from_torch(
            torch.ones(1, 1, rows, K),
            dtype=ttnn.bfloat16,
            layout=ttnn.TILE_LAYOUT,
            device=device,
            memory_config=operands[a],
        ),
        ttnn.from_torch(
            torch.ones(1, 1, K, N),
            dtype=ttnn.bfloat8_b,
            layout=ttnn.TILE_LAYOUT,
            device=device,
            memory_config=weights if b == "width" else ttnn.DRAM_MEMORY_CONFIG,
        ),
        program_config=ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
            in0_block_w=block, per_core_M=rows // 32, per_core_N=3, fused_activation=None
        ),
        memory_config=memory_config,
    )


def test_one_row_of_tiles_in_width_shards_is_multiplied(device: ttnn.MeshDevice) -> None:
    out = _multiply(device)

    assert out.memory_config().shard_spec.shape == [32, 96]
    assert ttnn.to_torch(out).unique().tolist() == [K]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rows": 64}, PREFIX + "currently only support in0 tensor height of tile height"),
        ({"a": "none"}, "bad optional access"),
        ({"a": "height"}, PREFIX + "Input A memory layout must be WIDTH_SHARDED, got: TensorMemoryLayout::HEIGHT_SHARDED"),
        ({"b": "none"}, PREFIX + "Input B memory layout must be WIDTH_SHARDED, got: TensorMemoryLayout::INTERLEAVED"),
        ({"memory_config": None}, PREFIX + "Output memory config must be sharded for DRAM sharded program config"),
        ({"orientation": COL_MAJOR}, PREFIX + "Input A shard orientation must be ROW_MAJOR, got: ShardOrientation::COL"),
        ({"block": 3}, PREFIX + r"K \(32\) must be divisible by in0_block_w \(3\)"),
    ],
)  # fmt: skip
def test_other_operands_are_refused(device: ttnn.MeshDevice, changed: dict[str, object], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        _multiply(device, **changed)
