"""One device in the live terminal: classes, a map of its addresses, its biggest buffers and where they came from."""

from __future__ import annotations

from time import time as now_s
from typing import ClassVar

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from ttmesh.base.sizes import size_text
from ttmesh.monitor.address_map import AddressMap
from ttmesh.monitor.polling import PollingScreen
from ttmesh.monitor.rows import STAR
from ttmesh.monitor.source import Detail, Source
from ttmesh.monitor.text_drawing import COLOURS, LEVELS, draw_bar, draw_map, draw_trend
from ttmesh.monitor.view import Bar, class_name, format_count, printable
from ttmesh.tracking.state import BufferState, DeviceKey

MAP_ROWS = 4
BIGGEST = 30
TREND = 10  # fewer values show no trend


class DeviceScreen(PollingScreen[Detail]):
    """Everything about one device."""

    DEFAULT_CSS = """
    #detail { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]

    def __init__(self, source: Source, key: DeviceKey, *, refresh_ms: int) -> None:
        super().__init__(refresh_ms=refresh_ms)
        self.source = source
        self.key = key

    def compose(self) -> ComposeResult:
        """One scrolling page."""
        with VerticalScroll():
            yield Static("…", id="detail")
        yield Footer()

    def ask(self) -> Detail | None:
        """The device's current state."""
        return self.source.detail(self.key)

    def show(self, answer: Detail | None, problem: str) -> None:
        """Put the device on the screen."""
        page = self.query_one("#detail", Static)
        if answer is not None:
            page.update(draw_detail(answer, max(20, self.size.width - 4)))
        else:
            page.update(Text(problem or "The server does not know this device.", style="red"))


def draw_detail(detail: Detail, width: int) -> RenderableType:
    """The page of one device."""
    device = detail.device
    title = Text(f"Device {device.title}", style="bold")
    title.append(f"  {device.arch}  {device.system}  logical {device.logical_id} {device.place}", style="not bold")
    if device.is_coordinator:
        title.append("  ★ coordinator", style=STAR)
    blocks: list[RenderableType] = [title, ""]
    for bar, bank in zip(device.bars, detail.maps, strict=True):
        blocks += [_pool(bar, width), draw_map(bank, width, MAP_ROWS), _map_legend(bank), ""]
    blocks.append(_biggest(detail))
    return Group(*blocks)


def _pool(bar: Bar, width: int) -> RenderableType:
    capacity = size_text(bar.capacity_bytes) if bar.capacity_bytes else "?"
    line = Text(f"{bar.pool:<5}{size_text(bar.used_bytes):>9} / {capacity:>9} ", style="bold")
    line.append(f"{bar.percent:>6}", style=LEVELS[bar.level]).append(f"  peak {size_text(bar.peak_bytes):>9}  ")
    line.append_text(draw_bar(bar, max(10, min(30, width - cell_len(line.plain)))))
    left = width - cell_len(line.plain) - 2
    if left >= TREND:
        line.append("  ").append(draw_trend(bar.trend, min(left, 60)), style=f"not bold {COLOURS[bar.pool]}")
    table = Table.grid(padding=(0, 2))
    for segment in bar.segments:
        name = Text("■ ", style=COLOURS[segment.memory_class]).append(class_name(segment.memory_class), style="default")
        used, peak = size_text(segment.used_bytes), size_text(segment.peak_bytes)
        table.add_row(name, used, format_count(segment.buffers, "buffer"), f"peak {peak}")
    return Group(line, table)


def _map_legend(bank: AddressMap) -> Text:
    largest = max((hole.length for hole in bank.holes), default=0)
    return Text(
        f"{bank.bank.start:#x} … {bank.bank.end:#x} of every bank, {format_count(len(bank.pieces), 'buffer')}, "
        f"{format_count(len(bank.holes), 'hole')}, the largest {size_text(largest)}",
        style="dim",
    )


def _biggest(detail: Detail) -> RenderableType:
    table = Table(box=None, title="Biggest buffers", title_justify="left", title_style="bold", padding=(0, 1))
    for name, side in (("Size", "right"), ("Type", "left"), ("Address", "right"), ("PID", "right"), ("Age", "right")):
        table.add_column(name, justify="right" if side == "right" else "left")
    table.add_column("Operation")
    table.add_column("Allocated by", overflow="ellipsis", no_wrap=True)
    for buffer in detail.buffers.buffers[:BIGGEST]:
        table.add_row(*_buffer_cells(buffer))
    hidden = max(0, len(detail.buffers.buffers) - BIGGEST) + detail.buffers.left_out
    return Group(table, Text(f"and {hidden} more" if hidden else "", style="dim"))


def _buffer_cells(buffer: BufferState) -> list[RenderableType]:
    kind = Text(class_name(buffer.buffer_type), style=COLOURS[buffer.buffer_type])
    age = max(0.0, now_s() - buffer.time_ns / 1e9)
    site = buffer.site.partition("\n")[0]
    return [
        size_text(buffer.size_bytes),
        kind,
        f"{buffer.address:#x}",
        str(buffer.pid),
        f"{age:.0f} s",
        Text(printable(buffer.label)),
        Text(printable(site) or "TTMESH_TRACK_STACKS=1 shows", style="default" if site else "dim"),
    ]
