"""Groups of cores and runtime arguments of the programs that TT-NN's factories make, by family.

Sizes are those of TT-NN 0.81.1, as it wrote them in captures of single programs and of one layer of models of
tt_transformers; how commands are packed is in `mesh/queue/dispatch_commands.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ttmesh.base.cores import CoreGrid
from ttmesh.base.dtypes import Arch, BufferType, Layout, TensorMemoryLayout
from ttmesh.mesh.queue.dispatch_commands import Captured, Group
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Specs = Sequence[TensorSpec]

TILE = 32
WIDE = 8  # a matmul's result so many times wider than high, or higher than wide, is computed along one axis


class Started(NamedTuple):
    """One program of a call: tensors in and out, the grid of the chip, and the options of the call."""

    inputs: Specs
    results: Specs
    grid: CoreGrid
    arch: Arch
    options: Mapping[str, Any]

    @property
    def cores(self) -> int:
        """The cores of the grid that the call names, else of the whole grid."""
        return self.chosen.num_cores

    @property
    def chosen(self) -> CoreGrid:
        """The grid that the call names, else the whole grid."""
        config = self.options.get("program_config") or self.options.get("config")
        size = getattr(config, "compute_with_storage_grid_size", None)
        if size is None:
            return self.grid
        x, y = size if isinstance(size, (tuple, list)) else (size.x, size.y)
        return CoreGrid(int(y), int(x))


Rule = Callable[[Started], Captured]


def _count_tiles(spec: TensorSpec) -> int:
    height, width = spec.physical_shape
    return max(-(-height // TILE) * -(-width // TILE), 1)


def count_rows(spec: TensorSpec) -> int:
    """Rows of tiles."""
    return max(-(-spec.physical_shape[0] // TILE), 1)


def _count_shards(spec: TensorSpec) -> int:
    shards = spec.memory_config.shard_spec
    return 0 if shards is None else shards.num_cores()


def on_grid(argument_bytes: int, payload: int = 64, binaries: int = 5) -> Rule:
    """Every core of the grid gets arguments, also one without work."""
    return lambda one: Captured([Group(one.grid.num_cores, argument_bytes)], payload, binaries)


def on_tiles(argument_bytes: int, payload: int = 64, binaries: int = 5) -> Rule:
    """A core for every tile of the result, at most all."""

    def rule(one: Started) -> Captured:
        return Captured(
            [Group(min(one.grid.num_cores, _count_tiles(one.results[0])), argument_bytes)], payload, binaries
        )

    return rule


def on_rows(argument_bytes: int, payload: int = 64) -> Rule:
    """A core for every row of tiles of the input, at most all."""

    def rule(one: Started) -> Captured:
        return Captured([Group(min(one.grid.num_cores, count_rows(one.inputs[0])), argument_bytes)], payload)

    return rule


def on_cores(count: Callable[[Started], int], argument_bytes: int, payload: int = 64, binaries: int = 5) -> Rule:
    """As many cores as this function counts, at most all."""

    def rule(one: Started) -> Captured:
        return Captured([Group(min(one.grid.num_cores, max(count(one), 1)), argument_bytes)], payload, binaries)

    return rule


def by_layout(tiles: Rule, rows: Rule) -> Rule:
    """One factory for tiles, another for rows."""
    return lambda one: (tiles if one.inputs[0].layout is Layout.TILE else rows)(one)


def move_shards(one: Started) -> Captured:
    """Between shards and pages, or from shards to other shards: every core learns where the others are."""
    source, target = one.inputs[0], one.results[0]
    sources, targets = _count_shards(source), _count_shards(target)
    if sources and targets:
        layouts = {source.memory_config.memory_layout, target.memory_config.memory_layout}
        own = 40 if layouts == {TensorMemoryLayout.HEIGHT_SHARDED} else 216 if one.arch is Arch.BLACKHOLE else 176
        return Captured([Group(targets, own)], 48, 2)
    if sources or targets:
        return Captured([Group(sources or targets, 36 if sources else 32)], 48, 2)
    return Captured([Group(min(one.grid.num_cores, _count_tiles(target)), 16)], 48, 2)


def normalise_rows(one: Started) -> Captured:
    """Rows of tiles; of shards, the first core of every row of cores gathers the sums of the others."""
    shards = _count_shards(one.inputs[0])
    if not shards:
        return Captured([Group(min(one.grid.num_cores, count_rows(one.inputs[0])), 32)], 176)
    rows = max(shards // 8, 1)
    groups = [Group(1, 88 + 4 * rows), Group(rows - 1, 84 + 4 * rows), Group(shards - rows, 48)]
    return Captured([group for group in groups if group.cores], 304)


def _multiply_along_one_axis(cores: int) -> Captured:
    return Captured([Group(1, 88), Group(cores - 1, 72, 2)] if cores > 1 else [Group(1, 88)], 144)


def multiply_tiles(one: Started) -> Captured:
    """Matmuls: weights in shards in DRAM, or tiles by multicast along one axis or along two."""
    config, shards = one.options.get("program_config"), _count_shards(one.inputs[0])
    weights = one.inputs[1].memory_config if len(one.inputs) > 1 else None
    if shards and weights is not None and weights.is_sharded() and weights.buffer_type is BufferType.DRAM:
        columns = one.grid.x if one.arch is not Arch.BLACKHOLE else min(one.grid.x, max(8, shards // one.grid.y))
        return Captured([Group(columns * one.grid.y, 9 * shards + 56)], 144)  # every core learns where the shards are
    height, width = (max(-(-n // TILE), 1) for n in one.results[0].physical_shape)
    per_core = (getattr(config, "per_core_M", None), getattr(config, "per_core_N", None))
    if None not in per_core:
        rows, columns = -(-height // per_core[0]), -(-width // per_core[1])  # type: ignore[operator]
        along_one = hasattr(config, "mcast_in0") or rows == 1 or columns == 1
    else:
        rows, columns = min(one.grid.y, height), min(one.grid.x, width)
        along_one = max(height, width) > WIDE * min(height, width) or 1 in (height, width)
    if along_one:
        count = rows * columns if None not in per_core else height * width
        return _multiply_along_one_axis(min(one.grid.num_cores, count))
    rows, columns = min(rows, one.grid.y), min(columns, one.grid.x)
    inner = (rows - 1) * (columns - 1)
    groups = [
        Group(1, 112),
        Group(rows - 1, 80),
        Group(columns - 1, 96),
        Group(-(-inner * 4 // 7), 64),
        Group(inner * 3 // 7, 64),
    ]
    return Captured(groups, 240)


def multiply_minimally(one: Started) -> Captured:
    """The corner, the first row, the first column and the others of the grid."""
    rows, columns = one.chosen.y - 1, one.chosen.x - 1
    return Captured([Group(1, 104), Group(rows, 104), Group(columns, 104), Group(rows * columns, 104)], 304)


def attend_decode(one: Started) -> Captured:
    """Every core learns which cores hold the parts of every user's result."""
    users, heads = one.inputs[0].shape[1], one.inputs[1].shape[1]
    return Captured([Group(one.cores, 192 + users * (24 if heads == 1 else 32))], 560)


