"""Groups of cores and runtime arguments of the programs that TT-NN's factories make, by family.

Sizes are those of TT-NN 0.81.1, as it wrote them in captures of single programs and of one layer of models of
tt_transformers; how commands are packed is in `mesh/queue/dispatch_commands.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ttmesh.base.cores import CoreGrid
from ttmesh.base.dtypes import Arch, BufferType, Layout, TensorMemoryLayout
from ttmesh.mesh.queue.dispatch_commands import CapturedProgram, Group
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Specs = Sequence[TensorSpec]

TILE = 32
WIDE = 8  # a matmul's result so many times wider than high, or higher than wide, is computed along one axis


class ProgramCall(NamedTuple):
    """One program of a call: tensors in and out, the grid of the chip, and the options of the call."""

    inputs: Specs
    results: Specs
    grid: CoreGrid
    arch: Arch
    options: Mapping[str, Any]
    free_l1: int = 0  # bytes at the bottom of L1 that no buffer takes

    @property
    def cores(self) -> int:
        """The cores of the grid that the call names, else of the whole grid."""
        return self.used_grid.num_cores

    @property
    def used_grid(self) -> CoreGrid:
        """The grid that the call names, else the whole grid."""
        config = self.options.get("program_config") or self.options.get("config")
        size = getattr(config, "compute_with_storage_grid_size", None)
        if size is None:
            return self.grid
        x, y = size if isinstance(size, (tuple, list)) else (size.x, size.y)
        return CoreGrid(int(y), int(x))


Rule = Callable[[ProgramCall], CapturedProgram]


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
    return lambda program: CapturedProgram([Group(program.grid.num_cores, argument_bytes)], payload, binaries)


def on_tiles(argument_bytes: int, payload: int = 64, binaries: int = 5) -> Rule:
    """A core for every tile of the result, at most all."""

    def rule(program: ProgramCall) -> CapturedProgram:
        return CapturedProgram(
            [Group(min(program.grid.num_cores, _count_tiles(program.results[0])), argument_bytes)], payload, binaries
        )

    return rule


def on_rows(argument_bytes: int, payload: int = 64) -> Rule:
    """A core for every row of tiles of the input, at most all."""

    def rule(program: ProgramCall) -> CapturedProgram:
        return CapturedProgram(
            [Group(min(program.grid.num_cores, count_rows(program.inputs[0])), argument_bytes)], payload
        )

    return rule


def on_cores(count: Callable[[ProgramCall], int], argument_bytes: int, payload: int = 64, binaries: int = 5) -> Rule:
    """As many cores as this function counts, at most all."""

    def rule(program: ProgramCall) -> CapturedProgram:
        return CapturedProgram(
            [Group(min(program.grid.num_cores, max(count(program), 1)), argument_bytes)], payload, binaries
        )

    return rule


def by_layout(tiles: Rule, rows: Rule) -> Rule:
    """One factory for tiles, another for rows."""
    return lambda program: (tiles if program.inputs[0].layout is Layout.TILE else rows)(program)


def move_shards(program: ProgramCall) -> CapturedProgram:
    """Between shards and pages, or from shards to other shards: every core learns where the others are."""
    source, target = program.inputs[0], program.results[0]
    sources, targets = _count_shards(source), _count_shards(target)
    if sources and targets:
        layouts = {source.memory_config.memory_layout, target.memory_config.memory_layout}
        own = 40 if layouts == {TensorMemoryLayout.HEIGHT_SHARDED} else 216 if program.arch is Arch.BLACKHOLE else 176
        return CapturedProgram([Group(targets, own)], 48, 2)
    if sources or targets:
        return CapturedProgram([Group(sources or targets, 36 if sources else 32)], 48, 2)
    return CapturedProgram([Group(min(program.grid.num_cores, _count_tiles(target)), 16)], 48, 2)


def normalise_rows(program: ProgramCall) -> CapturedProgram:
    """Rows of tiles; of shards, the first core of every row of cores gathers the sums of the others."""
    shards = _count_shards(program.inputs[0])
    if not shards:
        return CapturedProgram([Group(min(program.grid.num_cores, count_rows(program.inputs[0])), 32)], 176)
    rows = max(shards // 8, 1)
    groups = [Group(1, 88 + 4 * rows), Group(rows - 1, 84 + 4 * rows), Group(shards - rows, 48)]
    return CapturedProgram([group for group in groups if group.cores], 304)


def _multiply_along_one_axis(cores: int) -> CapturedProgram:
    return CapturedProgram([Group(1, 88), Group(cores - 1, 72, 2)] if cores > 1 else [Group(1, 88)], 144)


def multiply_tiles(program: ProgramCall) -> CapturedProgram:
    """Matmuls: weights in shards in DRAM, or tiles by multicast along one axis or along two."""
    config, shards = program.options.get("program_config"), _count_shards(program.inputs[0])
    weights = program.inputs[1].memory_config if len(program.inputs) > 1 else None
    if shards and weights is not None and weights.is_sharded() and weights.buffer_type is BufferType.DRAM:
        columns = (
            program.grid.x
            if program.arch is not Arch.BLACKHOLE
            else min(program.grid.x, max(8, shards // program.grid.y))
        )
        every_core = Group(columns * program.grid.y, 9 * shards + 56)  # it learns where the shards are
        return CapturedProgram([every_core], 144)
    height, width = (max(-(-n // TILE), 1) for n in program.results[0].physical_shape)
    per_core = (getattr(config, "per_core_M", None), getattr(config, "per_core_N", None))
    if None not in per_core:
        rows, columns = -(-height // per_core[0]), -(-width // per_core[1])  # type: ignore[operator]
        along_one = hasattr(config, "mcast_in0") or rows == 1 or columns == 1
    else:
        rows, columns = min(program.grid.y, height), min(program.grid.x, width)
        along_one = max(height, width) > WIDE * min(height, width) or 1 in (height, width)
    if along_one:
        count = rows * columns if None not in per_core else height * width
        return _multiply_along_one_axis(min(program.grid.num_cores, count))
    rows, columns = min(rows, program.grid.y), min(columns, program.grid.x)
    inner = (rows - 1) * (columns - 1)
    groups = [
        Group(1, 112),
        Group(rows - 1, 80),
        Group(columns - 1, 96),
        Group(-(-inner * 4 // 7), 64),
        Group(inner * 3 // 7, 64),
    ]
    return CapturedProgram(groups, 240)


def multiply_minimally(program: ProgramCall) -> CapturedProgram:
    """The corner, the first row, the first column and the others of the grid."""
    rows, columns = program.used_grid.y - 1, program.used_grid.x - 1
    return CapturedProgram([Group(1, 104), Group(rows, 104), Group(columns, 104), Group(rows * columns, 104)], 304)


def attend_decode(program: ProgramCall) -> CapturedProgram:
    """Every core learns which cores hold the parts of every user's result."""
    users, heads = program.inputs[0].shape[1], program.inputs[1].shape[1]
    return CapturedProgram([Group(program.cores, 192 + users * (24 if heads == 1 else 32))], 560)


