"""Show the system: chips on their grid, boards, links, memory, backend and the variables in force."""

from __future__ import annotations

import argparse
import json
import pkgutil
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import ttmesh.chip
from ttmesh import __version__
from ttmesh.base import settings
from ttmesh.base.errors import SettingError, one_of, suggest_names
from ttmesh.base.sizes import size_text
from ttmesh.chip.catalogue import System, current_system, load_system, system_names
from ttmesh.fabric.chip_topology import Fabric, axis_form, mesh_topology
from ttmesh.mesh.allocation.reservations import list_reservations, reserved_bytes
from ttmesh.mesh.device.grid_drawing import draw_grid
from ttmesh.mesh.system.coordinator import locate_mesh
from ttmesh.monitor.tables import PlainConsole

NO_BACKENDS = ("backend_protocol", "cuda_graphs", "index_guard", "registry")  # files of chip/backends that hold none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--system, --json, --list."""
    parser.add_argument("--system", metavar="NAME", help="show this system instead of TTMESH_SYSTEM's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--list", action="store_true", help="list the systems of the catalogue")


def run(args: argparse.Namespace) -> int:
    """Print what is asked for."""
    settings.check_environment()
    console = PlainConsole()
    if args.list:
        names = [load_system(name) for name in system_names()]
        if args.json:
            print(json.dumps([{"name": s.name, "shape": list(s.shape), "chip": s.chip.name} for s in names], indent=2))
        else:
            console.print(_listing(names))
        return 0
    system = current_system(args.system)
    facts = describe(system)
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        _show(console, system, facts)
    return 0


def describe(system: System) -> dict[str, Any]:
    """Everything `ttmesh info` says, as plain values."""
    shape, opened = locate_mesh(system, None, coordinator=settings.get_int("TT_COORDINATOR_DEVICE_ID"))
    chip, fabric = system.chip, Fabric(system.links)
    ids = [chip_id for row in system.grid for chip_id in row]
    whole = mesh_topology(fabric, shape, ids)
    return {
        "version": __version__,
        "system": system.name,
        "shape": list(shape),
        "grid": [list(row) for row in system.grid],
        "boards": [list(board) for board in system.boards],
        "mmio": list(system.mmio),
        "remote": sorted(system.remote),
        "links": [{"chips": [a, b], "links": n} for (a, b), n in sorted(system.links.items())],
        "topology": None if whole is None else whole.name,
        "rows": axis_form(fabric, shape, ids, 1).value,
        "columns": axis_form(fabric, shape, ids, 0).value,
        "chip": {
            "name": chip.name,
            "arch": chip.arch.name.lower(),
            "clock_mhz": chip.clock_mhz,
            "compute_grid": list(chip.compute_grid),
            "dram": {"banks": chip.dram_banks, "bank_bytes": chip.dram_bank_bytes, "bytes": chip.dram_total_bytes},
            "l1": {"banks": chip.l1_banks, "bank_bytes": chip.l1_bank_bytes, "bytes": chip.l1_total_bytes},
            "eth_gbps": chip.eth_gbps,
        },
        "coordinator": opened[0],
        "opens_as": list(opened),
        "reserved_l1_bytes": {str(i): reserved_bytes(coordinator=i == opened[0]) for i in system.ids},
        "backend": chosen_backend(),
        "numerics": settings.get_str("TTMESH_NUMERICS"),
        "environment": settings.list_set_values(),
    }


