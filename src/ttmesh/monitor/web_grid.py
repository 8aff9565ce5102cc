"""The mesh on the web page: every system as its grid of chips, with bars, links and their traffic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ttmesh.base.link_notation import HOST
from ttmesh.base.sizes import size_text
from ttmesh.monitor.address_map import HOLE
from ttmesh.monitor.exports.shared_memory import HOST as REAL_CHIPS
from ttmesh.monitor.view import Bar, DeviceView, View, class_name, format_count
from ttmesh.tracking.state import POOLS

COLOURS = {
    "DRAM": "#2f81f7",
    "TRACE": "#9370db",
    "SYSTEM_DRAM": "#8a9199",
    "L1": "#2eaf4d",
    "L1_SMALL": "#0c8599",
    "CB": "#f59f00",
    "KERNEL": "#e64980",
    "SYSTEM_L1": "#8a9199",
    HOLE: "",  # the page's own colour for what is empty
}
SHADE = 45  # percent of the pool's colour behind a full chip: more would hide the text
COLUMNS_WITHOUT_COORDINATES = 4
COMPACT_ROWS = 4  # more rows of chips than this are drawn low, so that a galaxy fits on one screen
COMPACT_COLUMNS = 4
LINK_LEVELS = 4

Traffic = dict[tuple[int, int], int]  # bytes by source and target


@dataclass(frozen=True)
class WebSegment:
    """One class of memory in a bar."""

    percent: float
    colour: str
    tooltip: str


@dataclass(frozen=True)
class WebBar:
    """One pool of one chip: its texts and segments; `peak` is where its peak is marked, in percent."""

    pool: str
    used: str
    percent: str
    capacity: str
    level: str
    peak: float
    segments: tuple[WebSegment, ...]


@dataclass(frozen=True)
class WebChip:
    """A box of the grid; `shades` is how strongly each pool colours it when the user chooses that pool."""

    key: str
    title: str
    place: str
    tooltip: str
    row: int
    column: int
    is_coordinator: bool
    shades: dict[str, int]
    bars: tuple[WebBar, ...]
    find: str


@dataclass(frozen=True)
class WebLink:
    """A link between two boxes, or the stub of one that goes around the edge; `level` is its traffic, 0 to 4."""

    row: int
    column: int
    direction: str
    is_wrap: bool
    level: int
    tooltip: str


@dataclass(frozen=True)
class WebGroup:
    """One system: its chips on tracks 2, 4, … of a grid, its links on those between and around them."""

    title: str
    facts: str
    columns: int
    rows: int
    density: str
    has_stubs: bool
    chips: tuple[WebChip, ...]
    links: tuple[WebLink, ...]


@dataclass(frozen=True)
class WebLegend:
    """A class of memory and its colour."""

    name: str
    colour: str


def make_web_groups(view: View) -> tuple[WebGroup, ...]:
    """Every system of every host; the chips of real tt-metal, whose files say nothing of a mesh, together."""
    groups: dict[tuple[str, str], list[DeviceView]] = {}
    for device in view.devices:
        groups.setdefault((device.host, "" if device.host == REAL_CHIPS else device.system), []).append(device)
    return tuple(_group(host, system, devices, view) for (host, system), devices in groups.items())


def sum_traffic(view: View, host: str, system: str) -> Traffic:
    """Bytes over every link of a system, of all its processes."""
    total: Traffic = {}
    for process in view.processes:
        if process.host == host:
            for link in process.links:
                if link.system == system:
                    ends = (link.source, link.target)
                    total[ends] = total.get(ends, 0) + link.size_bytes
    return total


def device_hash(device: DeviceView) -> str:
    """The name of a device in the page's address."""
    return "/".join(map(str, device.key))


def make_legend(devices: Iterable[DeviceView]) -> tuple[WebLegend, ...]:
    """Every class of memory that is shown, once."""
    shown = {segment.memory_class for device in devices for bar in device.bars for segment in bar.segments}
    kinds = [kind for kinds in POOLS.values() for kind in kinds if kind in shown]
    return tuple(dict.fromkeys(WebLegend(class_name(kind), COLOURS[kind]) for kind in kinds))


def make_web_bar(bar: Bar) -> WebBar:
    """One pool with the segments that hold something."""
    segments = tuple(
        WebSegment(
            percent=round(100 * segment.share, 2),
            colour=COLOURS[segment.memory_class],
            tooltip=f"{class_name(segment.memory_class)} {size_text(segment.used_bytes)} in "
            f"{format_count(segment.buffers, 'buffer')}, peak {size_text(segment.peak_bytes)}",
        )
        for segment in bar.segments
        if segment.used_bytes
    )
    capacity = size_text(bar.capacity_bytes) if bar.capacity_bytes else ""
    peak = 100 * bar.peak_bytes / bar.capacity_bytes if bar.capacity_bytes else 0.0
    percent = bar.percent if bar.capacity_bytes else ""
    return WebBar(bar.pool, size_text(bar.used_bytes), percent, capacity, bar.level, round(peak, 2), segments)


