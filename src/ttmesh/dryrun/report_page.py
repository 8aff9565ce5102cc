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
    ":root{color-scheme:light dark}"
    "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1.2em;max-width:62em}"
    "h1{margin:0 0 .3em}h2{margin:1.6em 0 .4em}p{margin:.4em 0}p,h2,td.long{overflow-wrap:anywhere}"
    "table{border-collapse:collapse;width:100%}th{white-space:nowrap}"
    "td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top;border-bottom:1px solid #8884}"
    "td.n,th.n{text-align:right;white-space:nowrap}td.bar{width:40%}.small{opacity:.75;font-size:90%}"
    "svg{display:block;width:100%;background:#8882}summary{cursor:pointer;padding:.4em 0}"
    ".good{color:#2e9a2e}.bad{color:#d9363e}.key{white-space:nowrap;margin-right:1em}"
    "@media(max-width:40em){body{padding:.7em;font-size:14px}td,th{padding-right:.5em}}"
)
ROWS = 12  # a longer table has the others folded away


def draw_page(report: RunReport) -> str:
    """The whole page."""
    verdict = f'<span class="{"good" if report.fits and report.finished else "bad"}">{report.verdict}</span>'
    on = f" on {escape(report.system)}" if report.system else ""
    meshes = ", ".join("x".join(map(str, shape)) for shape in report.shapes)
    parts = [
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>dry run: {escape(report.system)}</title><style>{STYLE}</style>",
        f"<h1>{verdict}{on}</h1><p>meshes {escape(meshes or 'none')}; {report.operations} device operations, "
        f"{report.program_runs} programs run, {report.programs} compiled, {report.program_cache_hits} from the cache</p>",
    ]
    if report.problem:
        parts.append(f'<p class="bad">{escape(report.problem)} at {escape(report.problem_site)}</p>')
    parts += [f"<p>{escape(line)}</p>" for line in [*report.advice, *_summarise(report)]]
    for part in report.memory:
        parts += [_draw_memory(part), _draw_history(part), _draw_holders(part)]
    parts += [_draw_links(report), _draw_collectives(report), _draw_rest(report)]
    return "\n".join(filter(None, parts)) + "\n"


def _summarise(report: RunReport) -> list[str]:
    """What to set, and what is busiest."""
    lines = []
    if report.circular_buffer_bytes:
        size = size_text(report.circular_buffer_bytes)
        lines.append(f"Circular buffers: at most {size} per core, {report.circular_buffer_operation}.")
    if report.trace_bytes:
        lines.append(
            f"Traces: {size_text(report.trace_bytes)} by ttmesh's model of dispatch commands; set trace_region_size to "
            f"{report.trace_region_size} and more."
        )
    if report.links:
        a, b, most = report.links[0]
        total = size_text(sum(each for _, _, each in report.links))
        lines.append(f"Links: {total} in all; busiest {a} to {b} with {size_text(most)}.")
    return lines


def _draw_table(heads: list[str], rows: list[str]) -> str:
    """A table of ready rows; those behind the first ROWS unfold. A head that begins with # is one of numbers."""
    names = "".join(f"<th class=n>{head[1:]}" if head.startswith("#") else f"<th>{head}" for head in heads)
    tables = [f"<table><tr>{names}</tr>{''.join(some)}</table>" for some in (rows[:ROWS], rows[ROWS:]) if some]
    if len(tables) < 2:
        return "".join(tables)
    return f"{tables[0]}<details><summary>{len(rows) - ROWS} more</summary>{tables[1]}</details>"


def _draw_links(report: RunReport) -> str:
    if not report.links:
        return ""
    most = report.links[0][2]
    rows = [
        f"<tr><td class=n>{a}<td class=n>{b}<td class=n>{size_text(size)}<td class=bar>"
        f'<svg viewBox="0 0 300 12" height=12 preserveAspectRatio=none>'
        f'<rect width="{size / most * 300:.0f}" height="12" fill="#4c78a8"/></svg></tr>'
        for a, b, size in report.links
    ]
    total = size_text(sum(size for _, _, size in report.links))
    return f"<h2>Links: {total} in all</h2>" + _draw_table(["#from", "#to", "#bytes", ""], rows)


