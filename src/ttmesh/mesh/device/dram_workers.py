"""Which worker core is nearest to each DRAM bank: the cores that TT-NN lets read one bank each."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch

# Wormhole in physical coordinates (tt-metal e4f9f0b's SoC description): rows and columns of workers, and for every DRAM
# bank the worker to the right of its controller.
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)
COLUMNS = (1, 2, 3, 4, 6, 7, 8, 9)
HARVESTED_ROW = 8  # which row is harvested differs from chip to chip; this one on TT-NN's mock clusters
BESIDE_BANKS = (
    (1, 11), (1, 1), (1, 5), (1, 7), (6, 1), (6, 11), (6, 2), (6, 9), (6, 8), (6, 3), (6, 5), (6, 7),
)  # fmt: skip
FIRST_SHIFT = 3  # columns by which the first worker without a row of its own is moved; one less for each further one

# Blackhole's logical cores by NoC: columns are harvested outside those beside the banks.
BLACKHOLE = (
    ((0, 9), (0, 0), (0, 7), (0, 3), (6, 9), (6, 1), (6, 6), (6, 4)),
    ((0, 0), (0, 8), (0, 2), (0, 5), (6, 0), (6, 8), (6, 2), (6, 5)),
)


def assign_dram_workers(arch: Arch, grid: CoreCoord, banks: int, noc: int) -> list[CoreCoord]:
    """The logical worker core for every DRAM bank of a chip with this compute grid."""
    if banks > len(BLACKHOLE[noc] if arch is Arch.BLACKHOLE else BESIDE_BANKS):  # a chip that a user described
        return [CoreCoord(bank % grid.x, bank // grid.x) for bank in range(banks)]
    if arch is Arch.BLACKHOLE:
        return [CoreCoord(x, y) for x, y in BLACKHOLE[noc][:banks]]
    rows, columns = _list_rows(grid), COLUMNS[: grid.x]
    physical: dict[int, tuple[int, int]] = {}
    for column in (1, 6):
        physical |= _place_group({b: y for b, (x, y) in enumerate(BESIDE_BANKS[:banks]) if x == column}, column, rows)
    clamped = {bank: (_clamp_column(x, columns), y) for bank, (x, y) in physical.items()}
    return [CoreCoord(columns.index(clamped[bank][0]), rows.index(clamped[bank][1])) for bank in range(banks)]


def _list_rows(grid: CoreCoord) -> tuple[int, ...]:
    """The physical rows of workers: dispatch takes the last row unless it takes a column."""
    by_column = grid.x < len(COLUMNS)
    rows = ROWS if by_column else ROWS[:-1]
    return rows if grid.y == len(rows) else tuple(row for row in rows if row != HARVESTED_ROW)[: grid.y]


def _clamp_column(x: int, columns: Sequence[int]) -> int:
    return max(column for column in columns if column <= x)


def _place_group(rows_of_banks: dict[int, int], column: int, rows: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Workers of one column of banks; those whose row is none of workers move to a free row and to the right."""
    order = sorted(rows_of_banks, key=lambda bank: rows_of_banks[bank])
    order = [order[-1], *order[:-1]]  # the lowest controller chooses first
    wanted = set(rows_of_banks.values())
    cores: dict[int, tuple[int, int]] = {}
    shift = FIRST_SHIFT
    for bank in order:
        y = rows_of_banks[bank]
        if y in rows:
            cores[bank] = (column, y)
            continue
        candidates = list(reversed(rows)) if y >= len(BESIDE_BANKS) - 1 else list(rows)
        free = next((r for r in candidates if r not in wanted), candidates[0])
        cores[bank] = (_clamp_column(column + shift, COLUMNS), free)
        shift = max(shift - 1, 0)
    return cores
