"""Bars, trends and address maps as coloured text, for every text display."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

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
EIGHTHS = "▏▎▍▌▋▊▉█"
EMPTY = "░"


class BarCell(NamedTuple):
    """One character of a bar: the class of memory and how much of the cell it fills."""

    memory_class: str
    glyph: str


def bar_cells(bar: Bar, width: int) -> list[BarCell]:
    """A bar in eighths of a cell, largest class first; every class with bytes is visible while there are enough cells."""
    cells: list[BarCell] = []
    used = sorted((s for s in bar.segments if s.used_bytes), key=lambda s: s.used_bytes, reverse=True)
    for segment in used[:-1]:
        cells += [BarCell(segment.memory_class, EIGHTHS[-1])] * max(1, round(segment.share * width))
    for segment in used[-1:]:
        eighths = max(1, round(8 * (sum(s.share for s in used) * width - len(cells))))
        cells += [BarCell(segment.memory_class, EIGHTHS[-1])] * (eighths // 8)
        cells += [BarCell(segment.memory_class, EIGHTHS[eighths % 8 - 1])] * (eighths % 8 > 0)
    return (cells + [BarCell(HOLE, EMPTY)] * width)[:width]


def draw_bar(bar: Bar, width: int) -> Text:
    """A bar coloured by class of memory."""
    text = Text()
    for (memory_class, glyph), same in groupby(bar_cells(bar, width)):
        text.append(glyph * len(list(same)), style=COLOURS[memory_class])
    return text


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