def _draw_collectives(report: RunReport) -> str:
    rows = [
        f"<tr><td class=long>{escape(name)}<td class=n>{size_text(size)}<td class=n>{times}</tr>"
        for name, sizes in report.collectives.items()
        for size, times in sizes
    ]
    return "<h2>Collectives</h2>" + _draw_table(["name", "#bytes per chip", "#times"], rows) if rows else ""


def _draw_rest(report: RunReport) -> str:
    """The host, and what was made up."""
    host = f"<p>Through the host: {size_text(report.host_bytes)}.</p>"
    rows = [f"<tr><td class=long>{escape(note)}<td class=n>{times}</tr>" for note, times in report.assumptions.items()]
    return host + ("<h2>Assumed</h2>" + _draw_table(["what", "#times"], rows) if rows else "")


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
        f'<span class=key><span style="color:{COLOURS.get(kind, "#888")}">&#9632;</span> {escape(kind)} '
        f"{size_text(size)}</span>"
        for kind, size in part.by_kind.items()
    )
    title = (
        f"{part.memory}: {size_text(part.peak_bytes)} of {size_text(part.capacity_bytes)} per chip, most on chip "
        f"{part.chip} at {escape(part.operation or 'the start')}"
    )
    free = f"largest free block {size_text(part.largest_free_bytes)}; system {size_text(part.system_bytes)} besides"
    bar = f'<svg viewBox="0 0 {WIDTH} 28" height=28 preserveAspectRatio=none>{"".join(bars)}</svg>'
    return f"<h2>{title}</h2>{bar}<p>{legend}</p><p>{free}</p>{_draw_chips(part)}"


def _draw_chips(part: ChipMemory) -> str:
    """The peak of every chip, as columns."""
    wide = WIDTH / max(len(part.by_chip), 1)
    columns = "".join(
        f'<rect x="{i * wide:.1f}" y="{60 - size / part.capacity_bytes * 60:.1f}" width="{wide * 0.9:.1f}" '
        f'height="{size / part.capacity_bytes * 60:.1f}" fill="#4c78a8"><title>chip {chip}: {size_text(size)}</title></rect>'
        for i, (chip, size) in enumerate(part.by_chip.items())
    )
    sizes, chips = sorted(part.by_chip.values()), list(part.by_chip)
    if len(chips) < 2:
        return ""
    span = size_text(sizes[-1]) if sizes[0] == sizes[-1] else f"{size_text(sizes[0])} to {size_text(sizes[-1])}"
    return (
        f'<svg viewBox="0 0 {WIDTH} 60" height=60 preserveAspectRatio=none>{columns}</svg>'
        f"<p class=small>the peak of every chip, {chips[0]} to {chips[-1]} from left to right: {span}</p>"
    )


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
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" height={HEIGHT} preserveAspectRatio=none>'
        f'<polygon points="0,{HEIGHT} {line} {WIDTH},{heights[-1]} {WIDTH},{HEIGHT}" fill="#4c78a8" opacity=".35"/>'
        f'<polyline points="{line} {WIDTH},{heights[-1]}" fill="none" stroke="#4c78a8" stroke-width="2" '
        f'vector-effect="non-scaling-stroke"/><line x1="0" x2="{WIDTH}" y1="10" y2="10" stroke="#d9363e" '
        f'stroke-width="2" vector-effect="non-scaling-stroke"/></svg>'
        f"<p class=small>{part.memory} over {last} operations{besides}; the red line is what the chip has, "
        f"{size_text(part.capacity_bytes)}</p>"
    )


def _draw_holders(part: ChipMemory) -> str:
    holders = [
        f"<tr><td>{escape(holder.kind)}<td class=n>{size_text(holder.size_bytes)}"
        f"<td class=n>{holder.buffers}<td class=long>{escape(holder.site)}</tr>"
        for holder in part.holders
    ]
    modules = [
        f"<tr><td class=long>{escape(name)}<td class=n>{size_text(size)}</tr>" for name, size in part.by_module.items()
    ]
    if not holders:
        return ""
    return (
        _draw_table(["what", "#bytes", "#buffers", "asked for at"], holders)
        + "<h3>By module</h3>"
        + _draw_table(["file", "#bytes"], modules)
    )
