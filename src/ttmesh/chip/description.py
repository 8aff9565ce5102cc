"""From the keys of a description to a chip or a system, with an error for everything that cannot be right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec

from ttmesh.base.cores import CoreCoord
from ttmesh.base.documents import Mismatched, convert, shorten
from ttmesh.base.dtypes import Arch
from ttmesh.base.errors import SystemDescriptionError, one_of, suggest_names
from ttmesh.base.link_notation import Pair, pair
from ttmesh.chip.system import ChipSpec, System

MAX_CHIPS = 4096  # of a described system; the pairs of neighbours and the routes between all chips are kept
SEE = "docs/systems.md shows the format."

Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 60)]
Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
Grid = tuple[tuple[int, ...], ...]


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a system file."""

    chip: str | dict[str, str | Positive]
    name: str = ""
    grid: tuple[tuple[Number, ...], ...] = ()
    shape: tuple[Positive, Positive] | None = None
    links: Number = 0
    wrap: tuple[Literal[0, 1], ...] = ()
    extra_links: tuple[tuple[int, int, Positive], ...] = ()
    boards: tuple[tuple[int, ...], ...] = ()
    remote: tuple[int, ...] = ()
    visible_by: Literal["board", "chip"] = "board"


MEANINGS = {
    "chip": "a chip's name, or base: NAME with positive numbers for its figures",
    "grid": "a list of rows, each a list of chip ids from 0",
    "shape": "two positive numbers, [rows, cols]",
    "links": "the number of links between grid neighbours; others go in extra_links",
    "wrap": "a list of 0 (down the columns) and 1 (along the rows)",
    "extra_links": "a list of [chip, chip, number of links]",
    "boards": "a list of boards, each a list of chip ids",
    "remote": "a list of chip ids",
    "visible_by": one_of(["board", "chip"]),
}


def read_chip(name: str, figures: Mapping[str, object]) -> ChipSpec:
    """A chip from its architecture's figures and its own."""
    own = dict(figures)
    arch, grid = Arch[str(own.pop("arch")).upper()], own.pop("compute_grid")
    assert isinstance(grid, list)
    return ChipSpec(name=name, arch=arch, compute_grid=CoreCoord(*grid), **own)  # type: ignore[arg-type]


def read_system(name: str, document: object, *, chips: Mapping[str, ChipSpec], source: str) -> System:
    """A system from the keys that describe it; `source` is what errors name."""
    described = _describe(document, source)
    grid = _grid(described, source)
    ids = {chip for row in grid for chip in row}
    boards = _boards(described, ids, source)
    return System(
        name=described.name or name,
        chip=_chip(described.chip, chips, source),
        grid=grid,
        links=MappingProxyType(_links(described, grid, ids, source)),
        boards=boards,
        remote=_remote(described.remote, boards, ids, source),
        visible_by=described.visible_by,
    )


def _describe(document: object, source: str) -> Description:
    try:
        return convert(document, Description)
    except Mismatched as error:
        found = error.mismatch
        if found.unknown:
            known = Description.__struct_fields__
            wrong, near_names = f"has an unknown key {found.unknown!r}", suggest_names(found.unknown, known)
            raise _wrong(source, wrong, one_of(known), near_names) from None
        if found.missing:
            raise _wrong(source, f"has no key {found.missing!r}", "a chip and a grid or shape") from None
        if not found.path:
            kind = type(document).__name__
            raise _wrong(source, f"is not a description but {kind}", "a mapping of keys to values") from None
        key = re.match(r"\w+", found.path)
        meant = MEANINGS.get(key[0], found.expected) if key else found.expected
        raise _wrong(source, f"has {found.path} {shorten(found.value)}", meant) from None


def _grid(described: Description, source: str) -> Grid:
    rows, shape = described.grid, described.shape
    if not rows and shape is None:
        raise _wrong(source, "has neither a grid nor a shape", "grid: rows of chip ids, or shape: [rows, cols]")
    height, width = shape or (len(rows), len(rows[0]))
    if height * width > MAX_CHIPS or sum(map(len, rows)) > MAX_CHIPS:
        raise _wrong(source, f"describes {height} x {width} chips", f"at most {MAX_CHIPS}")
    if not rows:
        return tuple(tuple(row * width + col for col in range(width)) for row in range(height))
    if not rows[0] or len({len(row) for row in rows}) > 1:
        lengths = shorten([len(row) for row in rows])
        raise _wrong(source, f"has grid rows of {lengths} chips", "rows of equal length, with chips in them")
    found = (len(rows), len(rows[0]))
    if shape is not None and shape != found:
        raise _wrong(source, f"has shape {list(shape)} but a grid of {list(found)}", "a shape like the grid's, or none")
    _once((chip for row in rows for chip in row), "grid", source)
    return rows


