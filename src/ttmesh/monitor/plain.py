"""The monitor as lines of text, for files, pipes and logs."""

from __future__ import annotations

import time

from ttmesh.base.sizes import size_text
from ttmesh.monitor.text_drawing import bar_cells
from ttmesh.monitor.view import Bar, DeviceView, ProcessView, View, class_name, device_ranges, nothing_shown

WIDTH = 25  # of a bar, as in the first allocation monitor


def page(view: View, *, refresh_ms: int) -> str:
    """One page with all devices and processes."""
    clock = time.strftime("%H:%M:%S", time.localtime(view.time_s))
    lines = [
        f"═══ Cross-Process Memory Monitor (via Allocation Server) ═══  Time: {clock} | Refresh: {refresh_ms}ms",
        "",
    ]
    for device in view.devices:
        lines += [*device_lines(device), ""]
    if nothing := nothing_shown(view):
        lines.append(nothing)
    lines += process_lines(view.processes)
    if view.missed:
        lines.append(f"{view.missed} records were missed; what is held now is exact.")
    lines += view.notes
    return "\n".join(lines) + "\n"


def device_lines(device: DeviceView) -> list[str]:
    """One device: its pools and their classes of memory."""
    facts = [device.arch or "not opened"]
    if device.coord:
        facts.append(f"logical {device.logical_id} at {device.place}")
    mark = "  ← coordinator" if device.is_coordinator else ""
    lines = [f"Device {device.title} ({', '.join(facts)}){mark}", "-" * 70]
    for bar in device.bars:
        lines.append(bar_line(bar))
        others = [s for s in bar.segments if s.used_bytes and s.memory_class != bar.pool]
        lines += [f"    {class_name(s.memory_class) + ':':<9}{size_text(s.used_bytes):>12}" for s in others]
    return lines


def bar_line(bar: Bar) -> str:
    """One pool: used, capacity, bar, percent."""
    drawn = "".join(cell.glyph for cell in bar_cells(bar, WIDTH))
    capacity = size_text(bar.capacity_bytes) if bar.capacity_bytes else "?"
    scattered = f"  {100 * bar.fragmentation:.0f}% fragmented" if bar.fragmentation >= 0.005 else ""
    return f"  {bar.pool + ':':<6}{size_text(bar.used_bytes):>12} / {capacity:>12}  [{drawn}] {bar.percent}{scattered}"


def process_lines(processes: tuple[ProcessView, ...]) -> list[str]:
    """A table of processes."""
    if not processes:
        return []
    lines = [f"{'PID':>8}  {'Devices':<9}{'Buffers':>8}{'DRAM':>12}{'L1':>12}  Process"]
    for process in processes:
        pid = f"{process.pid}" + (f"@{process.host}" if process.host else "")
        dram, l1 = size_text(process.pool_bytes("DRAM")), size_text(process.pool_bytes("L1"))
        mark = f"  [{process.last_mark}]" if process.last_mark else ""
        devices = device_ranges(process.devices)
        lines.append(f"{pid:>8}  {devices:<9}{process.buffers:>8}{dram:>12}{l1:>12}  {process.name[:60]}{mark}")
    return lines
