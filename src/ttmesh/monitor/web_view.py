"""The web page as a whole, ready to draw: texts, colours, shares, order. The page computes none of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ttmesh.base.link_notation import HOST
from ttmesh.base.sizes import size_text
from ttmesh.monitor.leak_groups import LeakGroup, LeakReport, describe_pids
from ttmesh.monitor.view import (
    ProcessView,
    View,
    class_name,
    device_ranges,
    format_count,
    nothing_shown,
    printable,
)
from ttmesh.monitor.web_chart import WINDOWS
from ttmesh.monitor.web_device import UNKNOWN_SITE, shorten_site
from ttmesh.monitor.web_grid import COLOURS, WebGroup, WebLegend, make_legend, make_web_groups, sum_traffic
from ttmesh.tracking.state import POOLS

LINKS_SHOWN = 12
LEAKS_SHOWN = 50


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
    mark: str
    name: str
    find: str


@dataclass(frozen=True)
class WebTraffic:
    """A row of the link table: both directions of one link, and its share of the busiest."""

    system: str
    name: str
    sent: str
    received: str
    percent: float


@dataclass(frozen=True)
class WebLeak:
    """A row of the leak tables."""

    size: str
    buffers: str
    times: str
    memory_class: str
    colour: str
    label: str
    site: str
    stack: str
    program: str
    find: str


@dataclass(frozen=True)
class WebLeaks:
    """What was lost with its process, and what was held at a close."""

    lost: tuple[WebLeak, ...]
    at_close: tuple[WebLeak, ...]
    lost_caption: str
    at_close_caption: str
    note: str


@dataclass(frozen=True)
class WebView:
    """The page without the details of a device and without the charts."""

    time_s: float
    summary: str
    notes: str
    nothing: str
    pools: tuple[WebLegend, ...]
    windows: dict[str, int]
    groups: tuple[WebGroup, ...]
    legend: tuple[WebLegend, ...]
    processes: tuple[WebProcess, ...]
    links: tuple[WebTraffic, ...]
    host_traffic: str
    leaks: WebLeaks


def make_web_view(view: View, report: LeakReport) -> WebView:
    """What the page draws of a view."""
    counts = [
        format_count(len(view.devices), "device"),
        format_count(view.buffers, "buffer"),
        format_count(len(view.processes), "process"),
        format_count(view.records, "record"),
    ]
    counts += [f"{view.missed} missed"] if view.missed else []
    return WebView(
        time_s=view.time_s,
        summary=", ".join(counts),
        notes=" ".join(view.notes),
        nothing=nothing_shown(view),
        pools=tuple(WebLegend(pool, COLOURS[pool]) for pool in POOLS),
        windows=WINDOWS,
        groups=make_web_groups(view),
        legend=make_legend(view.devices),
        processes=tuple(_process_row(process) for process in view.processes),
        links=tuple(_link_rows(view)),
        host_traffic=_describe_host_traffic(view),
        leaks=_leaks(report),
    )


def _process_row(process: ProcessView) -> WebProcess:
    return WebProcess(
        pid=process.title,
        devices=device_ranges(process.devices),
        meshes=" ".join("x".join(map(str, shape)) for shape in process.meshes),
        dram=size_text(process.pool_bytes("DRAM")),
        l1=size_text(process.pool_bytes("L1")),
        circular_buffers=size_text(process.used_bytes.get("CB", 0)),
        buffers=str(process.buffers),
        mark=", ".join(filter(None, (process.last_mark, f"{process.missed} missed" if process.missed else ""))),
        name=process.name,
        find=f"{process.title} {process.name} {process.last_mark}".lower(),
    )


def _link_rows(view: View) -> Iterator[WebTraffic]:
    """The busiest links of all systems, both directions of each in one row."""
    systems = dict.fromkeys((device.host, device.system) for device in view.devices)
    rows: list[tuple[int, str, int, int, int, int]] = []
    for host, system in systems:
        traffic = sum_traffic(view, host, system)
        for a, b in dict.fromkeys((min(ends), max(ends)) for ends in traffic if HOST not in ends):
            there, back = traffic.get((a, b), 0), traffic.get((b, a), 0)
            rows.append((there + back, system if len(systems) > 1 else "", a, b, there, back))
    rows.sort(key=lambda row: -row[0])
    for total, system, a, b, there, back in rows[:LINKS_SHOWN]:
        share = round(100 * total / rows[0][0], 1) if rows[0][0] else 0.0
        yield WebTraffic(system, f"{a} ↔ {b}", size_text(there), size_text(back), share)


def _describe_host_traffic(view: View) -> str:
    links = [link for process in view.processes for link in process.links]
    written = sum(link.size_bytes for link in links if link.source == HOST)
    read = sum(link.size_bytes for link in links if link.target == HOST)
    return f"Host: {size_text(written)} written to chips, {size_text(read)} read." if written or read else ""


def _leaks(report: LeakReport) -> WebLeaks:
    left_out = report.left_out
    return WebLeaks(
        lost=tuple(_leak_row(group) for group in report.lost[:LEAKS_SHOWN]),
        at_close=tuple(_leak_row(group) for group in report.at_close[:LEAKS_SHOWN]),
        lost_caption=f"Lost: still allocated when the process ended, {_total(report.lost)}",
        at_close_caption=f"Held at close: freed because the mesh was closed, {_total(report.at_close)}",
        note=f"{format_count(left_out, 'more process')} not shown" if left_out else "",
    )


def _total(groups: Iterable[LeakGroup]) -> str:
    return size_text(sum(group.size_bytes for group in groups))


def _leak_row(group: LeakGroup) -> WebLeak:
    program = f"{describe_pids(group)}: {printable(group.program)}"
    return WebLeak(
        size=size_text(group.size_bytes),
        buffers=format_count(group.buffers, "buffer"),
        times=f"{group.times}×" if group.times > 1 else "",
        memory_class=class_name(group.memory_class),
        colour=COLOURS.get(group.memory_class, ""),
        label=printable(group.label) or "allocation",
        site=shorten_site(group.site),
        stack=printable(group.site) or UNKNOWN_SITE,
        program=program,
        find=f"{program} {group.label} {group.site}".lower(),
    )
