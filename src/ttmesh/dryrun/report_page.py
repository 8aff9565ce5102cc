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
    "circular buffers": "#9d755d",
    "system": "#888888",
}
STYLE = (
    "body{font:15px system-ui;margin:2em;max-width:64em}table{border-collapse:collapse}"
    "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}td.n{text-align:right}"
    ".good{color:#2a7d2a}.bad{color:#b32121}svg{background:#f7f7f7}"
)


def draw_page(report: RunReport) -> str:
    """The whole page."""
    verdict = f'<span class="{"good" if report.fits and report.finished else "bad"}">{report.verdict}</span>'
    on = f" on {escape(report.system)}" if report.system else ""
    meshes = ", ".join("x".join(map(str, shape)) for shape in report.shapes)
    parts = [
        f"<!doctype html><meta charset=utf-8><title>dry run: {escape(report.system)}</title><style>{STYLE}</style>",
        f"<h1>{verdict}{on}</h1><p>meshes {escape(meshes or 'none')}; {report.operations} device operations, "
        f"{report.program_runs} programs run, {report.programs} compiled, {report.program_cache_hits} from the cache</p>",
    ]
    if report.problem:
        parts.append(f'<p class="bad">{escape(report.problem)} at {escape(report.problem_site)}</p>')
    parts += [f"<p>{escape(line)}</p>" for line in report.advice]
    for part in report.memory:
        parts += [_draw_memory(part), _draw_history(part), _draw_holders(part)]
    parts += [_draw_links(report), _draw_collectives(report), _draw_rest(report)]
    return "\n".join(filter(None, parts)) + "\n"


def _draw_links(report: RunReport) -> str:
    if not report.links:
        return ""
    most = report.links[0][2]
    rows = "".join(
        f"<tr><td>{a}</td><td>{b}</td><td class=n>{size_text(size)}</td><td><svg width=300 height=12>"
        f'<rect width="{size / most * 300:.0f}" height="12" fill="#4c78a8"/></svg></td></tr>'
        for a, b, size in report.links[:20]
    )
    total = size_text(sum(size for _, _, size in report.links))
    return f"<h2>Links: {total} in all</h2><table><tr><th>from<th>to<th>bytes<th></tr>{rows}</table>"


def _draw_collectives(report: RunReport) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{size_text(size)}</td><td class=n>{times}</td></tr>"
        for name, sizes in report.collectives.items()
        for size, times in sizes[:8]
    )
    return f"<h2>Collectives</h2><table><tr><th>name<th>bytes per chip<th>times</tr>{rows}</table>" if rows else ""


def _draw_rest(report: RunReport) -> str:
    """The host, traces, and what was made up."""
    traces = f"{size_text(report.trace_bytes)} by a model of dispatch commands" if report.trace_bytes else "none"
    lines = [f"Through the host: {size_text(report.host_bytes)}. Traces: {traces}."]
    lines += [f"Assumed: {note} ({times} times)" for note, times in report.assumptions.items()]
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


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
    free = f"largest free block {size_text(part.largest_free_bytes)}; system {size_text(part.system_bytes)} besides"
    bar = f'<svg width="{WIDTH}" height="28">{"".join(bars)}</svg>'
    return f"<h2>{title}</h2>{bar}<p>{legend}</p><p>{free}</p>{_draw_chips(part)}"


def _draw_chips(part: ChipMemory) -> str:
    """The peak of every chip, as columns."""
    wide = min(WIDTH / max(len(part.by_chip), 1), 40)
    columns = "".join(
        f'<rect x="{i * wide:.1f}" y="{60 - size / part.capacity_bytes * 60:.1f}" width="{wide - 2:.1f}" '
        f'height="{size / part.capacity_bytes * 60:.1f}" fill="#4c78a8"><title>chip {chip}: {size_text(size)}</title></rect>'
        for i, (chip, size) in enumerate(part.by_chip.items())
    )
    return f'<svg width="{wide * len(part.by_chip):.0f}" height="60">{columns}</svg><p>the peak of every chip</p>'


def _draw_history(part: ChipMemory) -> str:
    """Bytes over the operations of the run."""
    points = part.history
    last, most = max(points[-1][0], 1), max(part.capacity_bytes, 1)
    steps = [points[i * len(points) // 2000] for i in range(min(len(points), 2000))] if len(points) > 2000 else points
    heights = [f"{HEIGHT - used / most * (HEIGHT - 10):.1f}" for _, used in steps]
    places = [f"{x / last * WIDTH:.1f}" for x, _ in steps]
    before = [heights[0], *heights]  # memory stays as it is until the next operation changes it
    line = " ".join(f"{x},{old} {x},{new}" for x, old, new in zip(places, before, heights, strict=False))
    besides = ", without circular buffers" if part.memory == "L1" else ""
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}"><line x1="0" x2="{WIDTH}" y1="10" y2="10" stroke="#b32121"/>'
        f'<polyline points="{line}" fill="none" stroke="#4c78a8"/></svg>'
        f"<p>{part.memory} over {last} operations{besides}; the red line is what the chip has</p>"
    )


def _draw_holders(part: ChipMemory) -> str:
    rows = "".join(
        f"<tr><td>{escape(holder.kind)}</td><td class=n>{size_text(holder.size_bytes)}</td>"
        f"<td class=n>{holder.buffers}</td><td>{escape(holder.site)}</td></tr>"
        for holder in part.holders[:40]
    )
    modules = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{size_text(size)}</td></tr>"
        for name, size in list(part.by_module.items())[:15]
    )
    return (
        f"<table><tr><th>what<th>bytes<th>buffers<th>asked for at</tr>{rows}</table>"
        f"<h3>By module</h3><table><tr><th>file<th>bytes</tr>{modules}</table>"
    )
