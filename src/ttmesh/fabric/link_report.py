"""The load of the links, as a drawing of the grid and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ttmesh.base.link_notation import HOST, Links, pair
from ttmesh.base.sizes import size_text

Loads = Mapping[tuple[int, int], int]  # bytes by (from, to); the host is chip -1
Grid = Sequence[Sequence[int]]

CHIP, EDGE = 9, 11  # columns of text for a chip and for the link to its right: four chips fit in 80


def fabric_report(grid: Grid, links: Links, loads: Loads, *, title: str = "fabric") -> Group:
    """The drawing, the links that carried something, busiest first, and what went over the host."""
    drawing = Text(draw_loads(grid, links, loads), no_wrap=True, overflow="ignore")
    return Group(drawing, link_table(links, loads, title=title), Text(host_line(loads)))


def link_table(links: Links, loads: Loads, *, title: str = "fabric") -> Table:
    """One row per direction that carried something, busiest link first."""
    table = Table(title=title, title_justify="left")
    for heading in ("from", "to", "links", "bytes", "bytes per link", "share"):
        table.add_column(heading, justify="right")
    used = {hop: size for hop, size in loads.items() if HOST not in hop and size}
    total = sum(used.values())
    for (source, target), size in sorted(used.items(), key=lambda item: (-item[1], item[0])):
        count = links.get(pair(source, target), 0)
        each = size_text(size // count) if count else "no link"
        table.add_row(str(source), str(target), str(count), size_text(size), each, f"{size / total:.0%}")
    return table


def host_line(loads: Loads) -> str:
    """What went between host and chips, in one line."""
    written = sum(size for (source, _), size in loads.items() if source == HOST)
    read = sum(size for (_, target), size in loads.items() if target == HOST)
    return f"host to chips {size_text(written)}, chips to host {size_text(read)}"


def draw_loads(grid: Grid, links: Links, loads: Loads) -> str:
    """The chips on their grid with the bytes over each link, both ways; links off the grid are listed below."""
    text: list[str] = []
    drawn: set[tuple[int, int]] = set()
    for r, row in enumerate(grid):
        rights = list(pairwise(row))
        chips = [f"[Dev {chip}]".center(CHIP) for chip in row]
        there = [_label("→", links, loads, a, b).center(EDGE, "─" if links.get(pair(a, b)) else " ") for a, b in rights]
        back = [_label("←", links, loads, b, a).center(EDGE) for a, b in rights]
        text.append("".join(chip + edge for chip, edge in zip_longest(chips, there, fillvalue="")))
        text.append("".join(" " * CHIP + edge for edge in back))
        downs = list(zip(row, grid[r + 1], strict=True)) if r + 1 < len(grid) else []
        for arrow, hops in (("↓", downs), ("↑", [(b, a) for a, b in downs])):
            labels = [_label(arrow, links, loads, a, b).center(CHIP) for a, b in hops]
            text.append("".join(label.ljust(CHIP + EDGE) for label in labels))
        drawn.update(pair(a, b) for a, b in [*rights, *downs])
    for a, b in sorted(set(links) - drawn):
        text.append(f"{a} → {b}: {_load(loads, a, b)}, {b} → {a}: {_load(loads, b, a)}")
    return "\n".join(line.rstrip() for line in text if line.strip())


def _label(arrow: str, links: Links, loads: Loads, source: int, target: int) -> str:
    return f"{arrow} {_load(loads, source, target)}" if links.get(pair(source, target)) else ""


def _load(loads: Loads, source: int, target: int) -> str:
    size = loads.get((source, target), 0)
    return size_text(size) if size else "0"
