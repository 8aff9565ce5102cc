"""The rows of `make bench` as bars: our time beside the best peer's, or beside the limit where there is no peer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from bench_rows import BenchRow

LEAST, MOST = 1 / 256, 16.0  # of the bars' scale, which is logarithmic
LEFT, WIDTH, LINE = 470, 560, 17


def place(ratio: float) -> float:
    """Where a ratio lies on the scale."""
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + WIDTH * share


def draw(rows: Sequence[BenchRow]) -> str:
    """An SVG: a bar to the left of the line is ahead, to the right behind; red misses its aim."""
    lines: list[str] = []
    y = 46
    group = ""
    for row in rows:
        ratio, other = (row.peer_ratio, "peer") if row.peer_ratio is not None else (row.limit_ratio, "limit")
        if ratio is None:
            continue
        if row.group != group:
            group = row.group
            y += LINE
            lines.append(f'<text x="8" y="{y}" font-weight="bold">{escape(group)}</text>')
            y += LINE
        one, end = place(1.0), place(ratio)
        colour = "#888888" if not row.has_aim else "#2a7f4f" if row.is_met else "#c0392b"
        lines.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{escape(row.name)}</text>')
        lines.append(
            f'<rect x="{min(one, end):.1f}" y="{y - 11}" width="{max(abs(end - one), 1):.1f}" height="12" fill="{colour}"/>'
        )
        lines.append(f'<text x="{LEFT + WIDTH + 8}" y="{y}">{ratio:.2f} of the {other}</text>')
        y += LINE
    one = place(1.0)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 150}" height="{y + 10}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="20">time as a multiple of the best peer’s, else of the limit: left of the line is faster; '
        f'green meets its aim, red misses it, grey has none</text>'
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="30" y2="{y}" stroke="#222222"/>'
    )  # fmt: skip
    for ratio in (1 / 64, 1 / 16, 1 / 4, 4):
        at = place(ratio)
        head += f'<line x1="{at:.1f}" x2="{at:.1f}" y1="30" y2="{y}" stroke="#dddddd"/>'
        head += f'<text x="{at:.1f}" y="40" fill="#666666" text-anchor="middle">{ratio:.3g}</text>'
    return head + "\n" + "\n".join(lines) + "\n</svg>\n"
