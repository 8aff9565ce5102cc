"""Everything the web page shows, ready to draw: texts, colours, shares, order. The page computes none of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ttmesh.base.sizes import size_text
from ttmesh.monitor.address_map import HOLE, AddressMap
from ttmesh.monitor.source import Detail
from ttmesh.monitor.view import (
    Bar,
    DeviceView,
    ProcessView,
    View,
    class_name,
    device_ranges,
    format_count,
    nothing_shown,
)
from ttmesh.tracking.state import POOLS, BufferState

COLOURS = {
    "DRAM": "#1e90ff",
    "TRACE": "#9370db",
    "SYSTEM_DRAM": "#8a9199",
    "L1": "#2eaf4d",
    "L1_SMALL": "#008b8b",
    "CB": "#ff9f1a",
    "KERNEL": "#ff5fa2",
    "SYSTEM_L1": "#8a9199",
    HOLE: "",  # the page's own colour for what is empty
}
SHADE = 70  # percent of the pool's colour behind a full chip: more would hide the text
MOST_COLUMNS = 8
COLUMNS_WITHOUT_COORDINATES = 4
MAP_CELLS = 512
BUFFERS_SHOWN = 100
MOST_TICKS = 5


@dataclass(frozen=True)
class WebSegment:
    """One class of memory in a bar."""

    percent: float
    colour: str
    tooltip: str


@dataclass(frozen=True)
class WebBar:
    """One pool of one chip: the line above the bar and its segments."""

    caption: str
    segments: tuple[WebSegment, ...]


@dataclass(frozen=True)
class WebChip:
    """A box of the grid; `shades` is how strongly each pool colours it when the user chooses that pool."""

    host: str
    physical_id: int
    title: str
    tooltip: str
    is_coordinator: bool
    shades: dict[str, int]
    bars: tuple[WebBar, ...]


@dataclass(frozen=True)
class WebLegend:
    """A class of memory and its colour."""

    name: str
    colour: str


@dataclass(frozen=True)
class WebProcess:
    """A row of the process table, one text per column."""

    pid: str
    devices: str
    meshes: str
    dram: str
    l1: str
    circular_buffers: str
    buffers: str
    missed: str
    mark: str
    name: str


@dataclass(frozen=True)
class WebSeries:
    """A line of the timeline: bytes at seconds before now."""

    name: str
    seconds: tuple[int, ...]
    used_bytes: tuple[int, ...]


@dataclass(frozen=True)
class WebTimeline:
    """The lines of a chart and the ticks of its vertical axis."""

    series: tuple[WebSeries, ...]
    tick_bytes: tuple[int, ...]
    tick_texts: tuple[str, ...]


@dataclass(frozen=True)
class WebView:
    """The page without the details of a device."""

    time_s: float
    summary: str
    nothing: str
    columns: int
    pool_colours: dict[str, str]
    chips: tuple[WebChip, ...]
    legend: tuple[WebLegend, ...]
    processes: tuple[WebProcess, ...]
    timelines: dict[str, WebTimeline]


@dataclass(frozen=True)
class WebMap:
    """The cells of one bank's addresses."""

    caption: str
    cells: tuple[WebLegend, ...]


@dataclass(frozen=True)
class WebBuffer:
    """A row of the buffer table; `tooltip` is the whole call stack."""

    size: str
    memory_class: str
    colour: str
    address: str
    pid: str
    label: str
    site: str
    tooltip: str


@dataclass(frozen=True)
class WebDevice:
    """The details of one device."""

    title: str
    maps: tuple[WebMap, ...]
    buffers: tuple[WebBuffer, ...]
    timeline: WebTimeline


def make_web_view(view: View) -> WebView:
    """What the page draws of a view."""
    missed = f", {view.missed} missed" if view.missed else ""
    counts = (
        format_count(len(view.devices), "device"),
        format_count(view.buffers, "buffer"),
        format_count(len(view.processes), "process"),
        format_count(view.records, "record"),
    )
    has_grid = all(len(device.coord) == 2 for device in view.devices)
    devices = sorted(view.devices, key=lambda device: device.coord) if has_grid else view.devices
    columns = max((d.coord[1] + 1 for d in devices), default=1) if has_grid else COLUMNS_WITHOUT_COORDINATES
    return WebView(
        time_s=view.time_s,
        summary=". ".join([", ".join(counts) + missed, *view.notes]),
        nothing=nothing_shown(view),
        columns=min(columns, MOST_COLUMNS),
        pool_colours={pool: COLOURS[pool] for pool in POOLS},
        chips=tuple(_chip(device) for device in devices),
        legend=_legend(view.devices),
        processes=tuple(_process_row(process) for process in view.processes),
        timelines={
            pool: _timeline([(f"device {device.title}", device.bar(pool)) for device in view.devices]) for pool in POOLS
        },
    )