def _show(console: Console, system: System, facts: dict[str, Any]) -> None:
    rows, cols = facts["shape"]
    chips, arch = len(system.ids), facts["chip"]["arch"]
    title = Text(system.name, style="bold").append(
        f": {chips} {arch} chip{'s' * (chips > 1)}, {rows}x{cols} mesh", style="not bold"
    )
    console.print(title)
    console.print(Text(draw_grid(system.grid, _notes(facts))), soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    for name, value in [
        ("boards", _boards(system)),
        ("links", _links(facts)),
        ("DRAM per chip", _memory(facts["chip"]["dram"])),
        ("L1 per chip", _memory(facts["chip"]["l1"])),
        ("cores per chip", "{} x {} at {} MHz".format(*facts["chip"]["compute_grid"], facts["chip"]["clock_mhz"])),
        ("coordinator", _coordinator(facts)),
        ("backend", facts["backend"]),
        ("numerics", facts["numerics"]),
    ]:
        table.add_row(name, Text(value))
    console.print(table)
    console.print(_environment(facts["environment"]))


def _notes(facts: dict[str, Any]) -> dict[int, list[str]]:
    """The lines below the ids: with a chosen coordinator, the L1 that each chip will have in use."""
    if settings.get_int("TT_COORDINATOR_DEVICE_ID") is None:
        return {}
    held = {int(chip): size_text(size) for chip, size in facts["reserved_l1_bytes"].items()}
    lead = facts["coordinator"]
    return {chip: [f"L1 {size}", "coordinator"] if chip == lead else [f"L1 {size}"] for chip, size in held.items()}


def _boards(system: System) -> str:
    boards = " ".join("+".join(map(str, board)) for board in system.boards)
    behind = f"; {', '.join(map(str, sorted(system.remote)))} without a PCIe link" if system.remote else ""
    return f"{len(system.boards)}: {boards}{behind}"


def _links(facts: dict[str, Any]) -> str:
    if not facts["links"]:
        return "none"
    widths = Counter(link["links"] for link in facts["links"])
    counts = ", ".join(f"{pairs} pairs with {width} link{'s' * (width > 1)}" for width, pairs in sorted(widths.items()))
    form = {"line": "form lines", "ring": "form rings", "unlinked": "are not all linked"}
    forms = [f"{name} {form[facts[name]]}" for name in ("rows", "columns") if facts[name] in form]
    return f"{counts}, {facts['chip']['eth_gbps']} Gbit/s each way; {', '.join(forms)}"


def _memory(space: dict[str, int]) -> str:
    return f"{size_text(space['bytes'])} in {space['banks']} banks of {space['bank_bytes']} B"


def _coordinator(facts: dict[str, Any]) -> str:
    reservations = ", ".join(
        f"{r.label} {size_text(r.size_bytes)}" for r in list_reservations(coordinator=True) if r.coordinator_only
    )
    more, less = size_text(reserved_bytes(coordinator=True)), size_text(reserved_bytes(coordinator=False))
    others = f"; {less} on every other chip" if len(facts["opens_as"]) > 1 else ""
    return f"device {facts['coordinator']}: an open mesh holds {more} of its L1 ({reservations}){others}"


def chosen_backend() -> str:
    """The lane backend's name, checked against the folder without importing torch."""
    folder = Path(ttmesh.chip.__file__).parent / "backends"
    names = [m.name for m in pkgutil.iter_modules([str(folder)]) if m.name not in NO_BACKENDS]
    name = settings.get_str("TTMESH_BACKEND")
    if name not in names:
        raise SettingError(f"no backend named {name!r}", expected=one_of(names), fix=suggest_names(name, names))
    return name


def _environment(in_force: dict[str, object]) -> Table | Text:
    if not in_force:
        return Text("no variables set; defaults are in force")
    meanings = {setting.variable: setting.meaning for setting in settings.SETTINGS}
    table = Table("variable", "value", "meaning")
    for variable, value in in_force.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        table.add_row(variable, shown, meanings[variable])
    return table


def _listing(systems: list[System]) -> Table:
    table = Table("system", "chips", "mesh", "chip", "DRAM", "L1")
    for system in systems:
        shape, chip = system.shape, system.chip
        table.add_row(
            system.name, str(len(system.ids)), f"{shape[0]}x{shape[1]}", chip.name,
            size_text(chip.dram_total_bytes), size_text(chip.l1_total_bytes),
        )  # fmt: skip
    return table
