"""TT-NN's program configs of matmul, which distribute it over cores.

What TT-NN chooses for a call without one is in ops/matmul/matmul_blocks.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet
from ttmesh.ops.configs.activations import Activation, UnaryOpType, UnaryWithParam, as_activation

ONE_CORE = CoreCoord(1, 1)

Grid = CoreCoord | CoreGrid | Sequence[int]


def corner(grid: Grid) -> CoreCoord:
    """The grid as the coordinate one past its end."""
    return CoreCoord(grid.x, grid.y) if isinstance(grid, (CoreCoord, CoreGrid)) else CoreCoord(*grid)


def _to_plain(value: Any) -> Any:
    """A field as JSON has it."""
    if isinstance(value, CoreCoord):
        return {"x": value.x, "y": value.y}
    if isinstance(value, CoreRangeSet):
        return [{"start": _to_plain(one.start), "end": _to_plain(one.end)} for one in value.ranges()]
    if isinstance(value, UnaryWithParam):
        return {"op_type": list(UnaryOpType).index(value.op_type), "param": [float(one) for one in value.params]}
    return value


def _from_plain(name: str, value: Any) -> Any:
    """A field from what JSON has."""
    if name == "compute_with_storage_grid_size":
        return CoreCoord(value["x"], value["y"])
    if name == "fused_activation" and isinstance(value, dict):
        return UnaryWithParam(list(UnaryOpType)[value["op_type"]], *value["param"])
    if isinstance(value, list):
        corners = [(CoreCoord(**one["start"]), CoreCoord(**one["end"])) for one in value]
        return CoreRangeSet([CoreRange(start, end) for start, end in corners])
    return value


class ConvertsFields:
    """Base class that converts grids and activations to one type whenever the field is set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "compute_with_storage_grid_size":
            value = corner(value)
        elif name == "fused_activation":
            value = as_activation(value)
        super().__setattr__(name, value)

    def to_json(self) -> str:
        """The fields in alphabetical order, as TT-NN writes them."""
        found = {one.name: _to_plain(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]
        return json.dumps(found, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ConvertsFields:
        """The config that to_json wrote."""
        return cls(**{name: _from_plain(name, value) for name, value in json.loads(text).items()})


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
    num_workers_per_dram_bank: int = 1


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
