"""Where moe_compute runs: the cores that tilize tokens, multiply them with the experts' weights, and combine results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import Arch
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import takes_queue

TILE = 32
MAX_TILIZE_CORES = 4
STRIP_WIDTH = 2  # columns of combine cores, if there is room for as many rows
TILIZE_ROWS = 2  # the last rows of the grid hold the tilize cores
WORMHOLE_RING = 12

Cell = tuple[int, int]
Cells = frozenset[Cell]


@dataclass(frozen=True)
class MoeCores:
    """The cores of the three groups; the first tilize core holds the indices and scores of all tokens."""

    matmul: tuple[Cell, ...]
    combine: tuple[Cell, ...]
    tilize: tuple[Cell, ...]


def count_ring_cores(mesh: MeshDevice) -> int:
    """The number of cores that multiply: one per DRAM bank."""
    return WORMHOLE_RING if mesh.arch() is Arch.WORMHOLE_B0 else mesh.chip.dram_banks


def count_width_shards(hidden_size: int, ring_size: int) -> int:
    """The number of combine cores that share a token's row: up to four that divide both its tiles and the ring."""
    return next(d for d in (4, 3, 2, 1) if hidden_size // TILE % d == 0 and ring_size % d == 0)


def select_moe_cores(mesh: MeshDevice, combine_cores: int, hidden_size: int, mux: CoreRangeSet | None) -> MoeCores:
    """The cores of moe_compute: three groups whose bounding boxes do not overlap, around the mux cores."""
    size = mesh.compute_with_storage_grid_size()
    grid = (size.x, size.y)
    ring_size, hidden_tiles = count_ring_cores(mesh), hidden_size // TILE
    taken = frozenset() if mux is None else _list_cells(mux)
    ring = tuple((core.x, core.y) for core in mesh.get_optimal_dram_bank_to_logical_worker_assignment())[:ring_size]
    rings = [] if taken.intersection(ring) else [ring]
    for first_row in range(grid[1]):
        compact = _make_compact_ring(grid, ring_size, taken, first_row)
        if len(compact) < ring_size:
            break
        rings.append(compact)
    for cores in rings:
        combine = _place_combine(grid, taken | _fill_box(cores), combine_cores)
        if combine is None:
            continue
        tilize = _place_tilize(grid, taken | _fill_box(cores) | _fill_box(combine), hidden_tiles)
        boxes = None if tilize is None else (_fill_box(tilize), _fill_box(cores) | _fill_box(combine))
        if tilize is not None and boxes is not None and not boxes[0] & boxes[1]:
            return MoeCores(cores, tuple(sorted(combine)), tilize)
    raise MeshError(
        f"moe_compute: could not place a column-0-anchored compact {ring_size}-core matmul ring together with "
        f"{combine_cores} combine + {_count_tilize_cores(hidden_tiles)} tilize cores disjointly, avoiding "
        f"{len(taken)} mux cores, on the {grid[0]}x{grid[1]} worker grid",
        expected="room for three groups of cores whose bounding boxes do not overlap",
        fix="Use fewer combine cores (output_height_shard_dim) or other mux cores.",
    )


@takes_queue
@name_wrong_types
def get_moe_combine_cores(
    mesh_device: MeshDevice,
    combine_token_parallel_cores: int,
    combine_data_parallel_cores: int,
    hidden_size: int,
    mux_core_range_set: CoreRangeSet | None = None,
) -> list[CoreCoord]:
    """The cores on which moe_compute combines the experts' results, column by column."""
    count = combine_token_parallel_cores * combine_data_parallel_cores
    return [CoreCoord(x, y) for x, y in select_moe_cores(mesh_device, count, hidden_size, mux_core_range_set).combine]


@takes_queue
@name_wrong_types
def get_moe_tilize_drain_core(
    mesh_device: MeshDevice,
    combine_token_parallel_cores: int,
    combine_data_parallel_cores: int,
    hidden_size: int,
    mux_core_range_set: CoreRangeSet | None = None,
) -> CoreCoord:
    """The core that must hold the expert indices and scores of moe_compute."""
    count = combine_token_parallel_cores * combine_data_parallel_cores
    return CoreCoord(*select_moe_cores(mesh_device, count, hidden_size, mux_core_range_set).tilize[0])


@takes_queue
@name_wrong_types
def get_moe_worker_mcast_bounding_box(
    mesh_device: MeshDevice,
    combine_token_parallel_cores: int,
    combine_data_parallel_cores: int,
    hidden_size: int,
    mux_core_range_set: CoreRangeSet | None = None,
) -> CoreRange:
    """The bounding box of all cores of moe_compute."""
    count = combine_token_parallel_cores * combine_data_parallel_cores
    cores = select_moe_cores(mesh_device, count, hidden_size, mux_core_range_set)
    box = list_box_cells(cores)
    return CoreRange(CoreCoord(*box[0]), CoreCoord(*box[-1]))


def list_box_cells(cores: MoeCores) -> tuple[Cell, ...]:
    """The cells of the bounding box of all cores: those that get the numbers of tokens."""
    return tuple(sorted(_fill_box((*cores.matmul, *cores.combine, *cores.tilize))))


def _list_cells(ranges: CoreRangeSet) -> Cells:
    boxes = [((r.start.x, r.start.y), (r.end.x, r.end.y)) for r in ranges.ranges()]
    return frozenset(cell for box in boxes for cell in _fill_box(box))


def _fill_box(cores: tuple[Cell, ...]) -> Cells:
    """All cells of the bounding box of some cores."""
    xs, ys = [x for x, _ in cores], [y for _, y in cores]
    return frozenset(product(range(min(xs), max(xs) + 1), range(min(ys), max(ys) + 1)))


def _make_compact_ring(grid: Cell, ring_size: int, taken: Cells, first_row: int) -> tuple[Cell, ...]:
    """A ring row by row from column 0, west of the combine strip and above the tilize rows."""
    columns = grid[0] - STRIP_WIDTH if grid[0] > STRIP_WIDTH else grid[0]
    last_row = grid[1] - TILIZE_ROWS if grid[1] > TILIZE_ROWS else grid[1]
    rows = [y for y in range(first_row, last_row) if (0, y) not in taken]  # TT-NN's ring must start at column 0
    return tuple((x, y) for y in rows for x in range(columns) if (x, y) not in taken)[:ring_size]


def _find_rectangles(grid: Cell, width: int, height: int, rows: int, avoid: Cells) -> Iterator[tuple[Cell, Cell]]:
    """Free rectangles in the first rows: eastern columns first, then from the top."""
    for x in range(grid[0] - width, -1, -1):
        for y in range(rows - height + 1):
            if not any((x + dx, y + dy) in avoid for dx in range(width) for dy in range(height)):
                yield (x, y), (x + width - 1, y + height - 1)


def _place_combine(grid: Cell, avoid: Cells, count: int) -> tuple[Cell, ...] | None:
    """A full rectangle of combine cores above the tilize rows: two columns if possible, else as wide as possible."""
    rows = grid[1] - TILIZE_ROWS if grid[1] > TILIZE_ROWS else grid[1]
    sizes = [(STRIP_WIDTH, -(-count // STRIP_WIDTH))]
    sizes += [(width, count // width) for width in range(min(count, grid[0]), 0, -1) if count % width == 0]
    for width, height in sizes:
        corners = next(_find_rectangles(grid, width, height, rows, avoid), None)
        if corners is not None:
            cells = sorted(_fill_box(corners), key=lambda cell: (cell[1], cell[0]))[:count]
            return tuple(cells) if len(_fill_box(tuple(cells))) == count else None
    return None


def _count_tilize_cores(hidden_tiles: int) -> int:
    return next(n for n in range(min(MAX_TILIZE_CORES, max(hidden_tiles, 1)), 0, -1) if hidden_tiles % n == 0)


def _place_tilize(grid: Cell, avoid: Cells, hidden_tiles: int) -> tuple[Cell, ...] | None:
    """Up to four cores in the last two rows: a square block from its last core, else free cores from the last one."""
    first_row = max(grid[1] - TILIZE_ROWS, 0)
    for count in range(_count_tilize_cores(hidden_tiles), 0, -1):
        if hidden_tiles % count:
            continue
        for x in range(grid[0] - 2, -1, -1):
            block = ((x + 1, first_row + 1), (x + 1, first_row), (x, first_row + 1), (x, first_row))
            if not avoid.intersection(block):
                return block[:count]
        free = [(x, y) for y in range(grid[1] - 1, first_row - 1, -1) for x in range(grid[0] - 1, -1, -1)]
        cores = tuple(cell for cell in free if cell not in avoid)[:count]
        if len(cores) == count and not _fill_box(cores) & avoid:
            return cores
    return None
