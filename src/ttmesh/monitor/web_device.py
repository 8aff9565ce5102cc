"""One chip on the web page: its pools, a map of its addresses, its buffers by call site, its links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ttmesh.base.link_notation import HOST
from ttmesh.base.sizes import size_text
from ttmesh.monitor.address_map import AddressMap
from ttmesh.monitor.source import Detail
from ttmesh.monitor.view import Bar, View, class_name, format_count, printable
from ttmesh.monitor.web_grid import COLOURS, Traffic, WebBar, WebLegend, device_hash, make_web_bar, sum_traffic
from ttmesh.tracking.state import BufferState

MAP_CELLS = 256
SITES_SHOWN = 60
BUFFERS_SHOWN = 12  # of each call site
UNKNOWN_SITE = "not recorded: TTMESH_TRACK_STACKS=1 shows the call site"


@dataclass(frozen=True)
class WebClass:
    """A class of memory of one pool."""

    name: str
    colour: str
    used: str
    peak: str
    buffers: str


@dataclass(frozen=True)
class WebPool:
    """One pool: its bar, facts and classes, and the cells of one bank's addresses."""

    bar: WebBar
    facts: str
    classes: tuple[WebClass, ...]
    map_caption: str
    cells: tuple[WebLegend, ...]


@dataclass(frozen=True)
class WebBuffer:
    """A row of the buffers of one call site."""

    size: str
    address: str
    pid: str


@dataclass(frozen=True)
class WebSite:
    """Buffers of one class that one operation allocated at one call site; `stack` is the whole of it."""

    size: str
    count: str
    memory_class: str
    colour: str
    label: str
    site: str
    stack: str
    buffers: tuple[WebBuffer, ...]
    more: str
    find: str


@dataclass(frozen=True)
class WebNeighbour:
    """What went between the chip and a neighbour, or the host."""

    name: str
    links: str
    sent: str
    received: str


@dataclass(frozen=True)
class WebDevice:
    """The details of one device."""

    key: str
    title: str
    facts: str
    pools: tuple[WebPool, ...]
    sites: tuple[WebSite, ...]
    more: str
    neighbours: tuple[WebNeighbour, ...]


def make_web_device(detail: Detail, view: View) -> WebDevice:
    """What the page draws of one device."""
    device = detail.device
    facts = [device.system, device.arch, f"logical {device.logical_id}"]
    facts += [f"at {device.place}"] if device.place else []
    facts += ["★ coordinator"] if device.is_coordinator else []
    facts += ["reached through its board"] if device.is_remote else []
    sites = list(_group_sites(detail.buffers.buffers))
    hidden = sum(len(group) for group in sites[SITES_SHOWN:]) + detail.buffers.left_out
    traffic = sum_traffic(view, device.host, device.system)
    return WebDevice(
        key=device_hash(device),
        title=f"Device {device.title}",
        facts=" · ".join(filter(None, facts)),
        pools=tuple(_pool(bar, bank) for bar, bank in zip(device.bars, detail.maps, strict=True)),
        sites=tuple(_site(group) for group in sites[:SITES_SHOWN]),
        more=f"{format_count(hidden, 'smaller buffer')} not shown" if hidden else "",
        neighbours=tuple(_neighbours(device.physical_id, device.links, traffic)),
    )


def _pool(bar: Bar, bank: AddressMap) -> WebPool:
    facts = [f"peak {size_text(bar.peak_bytes)}"]
    if bar.largest_free_bytes:
        facts += [f"largest free block {size_text(bar.largest_free_bytes)}", f"{bar.fragmentation:.0%} fragmented"]
    holes = format_count(len(bank.holes), "hole")
    return WebPool(
        bar=make_web_bar(bar),
        facts=", ".join(facts),
        classes=tuple(
            WebClass(
                class_name(segment.memory_class),
                COLOURS[segment.memory_class],
                size_text(segment.used_bytes),
                size_text(segment.peak_bytes),
                str(segment.buffers) if segment.buffers else "",
            )
            for segment in bar.segments
        ),
        map_caption=f"0x{bank.bank.start:x} … 0x{bank.bank.end:x} of every bank, {holes}" if bank.bank.length else "",
        cells=tuple(WebLegend(class_name(kind), COLOURS[kind]) for kind in bank.cells(MAP_CELLS)),
    )


def _group_sites(buffers: Iterable[BufferState]) -> list[list[BufferState]]:
    """Buffers by call site, operation and class, those that hold the most first."""
    groups: dict[tuple[str, str, str], list[BufferState]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.site, buffer.label, buffer.buffer_type), []).append(buffer)
    return sorted(groups.values(), key=lambda group: -sum(buffer.size_bytes for buffer in group))


def _site(group: list[BufferState]) -> WebSite:
    first = group[0]
    kind, label = class_name(first.buffer_type), printable(first.label)
    shown = group[:BUFFERS_SHOWN]
    return WebSite(
        size=size_text(sum(buffer.size_bytes for buffer in group)),
        count=format_count(len(group), "buffer"),
        memory_class=kind,
        colour=COLOURS[first.buffer_type],
        label=label or "allocation",
        site=shorten_site(first.site),
        stack=printable(first.site) or UNKNOWN_SITE,
        buffers=tuple(WebBuffer(size_text(b.size_bytes), f"0x{b.address:x}", f"PID {b.pid}") for b in shown),
        more=f"and {len(group) - len(shown)} more" if len(group) > len(shown) else "",
        find=f"{label} {kind} {first.site} {first.pid}".lower(),
    )


def shorten_site(stack: str) -> str:
    """The innermost frame of a call site; the last folder and the file are enough to find it."""
    return "/".join(printable(stack.partition("\n")[0]).split("/")[-2:]) or UNKNOWN_SITE


def _neighbours(chip: int, links: Iterable[tuple[int, int]], traffic: Traffic) -> Iterator[WebNeighbour]:
    for other, count in links:
        there, back = traffic.get((chip, other), 0), traffic.get((other, chip), 0)
        yield WebNeighbour(f"device {other}", format_count(count, "link"), size_text(there), size_text(back))
    there, back = traffic.get((chip, HOST), 0), traffic.get((HOST, chip), 0)
    if there or back:
        yield WebNeighbour("host", "", size_text(there), size_text(back))