def make_web_device(detail: Detail) -> WebDevice:
    """What the page draws of one device."""
    device = detail.device
    star = " ★ coordinator" if device.is_coordinator else ""
    return WebDevice(
        title=f"Device {device.title} {device.arch}{star}",
        maps=tuple(_map(bank) for bank in detail.maps),
        buffers=tuple(_buffer_row(buffer) for buffer in detail.buffers.buffers[:BUFFERS_SHOWN]),
        timeline=_timeline([(bar.pool, bar) for bar in device.bars]),
    )


def choose_ticks(most_bytes: int) -> list[int]:
    """About five steps up to past `most_bytes`, each a power of two as all sizes on the page."""
    step = 1
    while most_bytes / step > MOST_TICKS:
        step *= 2
    return [i * step for i in range(most_bytes // step + 2)]


def _chip(device: DeviceView) -> WebChip:
    return WebChip(
        host=device.host,
        physical_id=device.physical_id,
        title=f"{device.title} {device.place}".strip(),
        tooltip=f"{device.arch}, logical {device.logical_id}",
        is_coordinator=device.is_coordinator,
        shades={bar.pool: round(SHADE * bar.share) for bar in device.bars},
        bars=tuple(_bar(bar) for bar in device.bars),
    )


def _bar(bar: Bar) -> WebBar:
    percent = f" {bar.percent}" if bar.capacity_bytes else ""
    segments = tuple(
        WebSegment(
            percent=100 * segment.share,
            colour=COLOURS[segment.memory_class],
            tooltip=f"{class_name(segment.memory_class)} {size_text(segment.used_bytes)} in "
            f"{format_count(segment.buffers, 'buffer')}, peak {size_text(segment.peak_bytes)}",
        )
        for segment in bar.segments
        if segment.used_bytes
    )
    return WebBar(f"{bar.pool} {size_text(bar.used_bytes)}{percent}", segments)


def _legend(devices: Iterable[DeviceView]) -> tuple[WebLegend, ...]:
    shown = {segment.memory_class for device in devices for bar in device.bars for segment in bar.segments}
    entries = [
        WebLegend(class_name(kind), COLOURS[kind]) for kinds in POOLS.values() for kind in kinds if kind in shown
    ]
    return tuple(dict.fromkeys(entries))  # the system's memory in DRAM and in L1 is one entry


def _process_row(process: ProcessView) -> WebProcess:
    return WebProcess(
        pid=process.title,
        devices=device_ranges(process.devices),
        meshes=" ".join("x".join(map(str, shape)) for shape in process.meshes),
        dram=size_text(process.pool_bytes("DRAM")),
        l1=size_text(process.pool_bytes("L1")),
        circular_buffers=size_text(process.used_bytes.get("CB", 0)),
        buffers=str(process.buffers),
        missed=str(process.missed),
        mark=process.last_mark,
        name=process.name,
    )


def _timeline(bars: Sequence[tuple[str, Bar]]) -> WebTimeline:
    series = tuple(WebSeries(name, tuple(range(1 - len(bar.trend), 1)), bar.trend) for name, bar in bars)
    ticks = choose_ticks(max((1024, *(value for one in series for value in one.used_bytes))))
    return WebTimeline(series, tuple(ticks), tuple(map(size_text, ticks)))


def _map(bank: AddressMap) -> WebMap:
    holes = format_count(len(bank.holes), "hole")
    caption = f"{bank.pool} 0x{bank.bank.start:x} … 0x{bank.bank.end:x} of every bank, {holes}"
    return WebMap(caption, tuple(WebLegend(class_name(kind), COLOURS[kind]) for kind in bank.cells(MAP_CELLS)))


def _buffer_row(buffer: BufferState) -> WebBuffer:
    return WebBuffer(
        size=size_text(buffer.size_bytes),
        memory_class=class_name(buffer.buffer_type),
        colour=COLOURS[buffer.buffer_type],
        address=f"0x{buffer.address:x}",
        pid=str(buffer.pid),
        label=buffer.label,
        site=buffer.site.partition("\n")[0],
        tooltip=buffer.site,
    )