def _chip(chosen: str | Mapping[str, str | int], chips: Mapping[str, ChipSpec], source: str) -> ChipSpec:
    """A chip of the catalogue by name, or `base` by name with some figures replaced."""
    figures = {"base": chosen} if isinstance(chosen, str) else dict(chosen)
    name = str(figures.pop("base", ""))
    if name not in chips:
        raise _wrong(source, f"has no chip named {shorten(name)}", one_of(chips), suggest_names(name[:100], chips))
    allowed = {f.name for f in fields(ChipSpec)} - {"name", "arch", "compute_grid"}
    changed: dict[str, int] = {}
    for figure, value in figures.items():
        if figure not in allowed:
            wrong = f"has an unknown chip figure {shorten(figure)}"
            raise _wrong(source, wrong, one_of(allowed), suggest_names(figure[:100], allowed))
        if isinstance(value, str):
            raise _wrong(source, f"has {figure} {shorten(value)}", "a positive number")
        changed[figure] = value
    return replace(chips[name], name=f"{name}*", **changed) if changed else chips[name]  # type: ignore[arg-type]


def _links(described: Description, grid: Grid, ids: set[int], source: str) -> dict[Pair, int]:
    counts: Counter[Pair] = Counter()
    for axis in described.wrap:
        length = (len(grid), len(grid[0]))[axis]
        if length <= 2:
            wrong = f"wraps axis {axis} of {length} chips"
            raise _wrong(source, wrong, "more than two chips along an axis that wraps")
    if described.links:
        for a, b in _neighbours(grid, described.wrap):
            counts[pair(a, b)] += described.links
    for a, b, number in described.extra_links:
        for chip in (a, b):
            if chip not in ids:
                raise _wrong(source, f"links {a} to {b}, but there is no chip {chip}", one_of(ids))
        if a == b:
            raise _wrong(source, f"links chip {a} to itself", "two different chips")
        counts[pair(a, b)] += number
    return dict(counts)


def _neighbours(grid: Grid, wrap: tuple[int, ...]) -> Iterable[Pair]:
    """Each pair of grid neighbours once, and the ends of the lines along the axes that wrap."""
    for axis, lines in enumerate((tuple(zip(*grid, strict=True)), grid)):
        for line in lines:
            yield from pairwise(line)
            if axis in wrap:
                yield line[-1], line[0]


def _boards(described: Description, ids: set[int], source: str) -> Grid:
    if not all(described.boards):
        raise _wrong(source, f"has boards {shorten(described.boards)}", "a list of boards, each a list of chip ids")
    listed = [chip for board in described.boards for chip in board]
    _check_on_grid(listed, "boards", ids, source)
    _once(listed, "boards", source)
    alone = ((chip,) for chip in ids.difference(listed))
    return tuple(sorted([*described.boards, *alone]))


def _remote(chips: tuple[int, ...], boards: Grid, ids: set[int], source: str) -> frozenset[int]:
    _check_on_grid(chips, "remote", ids, source)
    for board in boards:
        if set(board) <= set(chips):
            raise _wrong(source, f"has board {list(board)} with remote chips only", "one chip with PCIe on every board")
    return frozenset(chips)


def _check_on_grid(chips: Iterable[int], where: str, ids: set[int], source: str) -> None:
    for chip in chips:
        if chip not in ids:
            raise _wrong(source, f"names chip {shorten(chip)} in {where}, which is not on the grid", one_of(ids))


def _once(chips: Iterable[int], where: str, source: str) -> None:
    twice = sorted(str(chip) for chip, times in Counter(chips).items() if times > 1)
    if twice:
        raise _wrong(source, f"has chip id {', '.join(twice[:8])} more than once in {where}", "every chip once")


def _wrong(source: str, what: str, expected: str, fix: str = "") -> SystemDescriptionError:
    return SystemDescriptionError(f"{source} {what}", expected=expected, fix=f"{fix} {SEE}".strip())