def _group(host: str, system: str, devices: Sequence[DeviceView], view: View) -> WebGroup:
    positions = _arrange(devices)
    rows, columns = (max(at[axis] for at in positions) + 1 for axis in (0, 1))
    traffic = sum_traffic(view, host, system)
    links = tuple(_links(devices, positions, traffic)) if _has_grid(devices) else ()
    ordered = sorted(zip(positions, devices, strict=True), key=lambda pair: pair[0])
    carried = sum(size for ends, size in traffic.items() if HOST not in ends)
    facts = [format_count(len(devices), "chip")]
    facts += [f"{size_text(carried)} over links"] if carried else []
    is_compact = rows > COMPACT_ROWS or columns > COMPACT_COLUMNS
    return WebGroup(
        title=" on ".join(filter(None, (system or ("" if host else "devices"), host))),
        facts=", ".join(facts),
        columns=columns,
        rows=rows,
        density="compact" if is_compact else "wide",
        has_stubs=any(link.is_wrap for link in links),
        chips=tuple(_chip(device, at) for at, device in ordered),
        links=links,
    )


def _has_grid(devices: Sequence[DeviceView]) -> bool:
    return all(len(d.position) == 2 for d in devices) and len({d.position for d in devices}) == len(devices)


def _arrange(devices: Sequence[DeviceView]) -> list[tuple[int, int]]:
    """Row and column of every device: those on the system's grid, without empty ones; else in rows of four."""
    if not _has_grid(devices):
        return [divmod(i, COLUMNS_WITHOUT_COORDINATES) for i in range(len(devices))]
    rows, columns = (sorted({device.position[axis] for device in devices}) for axis in (0, 1))
    return [(rows.index(device.position[0]), columns.index(device.position[1])) for device in devices]


def _chip(device: DeviceView, at: tuple[int, int]) -> WebChip:
    facts = [f"device {device.title}", device.arch, f"logical {device.logical_id}"]
    facts += [f"at {device.place} of its mesh"] if device.place else []
    facts += ["coordinator"] if device.is_coordinator else []
    return WebChip(
        key=device_hash(device),
        title=device.short_title,
        place=",".join(map(str, device.coord)),
        tooltip=", ".join(filter(None, facts)),
        row=2 * at[0] + 2,
        column=2 * at[1] + 2,
        is_coordinator=device.is_coordinator,
        shades={bar.pool: round(SHADE * bar.share) for bar in device.bars},
        bars=tuple(make_web_bar(bar) for bar in device.bars),
        find=" ".join(facts).lower(),
    )


def _links(devices: Sequence[DeviceView], positions: Sequence[tuple[int, int]], traffic: Traffic) -> Iterator[WebLink]:
    """Links between neighbours on the grid, and two stubs for each that goes around an edge."""
    at = {device.physical_id: place for device, place in zip(devices, positions, strict=True)}
    most = max((size for ends, size in traffic.items() if HOST not in ends), default=0)
    for device in devices:
        for other, count in device.links:
            if other not in at or other <= device.physical_id:
                continue
            ends = sorted((at[device.physical_id], at[other]))
            there, back = traffic.get((device.physical_id, other), 0), traffic.get((other, device.physical_id), 0)
            level = 0 if not there + back else 1 + round((LINK_LEVELS - 1) * max(there, back) / most)
            yield from _draw_link(ends, level, describe_link(device.physical_id, other, count, there, back))


def describe_link(a: int, b: int, count: int, there: int, back: int) -> str:
    """0 → 1: 3.00 MB, 1 → 0: 2.00 MB, over 2 links."""
    over = f", over {format_count(count, 'link')}" if count > 1 else ""
    return f"{a} → {b}: {size_text(there)}, {b} → {a}: {size_text(back)}{over}"


def _draw_link(ends: list[tuple[int, int]], level: int, tooltip: str) -> Iterator[WebLink]:
    (row, column), (last_row, last_column) = ends
    for axis, direction in ((0, "vertical"), (1, "horizontal")):
        if ends[0][1 - axis] != ends[1][1 - axis]:
            continue
        tracks = [2 * row + 2, 2 * column + 2]
        if ends[1][axis] - ends[0][axis] == 1:
            tracks[axis] += 1
            yield WebLink(tracks[0], tracks[1], direction, False, level, tooltip)
        else:
            tracks[axis] -= 1
            yield WebLink(tracks[0], tracks[1], direction, True, level, tooltip)
            end = [2 * last_row + 2, 2 * last_column + 2]
            end[axis] += 1
            yield WebLink(end[0], end[1], direction, True, level, tooltip)
