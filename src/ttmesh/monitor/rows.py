"""Rows of the live terminal's tables, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from ttmesh.base.sizes import size_text
from ttmesh.monitor.text_drawing import COLOURS, LEVELS, draw_bar, draw_trend
from ttmesh.monitor.view import Bar, DeviceView, ProcessView, View, device_ranges, short_name

STAR = "bold dark_orange3"
LONG_FROM = 130  # columns of the terminal that show capacities, trends and rare classes too
MARK = 18
GAP = 2  # padding between columns
SCROLLBAR = 2


class Widths(NamedTuple):
    """What fits into the terminal."""

    long: bool
    bar: int = 0
    trend: int = 0
    name: int = 0

    def device_columns(self) -> tuple[str, ...]:
        """The device table's titles."""
        if not self.long:
            return ("Device", "DRAM", "", "L1", "", "Buffers")
        return ("Device", "At", "DRAM", "", "Trend", "L1", "", "Trend", "Buffers", "Frag")

    def process_columns(self) -> tuple[str, ...]:
        """The process table's titles."""
        rare = ("CB", "Trace") if self.long else ()
        return ("PID", "Devices", "DRAM", "L1", *rare, "Buffers", *(("Mark",) if self.long else ()), "Process")


def fit_widths(view: View, columns: int) -> Widths:
    """Widths for this terminal: bars, trends and names share what the other columns leave."""
    bare = Widths(columns >= LONG_FROM)
    titles = ["" if title in ("DRAM", "L1", "Trend") else title for title in bare.device_columns()]  # titles above bars
    bars = columns - _sum_widths(titles, [device_cells(d, bare) for d in view.devices])
    names = (
        columns - _sum_widths(bare.process_columns()[:-1], [process_cells(p, bare)[:-1] for p in view.processes]) - GAP
    )
    bar = max(4, min(bars * (3 if bare.long else 5) // 10, 40))
    trend = max(5, min(bars // 2 - bar, 40)) if bare.long else 0
    return Widths(bare.long, bar, trend, max(10, names))


def _sum_widths(titles: Sequence[str], rows: list[list[object]]) -> int:
    texts = [titles, *([cell.plain if isinstance(cell, Text) else str(cell) for cell in row] for row in rows)]
    return sum(max(map(cell_len, column)) + GAP for column in zip(*texts, strict=True)) + SCROLLBAR


def device_cells(device: DeviceView, widths: Widths) -> list[object]:
    """A row of the device table."""
    name = Text(device.title)
    if device.is_coordinator:
        name.append(" ★", style=STAR)
    dram, l1 = device.bar("DRAM"), device.bar("L1")
    buffers = right(str(device.buffers))
    if not widths.long:
        return [name, draw_bar(dram, widths.bar), _amount(dram), draw_bar(l1, widths.bar), _amount(l1), buffers]
    return [
        name,
        device.place,
        draw_bar(dram, widths.bar),
        _amount(dram, of_all=True),
        Text(draw_trend(dram.trend, widths.trend), style=COLOURS["DRAM"]),
        draw_bar(l1, widths.bar),
        _amount(l1, of_all=True),
        Text(draw_trend(l1.trend, widths.trend), style=COLOURS["L1"]),
        buffers,
        right(f"{100 * max(dram.fragmentation, l1.fragmentation):.0f}%"),
    ]


def process_cells(process: ProcessView, widths: Widths) -> list[object]:
    """A row of the process table."""
    used = process.used_bytes
    sizes = [process.pool_bytes("DRAM"), process.pool_bytes("L1")]
    if widths.long:
        sizes += [used.get("CB", 0), used.get("TRACE", 0)]
    return [
        right(process.title),
        device_ranges(process.devices),
        *(right(size_text(size)) for size in sizes),
        right(str(process.buffers)),
        *([short_name(process.last_mark, MARK)] if widths.long else []),
        short_name(process.name, widths.name) if widths.long else _name_and_mark(process, widths.name),
    ]


def _name_and_mark(process: ProcessView, width: int) -> str:
    """The name followed by the mark, for tables without a mark column; the name is shortened first."""
    if not process.last_mark:
        return short_name(process.name, width)
    mark = f" [{short_name(process.last_mark, MARK)}]"
    return short_name(process.name, max(10, width - cell_len(mark))) + mark


def right(text: str) -> Text:
    """A right-aligned cell."""
    return Text(text, justify="right")


def _amount(bar: Bar, *, of_all: bool = False) -> Text:
    capacity = size_text(bar.capacity_bytes) if bar.capacity_bytes else "?"
    text = right(f"{size_text(bar.used_bytes):>9}" + (f" / {capacity:>9}" if of_all else ""))
    return text.append(f" {bar.percent:>5}", style=LEVELS[bar.level])
