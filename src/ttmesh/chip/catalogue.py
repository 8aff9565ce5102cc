"""Chips and systems by name: the catalogue's data files, generic RxC systems, and a user's own file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ttmesh.base import settings
from ttmesh.base.documents import DocumentError, convert, read_yaml
from ttmesh.base.errors import SystemDescriptionError, suggest_names
from ttmesh.chip.description import read_chip, read_system
from ttmesh.chip.system import ChipSpec, System
from ttmesh.chip.visible import restrict_to_visible

__all__ = ["ChipSpec", "System", "chip_names", "current_system", "load_chip", "load_system", "system_names"]

MAX_GENERIC_CHIPS = 128
GENERIC_CHIP = "wormhole_8x8"  # a generic RxC system is made of t3000's chips ...
GENERIC_LINKS = 2  # ... and links
DATA = Path(__file__).parent / "data"


def load_system(name_or_path: str) -> System:
    """The system of this name, of this RxC shape, or described by this YAML file."""
    text = name_or_path.strip()
    if name := _list_names().get(text.lower()):
        return _load_named(name)
    if generic := re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", text):
        return _make_generic(int(generic[1]), int(generic[2]))
    if text.endswith((".yaml", ".yml")):
        return _read_file(Path(os.path.expanduser(text)))
    raise SystemDescriptionError(
        f"no system named {name_or_path!r}",
        expected=f"one of {system_names()}, a shape such as 4x8, or a YAML file",
        fix=suggest_names(text.lower()[:100], _list_names()),
    )


def current_system(name_or_path: str | None = None) -> System:
    """The system that the settings (or the caller) name, restricted to the visible devices."""
    system = load_system(settings.get_str("TTMESH_SYSTEM") if name_or_path is None else name_or_path)
    chosen = settings.get("TT_VISIBLE_DEVICES")
    return restrict_to_visible(system, [str(device) for device in chosen]) if isinstance(chosen, tuple) else system


def load_chip(name: str) -> ChipSpec:
    """The chip of this name."""
    return _read_chips()[name]


def system_names() -> list[str]:
    """The names in the catalogue, without aliases, in the catalogue's order."""
    return list(_read_entries())


def chip_names() -> list[str]:
    """The chips that a system can be made of."""
    return sorted(_read_chips())


def _make_generic(rows: int, cols: int) -> System:
    if not 1 <= rows * cols <= MAX_GENERIC_CHIPS:
        raise SystemDescriptionError(
            f"a system of {rows}x{cols} = {rows * cols} chips cannot be made",
            expected=f"1 to {MAX_GENERIC_CHIPS} chips",
            fix="Choose a smaller shape, or describe the system in a YAML file.",
        )
    grid = [[row * cols + col for col in range(cols)] for row in range(rows)]
    fields = {"chip": GENERIC_CHIP, "grid": grid, "links": GENERIC_LINKS}
    return read_system(f"{rows}x{cols}", fields, chips=_read_chips(), source="the generic system")


def _read_file(path: Path) -> System:
    try:
        document = read_yaml(path)
    except DocumentError as error:
        raise SystemDescriptionError(
            f"the system file {str(path)!r} {error}",
            expected="a YAML file with keys such as chip, grid and links",
            fix="Check the path and the file; docs/systems.md shows the format.",
        ) from None
    return read_system(path.stem, document, chips=_read_chips(), source=str(path))


@cache
def _load_named(name: str) -> System:
    fields = {key: value for key, value in _read_entries()[name].items() if key != "aliases"}
    return read_system(name, fields, chips=_read_chips(), source="systems.yaml")


@cache
def _list_names() -> dict[str, str]:
    """Every name and alias, with the name that it means."""
    names = {name: name for name in _read_entries()}
    return names | {alias: name for name, entry in _read_entries().items() for alias in entry.get("aliases", ())}


@cache
def _read_entries() -> dict[str, dict[str, Any]]:
    return convert(read_yaml(DATA / "systems.yaml"), dict[str, dict[str, Any]])


@cache
def _read_chips() -> Mapping[str, ChipSpec]:
    data = convert(read_yaml(DATA / "chips.yaml"), dict[str, dict[str, dict[str, Any]]])
    return {
        name: read_chip(name, {**data["architectures"][fields["arch"]], **fields})
        for name, fields in data["chips"].items()
    }
