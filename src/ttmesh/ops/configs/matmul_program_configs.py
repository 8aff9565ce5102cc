"""TT-NN's program configs of matmul, which distribute it over cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRangeSet
from ttmesh.ops.configs.activations import Activation, as_activation

ONE_CORE = CoreCoord(1, 1)

Grid = CoreCoord | CoreGrid | Sequence[int]


def corner(grid: Grid) -> CoreCoord:
    """The grid as the coordinate one past its end."""
    return CoreCoord(grid.x, grid.y) if isinstance(grid, (CoreCoord, CoreGrid)) else CoreCoord(*grid)


class ConvertsFields:
    """Base class that converts grids and activations to one type whenever the field is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "compute_with_storage_grid_size":
            value = corner(value)
        elif name == "fused_activation":
            value = as_activation(value)
        super().__setattr__(name, value)


@dataclass(unsafe_hash=True)
class MatmulMultiCoreProgramConfig:
    """One output tile at a time on every core."""

    allowed_worker_cores: CoreRangeSet | None = None


@dataclass(unsafe_hash=True)
class MatmulMultiCoreReuseProgramConfig(ConvertsFields):
    """A block of the output per core, no multicast."""

    compute_with_storage_grid_size: Grid
    in0_block_w: int
    out_subblock_h: int
    out_subblock_w: int
    per_core_M: int
    per_core_N: int
    allowed_worker_cores: CoreRangeSet | None = None


@dataclass(unsafe_hash=True, kw_only=True)
class MatmulMultiCoreReuseMultiCastProgramConfig(ConvertsFields):
    """Rows of cores share A, columns of cores share B."""

    compute_with_storage_grid_size: Grid
    in0_block_w: int
    out_subblock_h: int
    out_subblock_w: int
    out_block_h: int | None = None
    out_block_w: int | None = None
    per_core_M: int
    per_core_N: int
    transpose_mcast: bool
    fused_activation: Activation | None = None
    fuse_batch: bool = True
    allowed_worker_cores: CoreRangeSet | None = None

    def __post_init__(self) -> None:
        self.out_block_h = self.per_core_M if self.out_block_h is None else self.out_block_h
        self.out_block_w = self.per_core_N if self.out_block_w is None else self.out_block_w


@dataclass(unsafe_hash=True, kw_only=True)
class MatmulMultiCoreReuseMultiCast1DProgramConfig(ConvertsFields):
    """All cores share A (mcast_in0) or B."""

    compute_with_storage_grid_size: Grid
    in0_block_w: int
    out_subblock_h: int
    out_subblock_w: int
    out_block_h: int | None = None
    out_block_w: int | None = None
    per_core_M: int
    per_core_N: int
    fuse_batch: bool
    fused_activation: Activation | None = None
    mcast_in0: bool
    gather_in0: bool = False
    hop_cores: CoreRangeSet = field(default_factory=CoreRangeSet)
    num_global_cb_receivers: int = 1
    untilize_out: bool = False
    allowed_worker_cores: CoreRangeSet | None = None
    stream_in1: bool = False

    def __post_init__(self) -> None:
        self.out_block_h = self.per_core_M if self.out_block_h is None else self.out_block_h
        self.out_block_w = self.per_core_N if self.out_block_w is None else self.out_block_w


@dataclass(unsafe_hash=True)
class MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(ConvertsFields):
    """B is sharded in DRAM, one shard per bank, and is read by the cores next to the banks."""

    in0_block_w: int
    per_core_M: int
    per_core_N: int
    fused_activation: Activation | None = None


@dataclass(unsafe_hash=True)
class MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig(ConvertsFields):
    """B is sharded in DRAM, one matrix of a batch per bank."""

    in0_block_w: int
    per_core_M: int
    per_core_N: int
    fused_activation: Activation | None = None


@dataclass(unsafe_hash=True, kw_only=True)
class MinimalMatmulConfig(ConvertsFields):
    """Block sizes of ttnn.experimental.minimal_matmul."""

    M_block_size: int = 1
    K_block_size: int = 1
    N_block_size: int = 1
    subblock_h: int = 1
    subblock_w: int = 1
    compute_with_storage_grid_size: Grid = ONE_CORE


Multicast = MatmulMultiCoreReuseMultiCastProgramConfig | MatmulMultiCoreReuseMultiCast1DProgramConfig
DramSharded = (
    MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig | MatmulMultiCoreReuseMultiCastBatchedDRAMShardedProgramConfig
)
Blocked = MatmulMultiCoreReuseProgramConfig | Multicast | DramSharded
ProgramConfig = MatmulMultiCoreProgramConfig | Blocked
