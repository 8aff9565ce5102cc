"""Spreading work over a grid of cores, as TT-NN's helper functions do."""

from __future__ import annotations

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet, rectangles
from ttmesh.base.errors import ShapeError


def num_cores_to_corerangeset(
    target_num_cores: int, grid_size: CoreCoord | tuple[int, int], row_wise: bool = False
) -> CoreRangeSet:
    """The first cores of a grid, counted row by row or column by column."""
    grid = grid_size if isinstance(grid_size, CoreCoord) else CoreCoord(*grid_size)
    if target_num_cores > grid.x * grid.y:
        raise ShapeError(
            f"Target number of cores {target_num_cores} is greater than total number of available cores {grid.x * grid.y}",
            expected=f"at most {grid.x * grid.y}",
            fix="Ask for fewer cores.",
        )
    return CoreRangeSet(rectangles(grid_to_cores(target_num_cores, grid.x, grid.y, row_wise)))


def num_cores_to_corerangeset_in_subcoregrids(
    start_core: CoreCoord, target_num_cores: int, sub_core_grids: CoreRangeSet, row_wise: bool = False
) -> CoreRangeSet:
    """The requested number of cores of some grids, from a start core on."""
    cores = sub_core_grids.cores(row_wise=row_wise)
    if start_core not in cores:
        raise ShapeError(
            f"Start core must be contained in sub_core_grids: {start_core.str()}",
            expected=sub_core_grids.str(),
            fix="Start at one of its cores.",
        )
    chosen = cores[cores.index(start_core) :][:target_num_cores]
    if len(chosen) < target_num_cores:
        wrong = (
            f"Target number of cores {target_num_cores} is greater than total available cores {len(cores)}"
            if target_num_cores > len(cores)
            else f"Failed to assign all {target_num_cores} requested cores"
        )
        raise ShapeError(
            f"{wrong}; {len(chosen)} follow the start core",
            expected=f"at most {len(chosen)}",
            fix="Ask for fewer cores or start earlier.",
        )
    places = {core: place for place, core in enumerate(chosen)}
    return CoreRangeSet(sorted(rectangles(chosen), key=lambda box: min(places[core] for core in box.cores())))


def grid_to_cores(
    num_cores: int | CoreCoord, grid_size_x: int | CoreCoord, grid_size_y: int | None = None, row_wise: bool = False
) -> list[CoreCoord]:
    """The first cores of a grid as a list: `(num_cores, grid_size_x, grid_size_y)`, or `(first core, last core)`."""
    if isinstance(num_cores, CoreCoord) and isinstance(grid_size_x, CoreCoord) and grid_size_y is None:
        return CoreRangeSet([CoreRange(num_cores, grid_size_x)]).cores(row_wise=row_wise)
    if not isinstance(num_cores, int) or not isinstance(grid_size_x, int) or grid_size_y is None:
        raise ShapeError(
            f"grid_to_cores got {num_cores}, {grid_size_x}, {grid_size_y}",
            expected="the number of cores and the grid's two sizes, or the first and the last core",
            fix="Pass three numbers or two CoreCoords.",
        )
    if row_wise:
        return [CoreCoord(i % grid_size_x, i // grid_size_x) for i in range(num_cores)]
    return [CoreCoord(i // grid_size_y, i % grid_size_y) for i in range(num_cores)]


def corerange_to_cores(
    crs: CoreRangeSet | CoreRange, max_cores: int | None = None, row_wise: bool = False
) -> list[CoreCoord]:
    """The cores of a set as a list."""
    return crs.cores(row_wise=row_wise)[:max_cores]


def split_work_to_cores(
    core_grid: CoreCoord | CoreRangeSet, units_to_divide: int, row_wise: bool = False
) -> tuple[int, CoreRangeSet, CoreRangeSet, CoreRangeSet, int, int]:
    """How many cores work, which, and those that do one unit more: (n, all, busier, others, units, units - 1)."""
    if isinstance(core_grid, CoreRangeSet):
        cores = core_grid.cores(row_wise=row_wise)
    else:
        cores = grid_to_cores(core_grid.x * core_grid.y, core_grid.x, core_grid.y, row_wise)
    empty = CoreRangeSet()
    if units_to_divide == 0:
        return 0, empty, empty, empty, 0, 0
    count = min(units_to_divide, len(cores))
    chosen, (units, extra) = cores[:count], divmod(units_to_divide, count)
    everyone = CoreRangeSet(rectangles(chosen))
    if not extra:
        return count, everyone, everyone, empty, units, 0
    busier, others = (CoreRangeSet(rectangles(cores)) for cores in (chosen[:extra], chosen[extra:]))
    return count, everyone, busier, others, units + 1, units
