"""A drift report as one page that needs nothing else: PCC along the run, drawn, and the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from ttmesh.drift.recorder import Record
from ttmesh.drift.report import DriftReport, format_table

WIDTH, HEIGHT, LEFT, TOP = 1100, 320, 60, 20
DIGITS = 7  # nines of PCC that the picture shows
_COLOURS = ("#e8eef7", "#f7efe6")


def draw_pcc(records: Sequence[Record]) -> str:
    """An SVG: nines of PCC (more is better) against float32 after every operation, and what each loses by itself."""
    if not records:
        return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"></svg>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
    ]
    parts += _bands(records)
    for nines in range(DIGITS + 1):
        y = _height(nines)
        label = "0" if nines == 0 else f"{1 - 10.0**-nines:.{nines}f}"
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for kind, colour in (("own", "#999"), ("total", "#b3261e")):
        points = [
            f"{_place(i, records):.1f},{_height(_nines(getattr(r, kind).lost)):.1f}" for i, r in enumerate(records)
        ]
        parts.append(f'<polyline fill="none" stroke="{colour}" points="{" ".join(points)}"/>')
    for i, record in enumerate(records):
        figures = f"PCC {record.total.pcc:.6f}, own 1-PCC {record.own.lost:.1e}"
        title = f"{record.index} {record.name} in {record.module}: {figures}"
        x, y = _place(i, records), _height(_nines(record.total.lost))
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="#b3261e"><title>{escape(title)}</title></circle>'
        )
    parts.append(
        f'<text x="{LEFT}" y="{HEIGHT - 4}">red: PCC against a run in float32; grey: each operation by itself</text>'
    )
    return "\n".join([*parts, "</svg>"])


def _bands(records: Sequence[Record]) -> list[str]:
    """A stripe of colour behind the operations of each module."""
    found, start, number = [], 0, 0
    for i in range(1, len(records) + 1):
        if i == len(records) or records[i].module != records[start].module:
            x, end = _place(start - 0.5, records), _place(i - 0.5, records)
            name = escape(records[start].module)
            found.append(
                f'<rect x="{x:.1f}" y="{TOP}" width="{end - x:.1f}" height="{HEIGHT - TOP - 20}" '
                f'fill="{_COLOURS[number % 2]}"><title>{name}</title></rect>'
            )
            start, number = i, number + 1
    return found


def _place(i: float, records: Sequence[Record]) -> float:
    return LEFT + (WIDTH - LEFT) * (i + 0.5) / len(records)


def _nines(lost: float) -> float:
    return min(float(DIGITS), max(0.0, -math.log10(max(lost, 1e-30))))


def _height(nines: float) -> float:
    return TOP + (HEIGHT - TOP - 20) * (1 - nines / DIGITS)


def make_page(report: DriftReport, title: str) -> str:
    """The whole page."""
    rows = []
    for line in report.modules:
        total = line.total
        cells = (
            escape(line.module),
            str(line.runs),
            f"{total.pcc:.6f}",
            f"{total.relative_error:.2e}",
            f"{line.own.lost:.1e}",
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = "".join(f"<th>{name}</th>" for name in ("module", "programs", "PCC", "relative error", "largest own 1-PCC"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 10px;text-align:left}</style></head><body>"
        f"<h1>{escape(title)}</h1>{draw_pcc(report.records)}<table><tr>{heads}</tr>{''.join(rows)}</table>"
        f"<pre>{escape(format_table(report))}</pre></body></html>\n"
    )
