"""One-shot tables like nvidia-smi's: devices and processes, and buffers that were never freed."""

from __future__ import annotations

import os
import time

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ttmesh.base.sizes import size_text
from ttmesh.monitor.leak_groups import LeakGroup, LeakReport, describe_pids
from ttmesh.monitor.text_drawing import LEVELS
from ttmesh.monitor.view import (
    Bar,
    DeviceView,
    ProcessView,
    View,
    class_name,
    device_ranges,
    nothing_shown,
    printable,
    short_name,
)

PIPED_COLUMNS = 140  # width of the device table
OF_ALL_FROM = 78  # width from which the narrow table shows capacities


class PlainConsole(Console):
    """Prints text as it is, brackets included; a closed reader raises in the caller."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr, width=width)

    def on_broken_pipe(self) -> None:
        """Go on raising; Rich would end the process."""
        raise


def printer() -> Console:
    """A console that does not squeeze tables into 80 columns when the output is not a terminal."""
    console = PlainConsole()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_COLUMNS
    return console


def smi(view: View, columns: int = PIPED_COLUMNS) -> RenderableType:
    """Devices, then processes; in narrow terminals only what is held."""
    narrow = columns < PIPED_COLUMNS - 10
    clock = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(view.time_s))
    devices = Table(box=box.ASCII2, title=f"ttmesh smi    {clock}", title_justify="left", title_style="bold")
    for name in ("Device",) if narrow else ("Device", "Logical", "Architecture"):
        devices.add_column(name, no_wrap=True)
    for name in ("DRAM", "L1", "Buffers") if narrow else ("DRAM", "Peak", "L1", "Peak", "Buffers"):
        devices.add_column(name, justify="right")
    for device in view.devices:
        devices.add_row(*(_few_cells(device, of_all=columns >= OF_ALL_FROM) if narrow else _device_cells(device)))
    if not view.devices:
        note = nothing_shown(view).partition("\n")[0]
        devices.add_row("none", *([note, "", ""] if narrow else ["", note, "", "", "", "", ""]))
    blocks: list[RenderableType] = [devices, _process_table(view, columns, narrow=narrow)]
    if view.missed:
        blocks.append(Text(f"{view.missed} records were missed; what is held now is exact.", style="yellow"))
    blocks += [Text(printable(note), style="yellow") for note in view.notes]
    return Group(*blocks)


def _process_table(view: View, columns: int, *, narrow: bool) -> Table:
    table = Table(box=box.ASCII2, title="Processes", title_justify="left", title_style="bold")
    titles = ("PID", "Devices") if narrow else ("PID", "Devices", "Meshes")
    sizes = ("DRAM", "L1", "Buffers") if narrow else ("DRAM", "L1", "CB", "Trace", "Buffers")
    rows = [_process_cells(process, narrow=narrow) for process in view.processes]
    rows = rows or [["none", *[""] * (len(titles) + len(sizes) - 1), "start one with TT_ALLOC_TRACKING_ENABLED=1"]]
    # Rich would shrink every column for a long name; we shorten the name instead.
    taken = sum(
        max(map(cell_len, column)) + 3 for column in zip((*titles, *sizes), *(row[:-1] for row in rows), strict=True)
    )
    for name, column in zip(titles, zip(*rows, strict=True), strict=False):
        table.add_column(name, no_wrap=True, min_width=max(map(cell_len, column)))  # a shortened PID is useless
    for name in sizes:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Process", no_wrap=True)
    for *cells, process in rows:
        table.add_row(*map(Text, cells), Text(short_name(process, max(4, columns - taken - 4))))
    return table


def _device_cells(device: DeviceView) -> list[RenderableType]:
    name = Text(device.title)
    if device.is_coordinator:
        name.append(" * coordinator", style="bold")
    dram, l1 = device.bar("DRAM"), device.bar("L1")
    logical = f"{device.logical_id} {device.place}".rstrip()
    return [
        name,
        logical,
        device.arch,
        _fill(dram),
        size_text(dram.peak_bytes),
        _fill(l1),
        size_text(l1.peak_bytes),
        str(device.buffers),
    ]


def _few_cells(device: DeviceView, *, of_all: bool) -> list[RenderableType]:
    name = device.title + (" *" if device.is_coordinator else "")
    fills = (_fill(device.bar(pool), of_all=of_all) for pool in ("DRAM", "L1"))
    return [Text(name), *fills, str(device.buffers)]


def _fill(bar: Bar, *, of_all: bool = True) -> Text:
    capacity = size_text(bar.capacity_bytes) if bar.capacity_bytes else "?"
    text = Text(size_text(bar.used_bytes) + (f" / {capacity} " if of_all else " "))
    return text.append(f"{bar.percent:>6}", style=LEVELS[bar.level])


def _process_cells(process: ProcessView, *, narrow: bool) -> list[str]:
    used = process.used_bytes
    pid = f"{process.pid}" + (f"@{process.host}" if process.host else "")
    meshes = " ".join("x".join(map(str, shape)) for shape in process.meshes)
    sizes = [process.pool_bytes("DRAM"), process.pool_bytes("L1")]
    if not narrow:
        sizes += [used.get("CB", 0), used.get("TRACE", 0)]
    return [
        pid,
        device_ranges(process.devices),
        *([] if narrow else [meshes]),
        *map(size_text, sizes),
        str(process.buffers),
        process.name,
    ]


def leaks(report: LeakReport) -> RenderableType:
    """What was lost with processes, then what meshes held at their close; equal ones in one row."""
    blocks: list[RenderableType] = []
    for title, groups in (
        ("Lost: still allocated when the process ended", report.lost),
        ("Held at close: freed because the mesh was closed", report.at_close),
    ):
        programs: dict[str, list[LeakGroup]] = {}
        for group in groups:
            programs.setdefault(f"{describe_pids(group)}: {printable(group.program)}", []).append(group)
        if groups:
            blocks.append(Text(f"{title}, {size_text(sum(group.size_bytes for group in groups))}", style="bold"))
        blocks += [_leak_table(program, found) for program, found in programs.items()]
    if report.left_out:
        note = f"{report.left_out} more processes are not shown: the server's reply would be too large."
        blocks.append(Text(note, style="yellow"))
    return Group(*blocks) if blocks else Text("✓ No buffers remaining - perfect cleanup!", style="green3")


def _leak_table(program: str, groups: list[LeakGroup]) -> Table:
    table = Table(box=box.ASCII2, title=Text(program), title_justify="left", title_style="")
    for name in ("Type", "Operation", "Allocated by"):
        table.add_column(name, overflow="fold")
    for name in ("Times", "Buffers", "Chips", "Bytes"):
        table.add_column(name, justify="right")
    for group in groups:
        table.add_row(
            class_name(group.memory_class),
            Text(printable(group.label)),
            Text(printable(group.site) or "unknown (set TTMESH_TRACK_STACKS=1)"),
            str(group.times),
            str(group.buffers),
            str(group.chips),
            size_text(group.size_bytes),
        )
    return table
