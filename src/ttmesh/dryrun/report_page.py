"""A dry run's report as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from ttmesh.base.sizes import size_text
from ttmesh.dryrun.run_report import ChipMemory, RunReport

WIDTH, HEIGHT = 900, 160
COLOURS = {
    "weights and inputs": "#4c78a8",
    "kv cache": "#f58518",
    "activations": "#54a24b",
    "trace": "#b279a2",
    "program memory": "#9d755d",
}
STYLE = (
    "body{font:15px system-ui;margin:2em;max-width:64em}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}td.n{text-align:right}"
    ".good{color:#2a7d2a}.bad{color:#b32121}svg{background:#f7f7f7}"
)


def draw_page(report: RunReport) -> str:
    """The whole page."""
    verdict = '<span class="good">fits</span>' if report.fits else '<span class="bad">does not fit</span>'
    meshes = ", ".join("x".join(map(str, shape)) for shape in report.shapes)
    parts = [
        f"<!doctype html><meta charset=utf-8><title>dry run: {escape(report.system)}</title><style>{STYLE}</style>",
        f"<h1>{verdict} on {escape(report.system)}</h1><p>meshes {escape(meshes)}; {report.operations} device operations, "
        f"{report.program_runs} programs run, {report.programs} compiled</p>",
    ]
    if report.problem:
        parts.append(f'<p class="bad">{escape(report.problem)}</p>')
    parts += [f"<p>{escape(line)}</p>" for line in report.advice]
    for part in report.memory:
        parts += [_draw_memory(part), _draw_history(part), _draw_holders(part)]
    if report.links:
        rows = "".join(
            f"<tr><td>{a}</td><td>{b}</td><td class=n>{size_text(size)}</td></tr>" for a, b, size in report.links[:20]
        )
        parts.append(f"<h2>Links</h2><table><tr><th>from<th>to<th>bytes</tr>{rows}</table>")
    parts.append(f"<p>Through the host: {size_text(report.host_bytes)}. Traces: {size_text(report.trace_bytes)}.</p>")
    return "\n".join(parts) + "\n"


def _draw_memory(part: ChipMemory) -> str:
    """A bar of the fullest chip at its peak."""
    bars, left = [], 0.0
    for kind, size in part.by_kind.items():
        width = size / part.capacity_bytes * WIDTH
        bars.append(
            f'<rect x="{left:.1f}" y="0" width="{width:.1f}" height="28" fill="{COLOURS.get(kind, "#888")}">'
            f"<title>{escape(kind)}: {size_text(size)}</title></rect>"
        )
        left += width
    legend = " ".join(
        f'<span style="color:{COLOURS.get(kind, "#888")}">&#9632;</span> {escape(kind)} {size_text(size)}'
        for kind, size in part.by_kind.items()
    )
    title = (
        f"{part.memory}: {size_text(part.peak_bytes)} of {size_text(part.capacity_bytes)} per chip, most on chip "
        f"{part.chip} at {escape(part.operation or 'the start')}"
    )
    return f'<h2>{title}</h2><svg width="{WIDTH}" height="28">{"".join(bars)}</svg><p>{legend}</p>'


def _draw_history(part: ChipMemory) -> str:
    """Bytes over the operations of the run."""
    points = part.history
    last, most = max(points[-1][0], 1), max(part.capacity_bytes, 1)
    steps = [points[i * len(points) // 2000] for i in range(min(len(points), 2000))] if len(points) > 2000 else points
    line = " ".join(f"{x / last * WIDTH:.1f},{HEIGHT - used / most * (HEIGHT - 10):.1f}" for x, used in steps)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}"><line x1="0" x2="{WIDTH}" y1="10" y2="10" stroke="#b32121"/>'
        f'<polyline points="{line}" fill="none" stroke="#4c78a8"/></svg>'
        f"<p>{part.memory} over {last} operations; the red line is what the chip has</p>"
    )


def _draw_holders(part: ChipMemory) -> str:
    rows = "".join(
        f"<tr><td>{escape(holder.kind)}</td><td class=n>{size_text(holder.size_bytes)}</td>"
        f"<td class=n>{holder.buffers}</td><td>{escape(holder.site)}</td></tr>"
        for holder in part.holders[:40]
    )
    return f"<table><tr><th>what<th>bytes<th>buffers<th>asked for at</tr>{rows}</table>"
