"""What a tensor is on one chip: shape, format, layout and memory, and every size that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from math import prod

import torch

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.floats import float_key
from ttmesh.chip.cells import Format
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.tensor.spec import page_extents
from ttmesh.tensor.spec import value_layout as memory
from ttmesh.tensor.spec.memory_config import (
    DRAM_MEMORY_CONFIG,
    MemoryConfig,
    NdShardSpec,
    ShardDistributionStrategy,
    ShardShapeAlignment,
    ShardSpec,
    cpp,
)
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.shard_config import div_up, round_up
from ttmesh.tensor.spec.shard_layout import ShardLayout, legacy_from_nd, nd_from_legacy, shard_layout
from ttmesh.tensor.spec.spec_checks import check_dtype, check_shard_tiles, find_misfit

DEFAULT_TILE = Tile((32, 32))


class TensorSpec:
    """Everything about a tensor but its values; never changes, and hashes fast because it keys the program cache."""

    shape: Shape
    dtype: DataType
    layout: Layout
    tile: Tile
    alignment: tuple[int, ...]

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DataType,
        layout: Layout,
        memory_layout: TensorMemoryLayout | BufferType | NdShardSpec | None = None,
        shard_spec: ShardSpec | None = None,
        buffer_type: BufferType | None = None,
        tile: Tile | None = None,
        *,
        nd_shard_spec: NdShardSpec | None = None,
        memory_config: MemoryConfig | None = None,
        alignment: tuple[int, ...] = (),
        pad_value: float = 0,
    ) -> None:
        if isinstance(memory_layout, NdShardSpec):
            memory_layout, nd_shard_spec = None, memory_layout
        if isinstance(memory_layout, BufferType):
            memory_layout, buffer_type = None, memory_layout
        if memory_config is None:
            memory_config = MemoryConfig(memory_layout, buffer_type, shard_spec, nd_shard_spec=nd_shard_spec)
        elif any(given is not None for given in (memory_layout, buffer_type, shard_spec, nd_shard_spec)):
            raise MeshError(
                "memory_config was given together with single fields of one",
                expected="memory_config, or its fields",
                fix="Leave the fields out.",
            )
        check_dtype(dtype, layout, tile)
        self.shape, self.dtype, self.layout, self.tile = Shape(shape), dtype, layout, tile or DEFAULT_TILE
        self.pad_value = pad_value  # what padding holds in memory; lanes have none
        self._config = memory_config if memory_config.interleaved else copy(memory_config)
        default = page_extents.default_alignment(layout, self.tile, self._config)
        self.alignment = page_extents.merged_alignment(alignment, default)
        if not memory_config.interleaved:
            self._check_shards()
            self._fill_in_the_other_spec()
        self._pad_key = float_key(pad_value)
        self._hash = hash((self.shape, dtype, layout, self.tile, self._config, self.alignment, self._pad_key))

    # -- names -----------------------------------------------------------------------------------------------------

    @property
    def memory_config(self) -> MemoryConfig:
        """Where it is stored; a copy when it is sharded, because shard specs can be written to."""
        return self._config if self._config.interleaved else copy(self._config)

    @property
    def logical_shape(self) -> Shape:
        """The shape as the user sees it."""
        return self.shape

    @property
    def buffer_type(self) -> BufferType:
        """Which memory."""
        return self._config.buffer_type

    # -- sizes -----------------------------------------------------------------------------------------------------

    @cached_property
    def padded_shape(self) -> Shape:
        """The shape rounded up to tiles, shards or the asked alignment."""
        return page_extents.padded_shape(self.shape, self.alignment)

    @cached_property
    def logical_2d_shape(self) -> tuple[int, int]:
        """Rows and columns of the values."""
        return page_extents.logical_extent(self.shape)

    @cached_property
    def physical_shape(self) -> tuple[int, int]:
        """Rows and columns of what is stored."""
        return page_extents.physical_extent(self.shape, self.alignment)

    @cached_property
    def page_shape(self) -> tuple[int, int]:
        """Rows and columns of one page."""
        return page_extents.page_extent(self.layout, self.tile, self.dtype, self._config, self.physical_shape)

    @cached_property
    def page_size_bytes(self) -> int:
        """Bytes of one page, before the memory's own alignment."""
        if self.layout is Layout.TILE:
            return tile_bytes(self.dtype, self.tile)
        return prod(self.page_shape) * page_extents.element_bytes(self.dtype)

    @cached_property
    def num_pages(self) -> int:
        """Pages that hold the tensor once."""
        return prod(self.physical_shape) // prod(self.page_shape)

    @cached_property
    def packed_size_bytes(self) -> int:
        """Bytes of the tensor on one chip, packed page after page."""
        return self.num_pages * self.page_size_bytes

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dim."""
        return page_extents.strides(self.shape, self.alignment)

    @cached_property
    def shard_layout(self) -> ShardLayout | None:
        """Which core holds which pages; None when interleaved."""
        if self._config.interleaved:
            return None
        spec = self._config.nd_shard_spec
        assert spec is not None, "filled in by the constructor"
        padded = (
            self.padded_shape if len(self.padded_shape) >= len(spec.shard_shape) else Shape((1, *self.padded_shape))
        )
        return shard_layout(padded, self.page_shape, spec)

    def bytes_per_bank(self, page_alignment: int, num_banks: int) -> int:
        """Bytes that every bank (interleaved) or every shard core (sharded) reserves."""
        page = round_up(self.page_size_bytes, page_alignment)
        if self.shard_layout is None:
            return div_up(self.num_pages, num_banks) * page
        if self._config.shard_spec is None:
            return self.shard_layout.pages_per_core * page
        height, width = self._config.shard_spec.shape
        return div_up(height, self.page_shape[0]) * div_up(width, self.page_shape[1]) * page

    # -- the same tensor elsewhere -----------------------------------------------------------------------------------

    def with_memory_config(self, memory_config: MemoryConfig) -> TensorSpec:
        """The same tensor in other memory."""
        keeps = self._config.interleaved and memory_config.interleaved  # shards bring their own alignment
        return self._like(self.shape, memory_config, self.alignment if keeps else ())

    def with_shape(self, shape: Sequence[int]) -> TensorSpec:
        """Another shape, all else equal."""
        return self._like(shape, self._config, ())

    def with_padded_shape(self, padded: Sequence[int]) -> TensorSpec:
        """The same values padded to this shape."""
        return self.with_padding(padded, self.pad_value)

    def with_padding(self, padded: Sequence[int], pad_value: float) -> TensorSpec:
        """The same values padded to this shape with this value."""
        alignment = page_extents.alignment_of(self.shape, padded, self.layout, self.tile, self._config)
        return self._like(self.shape, self._config, alignment, pad_value)

    def _like(
        self,
        shape: Sequence[int],
        config: MemoryConfig,
        alignment: tuple[int, ...],
        pad_value: float | None = None,
    ) -> TensorSpec:
        return TensorSpec(
            shape,
            self.dtype,
            self.layout,
            tile=self._own_tile(),
            memory_config=config,
            alignment=alignment,
            pad_value=self.pad_value if pad_value is None else pad_value,
        )

    def sharded(
        self,
        shard_shape: Sequence[int] | NdShardSpec,
        grid: CoreRangeSet | None = None,
        shard_alignment: ShardShapeAlignment = ShardShapeAlignment.RECOMMENDED,
        orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
        shard_distribution_strategy: ShardDistributionStrategy = ShardDistributionStrategy.ROUND_ROBIN_1D,
    ) -> TensorSpec:
        """Split into shards of this shape, rounded up as asked."""
        if isinstance(shard_shape, NdShardSpec):
            spec = copy(shard_shape)
        elif grid is None:
            raise TypeError("sharded(shard_shape, grid) needs a grid")
        else:
            spec = NdShardSpec(shard_shape, grid, orientation, shard_distribution_strategy)
        if shard_alignment is not ShardShapeAlignment.NONE:
            recommended = shard_alignment is ShardShapeAlignment.RECOMMENDED
            steps = page_extents.shard_alignment(self.layout, self.tile, self.dtype, recommended=recommended)
            shape = list(spec.shard_shape)
            for i in range(-min(len(steps), len(shape)), 0):
                shape[i] = round_up(shape[i], steps[i])
            spec.shard_shape = Shape(shape)
        return self.with_memory_config(MemoryConfig(self.buffer_type, spec))

    def sharded_across_dims(
        self, dims: Sequence[int], grid: CoreRangeSet, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    ) -> TensorSpec:
        """One shard per index of the given dims."""
        inside = {dim % len(self.padded_shape) for dim in dims}
        shape = [1 if i in inside else extent for i, extent in enumerate(self.padded_shape)]
        return self.sharded(NdShardSpec(shape, grid, orientation))

    def sharded_across_dims_except(
        self, dims: Sequence[int], grid: CoreRangeSet, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    ) -> TensorSpec:
        """One shard per index of all other dims."""
        kept = {dim % len(self.padded_shape) for dim in dims}
        return self.sharded_across_dims([i for i in range(len(self.padded_shape)) if i not in kept], grid, orientation)

    def height_sharded(
        self, grid: CoreRangeSet, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    ) -> TensorSpec:
        """Rows split over all cores."""
        shape = div_up(self.physical_shape[0], grid.num_cores()), self.physical_shape[1]
        return self.sharded(NdShardSpec(shape, grid, orientation), shard_alignment=ShardShapeAlignment.REQUIRED)

    def width_sharded(
        self, grid: CoreRangeSet, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    ) -> TensorSpec:
        """Columns split over all cores."""
        shape = self.physical_shape[0], div_up(self.physical_shape[1], grid.num_cores())
        return self.sharded(NdShardSpec(shape, grid, orientation), shard_alignment=ShardShapeAlignment.REQUIRED)

    def block_sharded(
        self, grid: CoreRange | CoreRangeSet, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
    ) -> TensorSpec:
        """Rows and columns split over a rectangle of cores."""
        cores = CoreRangeSet(grid) if isinstance(grid, CoreRange) else grid
        box = cores.bounding_box().grid_size()
        rows, columns = (box.y, box.x) if orientation is ShardOrientation.ROW_MAJOR else (box.x, box.y)
        shape = div_up(self.physical_shape[0], rows), div_up(self.physical_shape[1], columns)
        return self.sharded(NdShardSpec(shape, cores, orientation, ShardDistributionStrategy.GRID_2D))

    # -- values in memory: what a cell asks of its format ------------------------------------------------------------

    def to_bytes(self, values: torch.Tensor, lane_axes: int) -> torch.Tensor:
        """Lanes of values → lanes of packed pages."""
        return memory.to_bytes(self, values, lane_axes)

    def from_bytes(self, raw: torch.Tensor, lane_axes: int) -> torch.Tensor:
        """Lanes of packed pages → lanes of values."""
        return memory.from_bytes(self, raw, lane_axes)

    def blank(self, lane_axes: int, device: torch.device) -> torch.Tensor:
        """Values of memory that was never written."""
        return memory.blank(self, lane_axes, device)

    def describe(self) -> tuple[str, str, str, str]:
        """Shape, number format, layout and memory configuration as TT-NN's reports write them."""
        return repr(self.shape), cpp(self.dtype), cpp(self.layout), repr(self._config)

    def view_of(self, values: torch.Tensor, other: Format, lane_axes: int) -> torch.Tensor | None:
        """Values of another spec seen through this one, or None where that needs bytes."""
        return memory.view_of(self, values, other, lane_axes) if isinstance(other, TensorSpec) else None

    # -- checks ------------------------------------------------------------------------------------------------------

    def _own_tile(self) -> Tile | None:
        return self.tile if self.layout is Layout.TILE else None

    def _check_shards(self) -> None:
        config = self._config
        if config.shard_spec is None and config.nd_shard_spec is None:
            raise ShapeError(
                f"bad optional access: MemoryConfig must have Shard Spec specified for sharded memory layout; got {config}",
                expected="a shard_spec or nd_shard_spec",
                fix="Use create_sharded_memory_config.",
            )
        check_shard_tiles(config, self.layout, self.tile)
        if config.shard_spec is not None:
            misfit = find_misfit(config, config.shard_spec, self.physical_shape)
            if misfit is not None:
                raise misfit

    def _fill_in_the_other_spec(self) -> None:
        config = self._config
        if config.shard_spec is not None and not config.created_with_nd_shard_spec:
            nd = nd_from_legacy(config, config.shard_spec, self.padded_shape)
            self._config = config.with_specs(config.memory_layout, config.shard_spec, nd)
        elif config.nd_shard_spec is not None and config.created_with_nd_shard_spec:
            found = legacy_from_nd(config, config.nd_shard_spec, self.padded_shape, self.physical_shape)
            if found is not None:
                self._config = config.with_specs(found[0], found[1], config.nd_shard_spec)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return (
            self._hash == other._hash
            and self.shape == other.shape
            and self.dtype == other.dtype
            and self.layout == other.layout
            and self.tile == other.tile
            and self.alignment == other.alignment
            and self._pad_key == other._pad_key
            and self._config == other._config
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return (
            f"TensorSpec(shape={self.shape!r}, dtype={self.dtype!r}, layout={self.layout!r}, "
            f"memory_config={self._config!r})"
        )


def interleaved_spec(
    shape: Sequence[int], dtype: DataType, layout: Layout, memory_config: MemoryConfig = DRAM_MEMORY_CONFIG
) -> TensorSpec:
    """The spec most tensors have."""
    return TensorSpec(shape, dtype, layout, memory_config=memory_config)
