"""What a matmul with weights in DRAM shards requires of its operands and result."""

from __future__ import annotations

from ttmesh.base.dtypes import ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig,
    ProgramConfig,
)
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

NAME = "MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig"


def check_dram_shards(
    config: ProgramConfig | None,
    a: TensorSpec,
    b: TensorSpec,
    rows: int,
    depth: int,
    memory_config: MemoryConfig | None,
) -> None:
    """Raise TT-NN's errors: one row of tiles in width shards, weights in width shards, a sharded result.

    Args:
        rows: rows of the first operand, in tiles.
        depth: its columns, in tiles.
    """
    if not isinstance(config, MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig):
        return
    height = a.tile.tile_shape[0]
    wrong = (
        f"{NAME}: matmul tiny-tile with tile_h {height} is not currently supported on the DRAM-sharded mcast program"
    )
    require(height >= 16, wrong, "tiles of 16 or 32 rows", "Use another program config, or larger tiles.")
    shards, layout = a.memory_config.shard_spec, a.memory_config.memory_layout
    wrong = f"bad optional access: {NAME} with a first operand that is not sharded"
    fix = "Shard it by width over the cores with ttnn.to_memory_config."
    require(shards is not None, wrong, "a WIDTH_SHARDED first operand", fix)
    wrong = f"{NAME}: Output memory config must be sharded for DRAM sharded program config"
    is_sharded = memory_config is not None and memory_config.is_sharded()
    require(is_sharded, wrong, "a WIDTH_SHARDED result", "Pass memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG.")
    wrong = f"{NAME}: Input A memory layout must be WIDTH_SHARDED, got: TensorMemoryLayout::{layout.name}"
    require(layout is TensorMemoryLayout.WIDTH_SHARDED, wrong, "WIDTH_SHARDED", fix)
    if shards is not None:
        wrong = f"{NAME}: Input A shard orientation must be ROW_MAJOR, got: ShardOrientation::{shards.orientation.name}"
        require(shards.orientation is ShardOrientation.ROW_MAJOR, wrong, "ROW_MAJOR", "Change its shard spec.")
    if rows == config.per_core_M:  # another per_core_M gives shards that do not fit the result
        wrong = f"{NAME}: currently only support in0 tensor height of tile height"
        require(rows == 1, wrong, f"1 row of tiles, not {rows}", "Use another program config for more rows.")
    block = config.in0_block_w
    columns = depth if shards is None else shards.shape[1] // a.tile.tile_shape[1]
    for extent, what in ((depth, "K"), (columns, "shard_shape[1] / in0_tile.get_width()")):
        wrong = f"{NAME}: {what} ({extent}) must be divisible by in0_block_w ({block})"
        require(block > 0 and extent % block == 0, wrong, f"a divisor of {extent}", "Choose a number that divides it.")
    layout = b.memory_config.memory_layout
    wrong = f"{NAME}: Input B memory layout must be WIDTH_SHARDED, got: TensorMemoryLayout::{layout.name}"
    fix = "Shard the weights by width over the banks of DRAM."
    require(layout is TensorMemoryLayout.WIDTH_SHARDED, wrong, "WIDTH_SHARDED", fix)
