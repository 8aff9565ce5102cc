"""Which core holds which pages of a sharded tensor, and TT-NN's two forms of a shard spec."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import prod

from ttmesh.base.cores import CoreCoord, CoreRange
from ttmesh.base.dtypes import ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import ShapeError
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec, ShardDistributionStrategy, ShardSpec
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.shard_config import div_up

Extent2d = tuple[int, int]


@dataclass(frozen=True)
class ShardLayout:
    """Shards in pages, dealt over cores; every core reserves the same."""

    tensor_pages: tuple[int, ...]
    shard_pages: tuple[int, ...]
    cores: tuple[CoreCoord, ...]
    strategy: ShardDistributionStrategy

    @property
    def num_shards(self) -> int:
        """How many shards there are, partial ones included."""
        if 0 in self.tensor_pages:
            return 0
        return prod(div_up(t, s) for t, s in zip(self.tensor_pages, self.shard_pages, strict=True))

    @property
    def shards_per_core(self) -> int:
        """Shards on the fullest core."""
        return div_up(self.num_shards, len(self.cores)) if self.cores else 0

    @property
    def pages_per_core(self) -> int:
        """Pages that every core reserves."""
        return self.shards_per_core * prod(self.shard_pages)

    @property
    def cores_with_data(self) -> tuple[CoreCoord, ...]:
        """The cores that hold a shard, in the order in which shards are dealt."""
        return self.cores[: self.num_shards]

    def page_map(self) -> list[list[int | None]]:
        """For each core, the tensor page in each of its page slots; None is padding."""
        slots: list[list[int | None]] = [[None] * self.pages_per_core for _ in self.cores]
        if not self.num_shards:
            return slots
        steps, volume = _strides(self.tensor_pages), prod(self.shard_pages)
        counts = [div_up(t, s) for t, s in zip(self.tensor_pages, self.shard_pages, strict=True)]
        for shard, position in enumerate(itertools.product(*map(range, counts))):
            core, slot = self._home(shard)
            first = [i * s for i, s in zip(position, self.shard_pages, strict=True)]
            for at, offset in enumerate(itertools.product(*map(range, self.shard_pages))):
                page = [a + b for a, b in zip(first, offset, strict=True)]
                if all(p < t for p, t in zip(page, self.tensor_pages, strict=True)):
                    slots[core][slot * volume + at] = sum(p * s for p, s in zip(page, steps, strict=True))
        return slots

    def _home(self, shard: int) -> tuple[int, int]:
        """The core of a shard and its slot there."""
        if self.strategy is ShardDistributionStrategy.CONTIGUOUS_1D:
            return divmod(shard, self.shards_per_core)
        slot, core = divmod(shard, len(self.cores))
        return core, slot


def shard_layout(padded: Shape, page: Extent2d, spec: NdShardSpec) -> ShardLayout:
    """Deal a tensor of this padded shape over the cores of its spec."""
    tensor, shard = _in_pages(tuple(padded) or (1,), page), _in_pages(tuple(spec.shard_shape), page)
    if len(shard) > len(tensor):
        raise ShapeError(
            f"Tensor shape rank ({len(tensor)}) can't be less than shard shape rank ({len(shard)})!",
            expected="a shard of at most the tensor's rank",
            fix="Drop leading ones of the shard shape.",
        )
    extra = len(tensor) - len(shard)  # dims above the shard's rank are folded into its first
    flattened = (prod(tensor[: extra + 1]), *tensor[extra + 1 :])
    if not prod(shard):
        raise ShapeError(
            f"Shard shape must have non zero volume! Got {spec.shard_shape}",
            expected="no zero",
            fix="Pass positive extents.",
        )
    layout = ShardLayout(flattened, shard, _cores(flattened, shard, spec), spec.shard_distribution_strategy)
    uneven = layout.cores and layout.num_shards % len(layout.cores)
    if spec.shard_distribution_strategy is ShardDistributionStrategy.CONTIGUOUS_1D and uneven:
        raise ShapeError(
            f"CONTIGUOUS_1D distribution requires a uniform shards-per-core: num_shards ({layout.num_shards}) must be "
            f"divisible by num_cores ({len(layout.cores)}).",
            expected="the same number of shards on every core",
            fix="Change the shard shape or the grid.",
        )
    return layout


def _cores(tensor: tuple[int, ...], shard: tuple[int, ...], spec: NdShardSpec) -> tuple[CoreCoord, ...]:
    """The cores in the order in which shards are dealt."""
    by_rows = spec.orientation is ShardOrientation.ROW_MAJOR
    if spec.shard_distribution_strategy is not ShardDistributionStrategy.GRID_2D:
        return tuple(spec.grid.cores(row_wise=by_rows))
    if len(shard) > 2 or spec.grid.size() != 1:
        raise ShapeError(
            "2D grid distribution is only supported for 2D sharding!"
            if len(shard) > 2
            else "2D grid distribution is only supported for one contiguous core grid!",
            expected="a two-dimensional shard on one rectangle of cores",
            fix="Use ROUND_ROBIN_1D.",
        )
    box = spec.grid.ranges()[0]
    across = max(div_up(tensor[-1], shard[-1]), 1)
    down = max(div_up(prod(tensor[:-1]), prod(shard[:-1])), 1)
    columns, rows = (across, down) if by_rows else (down, across)
    for count, side, room in ((columns, "width", box.grid_size().x), (rows, "height", box.grid_size().y)):
        if count > room:
            raise ShapeError(
                f"Number of shards along {side} must not exceed core grid {side}! Got {count}",
                expected=f"at most {room}",
                fix="Enlarge the shards or the grid.",
            )
    used = CoreRange(box.start, CoreCoord(box.start.x + columns - 1, box.start.y + rows - 1))
    return tuple(used.cores(row_wise=by_rows))


def nd_from_legacy(config: MemoryConfig, spec: ShardSpec, padded: Shape) -> NdShardSpec:
    """The n-dimensional spec that deals shards as a height, width or block spec does."""
    shape = tuple(spec.shape)
    if len(padded) == 1:
        if shape[0] != 1:
            raise ShapeError(
                f"Shard shape must be 1D for 1D tensor! Got {list(shape)}", expected="height 1", fix="Use height 1."
            )
        shape = shape[1:]
    block = config.memory_layout is TensorMemoryLayout.BLOCK_SHARDED
    strategy = ShardDistributionStrategy.GRID_2D if block else ShardDistributionStrategy.ROUND_ROBIN_1D
    return NdShardSpec(shape, spec.grid, spec.orientation, strategy)


def legacy_from_nd(
    config: MemoryConfig, spec: NdShardSpec, padded: Shape, physical: Extent2d
) -> tuple[TensorMemoryLayout, ShardSpec] | None:
    """The height, width or block spec that deals shards as this one does, where there is one."""
    strategy = spec.shard_distribution_strategy
    if strategy is ShardDistributionStrategy.CONTIGUOUS_1D:
        return None
    flat = _flatten_shard(spec.shard_shape, padded)
    if flat is None:
        return None
    down, across = div_up(physical[0], flat[0]), div_up(physical[1], flat[1])
    if spec.orientation is not ShardOrientation.ROW_MAJOR:
        down, across = across, down
    if down * across > spec.grid.num_cores():
        return None
    legacy = ShardSpec(spec.grid, flat, spec.orientation)
    round_robin = strategy is ShardDistributionStrategy.ROUND_ROBIN_1D
    if round_robin and flat[0] == padded.volume() // max(padded[-1], 1):
        return TensorMemoryLayout.WIDTH_SHARDED, legacy
    if round_robin and flat[1] == padded[-1]:
        return TensorMemoryLayout.HEIGHT_SHARDED, legacy
    box = spec.grid.bounding_box().grid_size()
    if spec.grid.size() != 1 or across > box.x or down > box.y or (round_robin and across != box.x):
        return None
    return TensorMemoryLayout.BLOCK_SHARDED, legacy


def _flatten_shard(shard: Shape, padded: Shape) -> Extent2d | None:
    """A shard as height and width, where its dims fold into two."""
    height, volume = 1, padded[-1]
    for dim in range(-2, -len(shard) - 1, -1):
        volume *= padded[dim]
        height *= shard[dim]
        if padded[dim] == shard[dim]:
            continue
        if shard.volume() != height * shard[-1]:
            return None
        if dim == -len(shard) or padded[dim] % shard[dim] == 0 or padded.volume() == volume:
            break
        return None
    return height, shard[-1]


def _in_pages(shape: tuple[int, ...], page: Extent2d) -> tuple[int, ...]:
    columns = div_up(shape[-1], page[1])
    return (columns,) if len(shape) == 1 else (*shape[:-2], div_up(shape[-2], page[0]), columns)


def _strides(shape: tuple[int, ...]) -> list[int]:
    return [prod(shape[i + 1 :]) for i in range(len(shape))]
