"""From the keys of a description to a chip or a system, with an error for everything that cannot be right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeGuard

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch
from ttmesh.base.errors import SystemError_, near, one_of
from ttmesh.base.link_notation import Pair, pair
from ttmesh.chip.system import ChipSpec, System

KEYS = ("name", "chip", "grid", "shape", "links", "wrap", "extra_links", "boards", "remote", "visible_by")
SEE = "docs/systems.md shows the format."


def read_chip(name: str, figures: Mapping[str, object]) -> ChipSpec:
    """A chip from its architecture's figures and its own."""
    own = dict(figures)
    arch, grid = Arch[str(own.pop("arch")).upper()], own.pop("compute_grid")
    assert isinstance(grid, list)
    return ChipSpec(name=name, arch=arch, compute_grid=CoreCoord(*grid), **own)  # type: ignore[arg-type]


def read_system(name: str, described: object, *, chips: Mapping[str, ChipSpec], source: str) -> System:
    """A system from the keys that describe it; `source` is what errors name."""
    if not isinstance(described, dict):
        raise _wrong(source, f"is not a description but {type(described).__name__}", "a mapping of keys to values")
    for key in described:
        if key not in KEYS:
            raise _wrong(source, f"has an unknown key {key!r}", one_of(KEYS), near(str(key), KEYS))
    grid = _grid(described, source)
    ids = {chip for row in grid for chip in row}
    boards = _boards(described.get("boards"), grid, ids, source)
    visible_by = described.get("visible_by", "board")
    if visible_by not in ("board", "chip"):
        raise _wrong(source, f"has visible_by {visible_by!r}", one_of(["board", "chip"]))
    return System(
        name=str(described.get("name", name)),
        chip=_chip(described.get("chip"), chips, source),
        grid=grid,
        links=MappingProxyType(_links(described, grid, ids, source)),
        boards=boards,
        remote=_remote(described.get("remote", []), boards, ids, source),
        visible_by=visible_by,
    )


def _grid(described: Mapping[str, object], source: str) -> tuple[tuple[int, ...], ...]:
    rows, shape = described.get("grid"), described.get("shape")
    if rows is None:
        if shape is None:
            raise _wrong(source, "has neither a grid nor a shape", "grid: rows of chip ids, or shape: [rows, cols]")
        height, width = _shape(shape, source)
        return tuple(tuple(row * width + col for col in range(width)) for row in range(height))
    if not (isinstance(rows, list) and rows and all(_ints(row) and row for row in rows)):
        raise _wrong(source, f"has grid {rows!r}", "a list of rows, each a list of chip ids")
    if len({len(row) for row in rows}) > 1:
        raise _wrong(source, f"has grid rows of {[len(row) for row in rows]} chips", "rows of equal length")
    found = (len(rows), len(rows[0]))
    if shape is not None and _shape(shape, source) != found:
        raise _wrong(source, f"has shape {shape!r} but a grid of {list(found)}", "a shape like the grid's, or none")
    _once((chip for row in rows for chip in row), "grid", source)
    if any(chip < 0 for row in rows for chip in row):
        raise _wrong(source, f"has a negative chip id in grid {rows!r}", "ids from 0")
    return tuple(tuple(row) for row in rows)


def _shape(shape: object, source: str) -> tuple[int, int]:
    if not (_ints(shape) and len(shape) == 2 and min(shape) > 0):
        raise _wrong(source, f"has shape {shape!r}", "two positive numbers, [rows, cols]")
    return shape[0], shape[1]


def _chip(chosen: object, chips: Mapping[str, ChipSpec], source: str) -> ChipSpec:
    """A chip of the catalogue by name, or `base` by name with some figures replaced."""
    figures: dict[str, Any] = dict(chosen) if isinstance(chosen, dict) else {"base": chosen}
    name = figures.pop("base", None)
    if name not in chips:
        raise _wrong(source, f"has no chip named {name!r}", one_of(chips), near(str(name), chips))
    if not figures:
        return chips[name]
    allowed = {f.name for f in fields(ChipSpec)} - {"name", "arch", "compute_grid"}
    for figure, value in figures.items():
        if figure not in allowed:
            raise _wrong(source, f"has an unknown chip figure {figure!r}", one_of(allowed), near(str(figure), allowed))
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise _wrong(source, f"has {figure} {value!r}", "a positive number")
    return replace(chips[name], name=f"{name}*", **figures)


