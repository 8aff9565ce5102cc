"""Small HTML for notebooks: facts, a grid of chips, a bar. Self-contained: inline styles, no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

HUES = 12  # colours that can be told from each other
BORDER = "border:1px solid rgba(128,128,128,.5)"
TAKEN, EMPTY = "rgba(70,110,220,.75)", "rgba(128,128,128,.2)"


@dataclass(frozen=True)
class GridCell:
    """One chip of a drawing: its lines, bars of (name, share in use), and a number that picks its colour."""

    lines: tuple[str, ...]
    bars: tuple[tuple[str, float], ...] = ()
    colour: int | None = None


def draw_facts(title: str, facts: Mapping[str, str]) -> str:
    """A title and a line of facts."""
    listed = " · ".join(f"{escape(name)} <b>{escape(value)}</b>" for name, value in facts.items())
    return f'<div style="font-family:monospace"><b>{escape(title)}</b> {listed}</div>'


def draw_chips(rows: Iterable[Sequence[GridCell]]) -> str:
    """The chips on their grid."""
    body = "".join(f"<tr>{''.join(map(_draw_cell, row))}</tr>" for row in rows)
    return f'<table style="border-collapse:collapse;font-family:monospace;font-size:85%">{body}</table>'


def draw_spans(spans: Iterable[tuple[int, bool]]) -> str:
    """A bar of memory from its lowest address: sizes, and whether each is taken."""
    listed = list(spans)
    whole = max(sum(size for size, _ in listed), 1)
    parts = "".join(
        f'<span title="{size} B {"taken" if taken else "free"}" style="display:inline-block;height:12px;'
        f'width:{100 * size / whole:.3f}%;background:{TAKEN if taken else EMPTY}"></span>'
        for size, taken in listed
    )
    return f'<div style="width:480px;max-width:100%;white-space:nowrap;font-size:0;{BORDER}">{parts}</div>'


def _draw_cell(cell: GridCell) -> str:
    text = "<br>".join(map(escape, cell.lines))
    bars = "".join(
        f'<div title="{escape(name)}: {100 * share:.1f} % in use" style="height:5px;margin-top:2px;'
        f'background:linear-gradient(90deg,{TAKEN} {100 * share:.1f}%,{EMPTY} 0)"></div>'
        for name, share in cell.bars
    )
    fill = "" if cell.colour is None else f";background:hsla({cell.colour % HUES * 360 // HUES},60%,55%,.35)"
    return f'<td style="{BORDER};padding:4px 8px;text-align:center{fill}">{text}{bars}</td>'