def gather_over_links(argument_bytes: int) -> Rule:
    """Two workers and a multiplexer for each direction of every link; workers know the cores of shards."""

    def rule(one: Started) -> Captured:
        links, shards = int(one.options.get("num_links") or 1), _count_shards(one.inputs[0])
        own = argument_bytes + 8 * shards + (32 if shards > 8 else 0)
        return Captured([Group(4 * links, own, 2 * links), Group(2 * links, 48, 2 * links)], 576 * links)

    return rule


def scatter_over_links(one: Started) -> Captured:
    """Two workers for each direction of every link, and its two multiplexers."""
    links = int(one.options.get("num_links") or 1)
    groups = [Group(4 * links, 148, 2 * links), Group(links, 12, links), Group(links, 12, links)]
    return Captured(groups, 576 * links)


def join_tensors(one: Started) -> Captured:
    """Every core learns where each of the tensors is."""
    number = len(one.inputs)
    cores = _count_tiles(one.results[0]) if one.inputs[0].layout is Layout.TILE else one.grid.num_cores
    return Captured([Group(min(one.grid.num_cores, cores), 20 + 8 * number)], 48, 2)


def sample_users(one: Started) -> Captured:
    """Every user has a core with kernels of its own."""
    return Captured([Group(1, 0)] * TILE, 1760)


def rotate_pairs(one: Started) -> Captured:
    """Shards of queries and keys know their own place; pages are divided over the grid."""
    if _count_shards(one.inputs[0]):
        return Captured([], 176)
    return Captured([Group(one.grid.num_cores, 68)], 176)


def rotate_queries_and_keys(one: Started) -> Captured:
    """A core for every shard of both."""
    return Captured([Group(_count_shards(one.inputs[0]) + _count_shards(one.inputs[1]), 4)], 176)


def find_largest(one: Started) -> Captured:
    """Wide rows whose width is a power of two are divided over 16 cores and one that merges; else a core takes a row."""
    width = one.inputs[0].shape[-1]
    if width >= 8192 and not width & (width - 1):
        return Captured([Group(16, 28), Group(1, 8)], 368)
    return Captured([Group(min(one.grid.num_cores, count_rows(one.inputs[0])), 20)], 176)


def count_users(one: Started) -> int:
    """Users of a decode step."""
    return one.inputs[0].shape[-2]


def count_input_rows(one: Started) -> int:
    """Rows of tiles of the input."""
    return count_rows(one.inputs[0])


def count_result_rows(one: Started) -> int:
    """Rows of the result: of tiles, or single ones."""
    rows = one.results[0].physical_shape[0]
    return rows if one.results[0].layout is Layout.ROW_MAJOR else -(-rows // TILE)