def gather_over_links(argument_bytes: int) -> Rule:
    """Two workers and a multiplexer for each direction of every link; workers know the cores of shards."""

    def rule(program: ProgramCall) -> CapturedProgram:
        links, shards = int(program.options.get("num_links") or 1), _count_shards(program.inputs[0])
        own = argument_bytes + 8 * shards + (32 if shards > 8 else 0)
        return CapturedProgram([Group(4 * links, own, 2 * links), Group(2 * links, 48, 2 * links)], 576 * links)

    return rule


def scatter_over_links(program: ProgramCall) -> CapturedProgram:
    """Two workers for each direction of every link, and its two multiplexers."""
    links = int(program.options.get("num_links") or 1)
    groups = [Group(4 * links, 148, 2 * links), Group(links, 12, links), Group(links, 12, links)]
    return CapturedProgram(groups, 576 * links)


def join_tensors(program: ProgramCall) -> CapturedProgram:
    """Every core learns where each of the tensors is."""
    number = len(program.inputs)
    cores = _count_tiles(program.results[0]) if program.inputs[0].layout is Layout.TILE else program.grid.num_cores
    return CapturedProgram([Group(min(program.grid.num_cores, cores), 20 + 8 * number)], 48, 2)


def sample_users(program: ProgramCall) -> CapturedProgram:
    """Every user has a core with its own kernels."""
    return CapturedProgram([Group(1, 0)] * TILE, 1760)


def rotate_pairs(program: ProgramCall) -> CapturedProgram:
    """Shards of queries and keys know their own place; pages are divided over the grid."""
    if _count_shards(program.inputs[0]):
        return CapturedProgram([], 176)
    return CapturedProgram([Group(program.grid.num_cores, 68)], 176)


def rotate_queries_and_keys(program: ProgramCall) -> CapturedProgram:
    """A core for every shard of both."""
    return CapturedProgram([Group(_count_shards(program.inputs[0]) + _count_shards(program.inputs[1]), 4)], 176)


def find_largest(program: ProgramCall) -> CapturedProgram:
    """Wide rows whose width is a power of two are divided over 16 cores and one that merges; else a core takes a row."""
    width = program.inputs[0].shape[-1]
    if width >= 8192 and not width & (width - 1):
        return CapturedProgram([Group(16, 28), Group(1, 8)], 368)
    return CapturedProgram([Group(min(program.grid.num_cores, count_rows(program.inputs[0])), 20)], 176)


def count_users(program: ProgramCall) -> int:
    """Users of a decode step."""
    return program.inputs[0].shape[-2]


def count_input_rows(program: ProgramCall) -> int:
    """Rows of tiles of the input."""
    return count_rows(program.inputs[0])


def count_result_rows(program: ProgramCall) -> int:
    """Rows of the result: of tiles, or single ones."""
    rows = program.results[0].physical_shape[0]
    return rows if program.results[0].layout is Layout.ROW_MAJOR else -(-rows // TILE)
