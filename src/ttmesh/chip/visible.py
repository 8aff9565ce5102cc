"""The chips of a system that TT_VISIBLE_DEVICES leaves to a process, renumbered as tt-umd does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from ttmesh.base.errors import SystemDescriptionError
from ttmesh.base.link_notation import pair
from ttmesh.chip.system import System


def restrict_to_visible(system: System, devices: Sequence[int | str]) -> System:
    """The visible chips of a system: boards are complete, PCIe chips are numbered first, then those behind them.

    The chips keep their positions when they fill a rectangle; otherwise they form one row.
    """
    chosen = {chip for device in devices for chip in _parse_device(system, device)}
    if not chosen:
        raise SystemDescriptionError(
            "TT_VISIBLE_DEVICES names no device",
            expected=f"some of {list(system.ids)}",
            fix="Name one or more of them, or unset the variable.",
        )
    if len(chosen) == len(system.ids):
        return system
    order = [chip for chip in system.mmio if chip in chosen]
    order += [chip for chip in system.ids if chip in chosen and chip in system.remote]
    number = {old: new for new, old in enumerate(order)}
    links = {pair(number[a], number[b]): n for (a, b), n in system.links.items() if a in chosen and b in chosen}
    return replace(
        system,
        grid=tuple(tuple(number[chip] for chip in row) for row in _arrange_grid(system, chosen)),
        links=MappingProxyType(links),
        boards=tuple(sorted(tuple(number[c] for c in board if c in chosen) for board in _find_boards(system, chosen))),
        remote=frozenset(number[chip] for chip in system.remote & chosen),
        original_ids=tuple(system.original_id(chip) for chip in order),
    )


def _parse_device(system: System, device: int | str) -> tuple[int, ...]:
    text = str(device).strip()
    if re.fullmatch(r"[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", text):
        raise SystemDescriptionError(
            f"Invalid BDF in TT_VISIBLE_DEVICES: {text}. ttmesh's chips have no PCIe address",
            expected=f"some of {list(system.ids)}",
            fix="Name devices by id.",
        )
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) not in system.ids:
        raise SystemDescriptionError(
            f"Invalid chip ID in TT_VISIBLE_DEVICES: {text}. "
            "Valid ID needs to be in range of actual chip IDs in the cluster.",
            expected=f"some of {list(system.ids)}",
            fix=f"Correct or unset TT_VISIBLE_DEVICES; the system is {system.name}.",
        )
    return system.board_of(int(text)) if system.visible_by == "board" else (int(text),)


def _find_boards(system: System, chosen: set[int]) -> list[tuple[int, ...]]:
    return [board for board in system.boards if chosen.intersection(board)]


def _arrange_grid(system: System, chosen: set[int]) -> list[list[int]]:
    """The chips on a grid: without the others where that leaves a full rectangle of neighbours, else as one row."""
    rows = [[chip for chip in row if chip in chosen] for row in system.grid]
    rows = [row for row in rows if row]
    positions = [system.find_position(chip) for row in rows for chip in row]
    height, width = ({position[axis] for position in positions} for axis in (0, 1))
    solid = all(max(lines) - min(lines) + 1 == len(lines) for lines in (height, width))
    return rows if solid and len(positions) == len(height) * len(width) else [[chip for row in rows for chip in row]]
