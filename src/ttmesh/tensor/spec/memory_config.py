"""Where a tensor is stored on a chip: interleaved or sharded, in DRAM or L1, printed and compared as TT-NN does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet, JsonText
from ttmesh.base.dtypes import BufferType, PrintedEnum, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError
from ttmesh.tensor.spec.shape import Shape


class ShardDistributionStrategy(PrintedEnum):
    """How shards are dealt to cores (tt-metal buffer_types.hpp gives the numbers)."""

    ROUND_ROBIN_1D = 0
    GRID_2D = 1
    CONTIGUOUS_1D = 2


class ShardShapeAlignment(PrintedEnum):
    """How far a shard shape is rounded up by `TensorSpec.sharded`."""

    NONE = 0
    REQUIRED = 1
    RECOMMENDED = 2


@dataclass(eq=False)  # mutable as in TT-NN: models write `config.shard_spec.shape = ...`
class ShardSpec(JsonText):
    """A two-dimensional shard per core of a grid."""

    grid: CoreRangeSet
    shape: list[int]
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR

    def __init__(
        self,
        grid: CoreRangeSet,
        shard_shape: Sequence[int],
        shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
    ) -> None:
        self.grid, self.shape, self.orientation = grid, list(shard_shape), shard_orientation

    def num_cores(self) -> int:
        """How many cores the grid has."""
        return self.grid.num_cores()

    def to_json_value(self) -> dict[str, Any]:
        """Grid, shape and orientation by name."""
        grid, shape = self.grid.to_json_value(), list(self.shape)
        return {"grid": grid, "shape": shape, "orientation": self.orientation.value}

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> ShardSpec:
        """The shards of a grid, shape and orientation by name."""
        grid = CoreRangeSet.from_json_value(value["grid"])
        return ShardSpec(grid, value["shape"], ShardOrientation(value["orientation"]))

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ShardSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[CoreRangeSet, tuple[int, ...], ShardOrientation]:
        return self.grid, tuple(self.shape), self.orientation

    def __copy__(self) -> ShardSpec:
        return ShardSpec(self.grid, self.shape, self.orientation)

    def __repr__(self) -> str:
        ranges = ", ".join(text[:-1] for text in _range_texts(self.grid))  # TT-NN leaves the last brace of a range out
        return f"ShardSpec{{grid=[{ranges}], shape={list(self.shape)}, orientation={cpp(self.orientation)}}}"


@dataclass(eq=False)
class NdShardSpec:
    """A shard of any rank, dealt over cores by a strategy."""

    shard_shape: Shape
    grid: CoreRangeSet
    orientation: ShardOrientation
    shard_distribution_strategy: ShardDistributionStrategy

    def __init__(
        self,
        shard_shape: Sequence[int],
        grid: CoreRangeSet,
        orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
        shard_distribution_strategy: ShardDistributionStrategy = ShardDistributionStrategy.ROUND_ROBIN_1D,
    ) -> None:
        self.shard_shape, self.grid, self.orientation = Shape(shard_shape), grid, orientation
        self.shard_distribution_strategy = shard_distribution_strategy

    def num_cores(self) -> int:
        """How many cores the grid has."""
        return self.grid.num_cores()

    def _key(self) -> tuple[Shape, CoreRangeSet, ShardOrientation, ShardDistributionStrategy]:
        return Shape(self.shard_shape), self.grid, self.orientation, self.shard_distribution_strategy

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, NdShardSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __copy__(self) -> NdShardSpec:
        return NdShardSpec(self.shard_shape, self.grid, self.orientation, self.shard_distribution_strategy)

    def __repr__(self) -> str:
        ranges, strategy = ", ".join(_range_texts(self.grid)), cpp(self.shard_distribution_strategy)
        return (
            f'{{"shard_shape":{list(self.shard_shape)},"grid":[{ranges}],"orientation":"{cpp(self.orientation)}",'
            f'"shard_distribution_strategy":"{strategy}"}}'
        )


class MemoryConfig:
    """Layout and memory of a tensor: `(memory_layout, buffer_type, shard_spec)` or `(buffer_type, nd_shard_spec)`."""

    __slots__ = (
        "buffer_type", "created_with_nd_shard_spec", "memory_layout", "nd_shard_spec", "per_core_allocation", "shard_spec",
    )  # fmt: skip

    def __init__(
        self,
        memory_layout: TensorMemoryLayout | BufferType | None = None,
        buffer_type: BufferType | NdShardSpec | None = None,
        shard_spec: ShardSpec | None = None,
        *,
        nd_shard_spec: NdShardSpec | None = None,
    ) -> None:
        if isinstance(buffer_type, NdShardSpec):
            buffer_type, nd_shard_spec = None, buffer_type
        if isinstance(memory_layout, BufferType):
            memory_layout, buffer_type = None, memory_layout
        if nd_shard_spec is not None and (memory_layout is not None or shard_spec is not None):
            raise MeshError(
                f"nd_shard_spec was given together with {memory_layout} and {shard_spec}",
                expected="(memory_layout, buffer_type, shard_spec) or (buffer_type, nd_shard_spec)",
                fix="Pass the arguments of one of the two forms.",
            )
        layout = TensorMemoryLayout.ND_SHARDED if nd_shard_spec is not None else memory_layout
        self.memory_layout = TensorMemoryLayout.INTERLEAVED if layout is None else layout
        self.buffer_type: BufferType = BufferType.DRAM if buffer_type is None else buffer_type
        self.shard_spec: ShardSpec | None = copy(shard_spec)  # copied: the caller may change the original later
        self.nd_shard_spec: NdShardSpec | None = copy(nd_shard_spec)
        self.created_with_nd_shard_spec = nd_shard_spec is not None
        self.per_core_allocation = False

    def experimental_set_per_core_allocation(self, enable: bool) -> None:
        """Request a separate address on every core; such a tensor cannot be allocated here."""
        refusals = {
            "per_core_allocation is only supported for L1 buffers": self.buffer_type is not BufferType.L1,
            "per_core_allocation requires a sharded memory layout": self.interleaved,
            "per_core_allocation is not supported with NdShardSpec": self.created_with_nd_shard_spec,
        }
        for wrong, holds in refusals.items():
            if enable and holds:
                raise MeshError(
                    wrong,
                    expected="height, width or block shards in L1",
                    fix="Use create_sharded_memory_config for an L1 tensor.",
                )
        self.per_core_allocation = enable

    def is_sharded(self) -> bool:
        """Whether pages are dealt to cores in shards rather than round robin over all banks."""
        return self.memory_layout is not TensorMemoryLayout.INTERLEAVED

    @property
    def interleaved(self) -> bool:
        """Whether pages go round robin over all banks."""
        return self.memory_layout is TensorMemoryLayout.INTERLEAVED

    def is_l1(self) -> bool:
        """Whether the bytes are in a core's L1."""
        return self.buffer_type in (BufferType.L1, BufferType.L1_SMALL)

    def is_dram(self) -> bool:
        """Whether the bytes are in DRAM."""
        return self.buffer_type is BufferType.DRAM

    def with_specs(
        self, memory_layout: TensorMemoryLayout, shard_spec: ShardSpec | None, nd_shard_spec: NdShardSpec | None
    ) -> MemoryConfig:
        """The same config with both kinds of shard spec filled in, as a tensor's own config has them."""
        config = MemoryConfig(memory_layout, self.buffer_type, shard_spec)
        config.nd_shard_spec = copy(nd_shard_spec)
        config.created_with_nd_shard_spec = self.created_with_nd_shard_spec
        config.per_core_allocation = self.per_core_allocation
        return config

    def to_json(self) -> str:
        """The config as text, with TT-NN's keys (tt-metal e4f9f0b, memory_config.cpp); enums are their numbers."""
        fields: dict[str, Any] = {
            "memory_layout": self.memory_layout.value,
            "buffer_type": self.buffer_type.value,
            "created_with_nd_shard_spec": self.created_with_nd_shard_spec,
            "per_core_allocation": self.per_core_allocation,
        }
        nd, shard = self.nd_shard_spec, self.shard_spec
        if self.created_with_nd_shard_spec and nd is not None:
            dealt = {"shard_distribution_strategy": nd.shard_distribution_strategy.value}
            where = {"grid": _ranges(nd.grid), "orientation": nd.orientation.value}
            fields["nd_shard_spec"] = {"shard_shape": list(nd.shard_shape), **where, **dealt}
        elif shard is not None:
            where = {"grid": _ranges(shard.grid), "orientation": shard.orientation.value}
            fields["shard_spec"] = {"shape": list(shard.shape), **where}
        return json.dumps(fields)

    @staticmethod
    def from_json(json_string: str) -> MemoryConfig:
        """The config that to_json wrote."""
        fields = json.loads(json_string)
        config = MemoryConfig._read(fields)
        config.experimental_set_per_core_allocation(fields.get("per_core_allocation", False))
        return config

    @staticmethod
    def _read(fields: dict[str, Any]) -> MemoryConfig:
        kind = BufferType(fields["buffer_type"])
        if nd := fields.get("nd_shard_spec"):
            strategy = ShardDistributionStrategy(nd["shard_distribution_strategy"])
            spec = NdShardSpec(nd["shard_shape"], _grid(nd["grid"]), ShardOrientation(nd["orientation"]), strategy)
            return MemoryConfig(kind, spec)
        layout, shard = TensorMemoryLayout(fields["memory_layout"]), fields.get("shard_spec")
        if shard is None:
            return MemoryConfig(layout, kind)
        return MemoryConfig(
            layout, kind, ShardSpec(_grid(shard["grid"]), shard["shape"], ShardOrientation(shard["orientation"]))
        )

    def __copy__(self) -> MemoryConfig:
        if self.interleaved:
            return self  # nothing in it can be written to
        return self.with_specs(self.memory_layout, self.shard_spec, self.nd_shard_spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryConfig):
            return NotImplemented
        if (self.memory_layout, self.buffer_type) != (other.memory_layout, other.buffer_type):
            return False
        if self.per_core_allocation != other.per_core_allocation:
            return False
        # A tensor's config has the other kind of spec filled in; only the one it was created with counts.
        if self.created_with_nd_shard_spec != other.created_with_nd_shard_spec:
            return self.shard_spec == other.shard_spec and self.nd_shard_spec == other.nd_shard_spec
        if self.created_with_nd_shard_spec:
            return self.nd_shard_spec == other.nd_shard_spec
        return self.shard_spec == other.shard_spec

    def __hash__(self) -> int:
        return hash(
            (self.memory_layout, self.buffer_type, self.per_core_allocation)
        )  # equal configs may differ in the other fields

    def __repr__(self) -> str:
        return (
            f"MemoryConfig(memory_layout={cpp(self.memory_layout)},buffer_type={cpp(self.buffer_type)},"
            f"shard_spec={_or_nullopt(self.shard_spec)},nd_shard_spec={_or_nullopt(self.nd_shard_spec)},"
            f"created_with_nd_shard_spec={int(self.created_with_nd_shard_spec)},"
            f"per_core_allocation={int(self.per_core_allocation)},range_lockstep_allocation=0)"
        )


def cpp(value: PrintedEnum) -> str:
    """An enum as TT-NN's C++ prints it: Layout::TILE."""
    return f"{type(value).__name__}::{value.name}"


def _range_texts(grid: CoreRangeSet) -> list[str]:
    return [json.dumps(area, separators=(",", ":")) for area in _ranges(grid)]


def _ranges(grid: CoreRangeSet) -> list[dict[str, dict[str, int]]]:
    return [
        {end: {"x": core.x, "y": core.y} for end, core in (("start", r.start), ("end", r.end))} for r in grid.ranges()
    ]


def _grid(ranges: list[dict[str, dict[str, int]]]) -> CoreRangeSet:
    return CoreRangeSet([CoreRange(CoreCoord(**area["start"]), CoreCoord(**area["end"])) for area in ranges])


def _or_nullopt(value: object) -> str:
    return "std::nullopt" if value is None else repr(value)


DRAM_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.INTERLEAVED, BufferType.DRAM)
L1_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.INTERLEAVED, BufferType.L1)
L1_HEIGHT_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1)
L1_WIDTH_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1)
L1_BLOCK_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.BLOCK_SHARDED, BufferType.L1)
