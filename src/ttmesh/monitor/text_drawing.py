"""Bars, trends and address maps as coloured text, for every text display."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ttmesh.monitor.address_map import HOLE, AddressMap
from ttmesh.monitor.view import Bar

COLOURS = {
    "DRAM": "dodger_blue1",
    "TRACE": "medium_purple1",
    "SYSTEM_DRAM": "grey58",
    "L1": "green3",
    "L1_SMALL": "dark_cyan",
    "CB": "orange1",
    "KERNEL": "hot_pink",
    "SYSTEM_L1": "grey58",
    HOLE: "grey27",
}
LEVELS = {"calm": "", "warm": "bold dark_orange3", "hot": "bold red"}  # readable on dark and light backgrounds
STEPS = "▁▂▃▄▅▆▇█"


def bar_cells(bar: Bar, width: int) -> list[str]:
    """The class shown in each cell of a bar; every class with bytes gets at least one cell while there are enough."""
    cells: list[str] = []
    for segment in sorted(bar.segments, key=lambda s: s.used_bytes, reverse=True):
        if segment.used_bytes:
            cells += [segment.memory_class] * max(1, round(segment.share * width))
    return (cells + [HOLE] * width)[:width]


def draw_bar(bar: Bar, width: int) -> Text:
    """A bar coloured by class of memory."""
    return _runs(bar_cells(bar, width), "█", "░")


def draw_map(bank: AddressMap, width: int, rows: int) -> Text:
    """A bank from its lowest address, row by row."""
    cells = bank.cells(width * rows)
    lines = [_runs(cells[i : i + width], "█", "·") for i in range(0, len(cells), width)]
    return Text("\n").join(lines)


def draw_trend(values: Sequence[int], width: int) -> str:
    """The newest values as a line of little columns from the least to the most of them; constant values are flat."""
    shown = list(values)[-width:] if width else []
    least, most = min(shown, default=0), max(shown, default=0)
    if least == most:
        return (STEPS[2] if most else STEPS[0]) * len(shown)
    return "".join(STEPS[(len(STEPS) - 1) * (value - least) // (most - least)] for value in shown)


def _runs(cells: Sequence[str], full: str, empty: str) -> Text:
    text = Text()
    start = 0
    for i in range(1, len(cells) + 1):
        if i == len(cells) or cells[i] != cells[start]:
            text.append((empty if cells[start] == HOLE else full) * (i - start), style=COLOURS[cells[start]])
            start = i
    return text