def _links(
    described: Mapping[str, object], grid: tuple[tuple[int, ...], ...], ids: set[int], source: str
) -> dict[Pair, int]:
    between = described.get("links", 0)
    if not isinstance(between, int) or isinstance(between, bool) or between < 0:
        raise _wrong(
            source, f"has links {between!r}", "the number of links between grid neighbours; others go in extra_links"
        )
    counts: Counter[Pair] = Counter()
    if between:
        for a, b in _neighbours(grid, _wrap(described.get("wrap", []), grid, source)):
            counts[pair(a, b)] += between
    for link in _list(described.get("extra_links", []), "extra_links", source):
        if not (_ints(link) and len(link) == 3 and link[2] > 0):
            raise _wrong(source, f"has link {link!r} in extra_links", "[chip, chip, number of links]")
        a, b, number = link
        for chip in (a, b):
            if chip not in ids:
                raise _wrong(source, f"links {a} to {b}, but there is no chip {chip}", one_of(ids))
        if a == b:
            raise _wrong(source, f"links chip {a} to itself", "two different chips")
        counts[pair(a, b)] += number
    return dict(counts)


def _neighbours(grid: tuple[tuple[int, ...], ...], wrap: list[int]) -> Iterable[Pair]:
    """Each pair of grid neighbours once, and the ends of the lines along the axes that wrap."""
    for axis, lines in enumerate((tuple(zip(*grid, strict=True)), grid)):
        for line in lines:
            yield from pairwise(line)
            if axis in wrap:
                yield line[-1], line[0]


def _wrap(wrap: object, grid: tuple[tuple[int, ...], ...], source: str) -> list[int]:
    sizes = (len(grid), len(grid[0]))
    axes = _list(wrap, "wrap", source)
    for axis in axes:
        if axis not in (0, 1):
            raise _wrong(source, f"wraps axis {axis!r}", "0 (down the columns) or 1 (along the rows)")
        if sizes[axis] <= 2:
            raise _wrong(
                source, f"wraps axis {axis} of {sizes[axis]} chips", "more than two chips along an axis that wraps"
            )
    return axes


def _boards(
    boards: object, grid: tuple[tuple[int, ...], ...], ids: set[int], source: str
) -> tuple[tuple[int, ...], ...]:
    if boards is None:
        return tuple((chip,) for chip in sorted(ids))
    rows = _list(boards, "boards", source)
    if not all(_ints(board) and board for board in rows):
        raise _wrong(source, f"has boards {boards!r}", "a list of boards, each a list of chip ids")
    listed = [chip for board in rows for chip in board]
    _known(listed, "boards", ids, source)
    _once(listed, "boards", source)
    alone = [[chip] for chip in sorted(ids.difference(listed))]
    return tuple(sorted(tuple(board) for board in [*rows, *alone]))


def _remote(remote: object, boards: tuple[tuple[int, ...], ...], ids: set[int], source: str) -> frozenset[int]:
    chips = _list(remote, "remote", source)
    if not _ints(chips):
        raise _wrong(source, f"has remote {remote!r}", "a list of chip ids")
    _known(chips, "remote", ids, source)
    for board in boards:
        if set(board) <= set(chips):
            raise _wrong(source, f"has board {list(board)} with remote chips only", "one chip with PCIe on every board")
    return frozenset(chips)


def _known(chips: Iterable[object], where: str, ids: set[int], source: str) -> None:
    for chip in chips:
        if chip not in ids:
            raise _wrong(source, f"names chip {chip} in {where}, which is not on the grid", one_of(ids))


def _once(chips: Iterable[object], where: str, source: str) -> None:
    twice = sorted(str(chip) for chip, times in Counter(chips).items() if times > 1)
    if twice:
        raise _wrong(source, f"has chip id {', '.join(twice)} more than once in {where}", "every chip once")


def _list(value: object, key: str, source: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(source, f"has {key} {value!r}", "a list")
    return value


def _ints(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)


def _wrong(source: str, what: str, expected: str, fix: str = "") -> SystemError_:
    return SystemError_(f"{source} {what}", expected=expected, fix=f"{fix} {SEE}".strip())
