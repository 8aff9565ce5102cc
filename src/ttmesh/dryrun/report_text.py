"""A dry run's report for a terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table

from ttmesh.base.sizes import size_text
from ttmesh.dryrun.run_report import ChipMemory, RunReport

SITES = 10  # call sites listed


def draw_text(report: RunReport) -> RenderableType:
    """The whole report."""
    meshes = ", ".join(f"{times} of {name}" if times > 1 else name for name, times in _count_meshes(report))
    ranks = f"; {report.ranks} ranks" if report.ranks > 1 else ""
    on = f" on {report.system}" if report.system else ""
    parts: list[RenderableType] = [f"{report.verdict}{on} (meshes {meshes or 'none'}{ranks})"]
    if report.problem:
        parts.append(f"  {report.problem}")
        parts.append(f"  in {report.problem_operation or 'a call'} at {report.problem_site or 'an unknown line'}")
    parts += [f"  {line}" for line in report.advice]
    for part in report.memory:
        parts += _draw_memory(part)
    if report.circular_buffer_bytes:
        most = size_text(report.circular_buffer_bytes)
        parts.append(f"circular buffers: at most {most} per core, {report.circular_buffer_operation}")
    parts.append(
        f"{report.operations} device operations, {report.program_runs} programs run, {report.programs} compiled, "
        f"{report.program_cache_hits} times from the program cache" + (", on every rank" if report.ranks > 1 else "")
    )
    parts += _draw_traffic(report)
    if report.trace_bytes:
        parts.append(
            f"traces: {size_text(report.trace_bytes)} by ttmesh's model of dispatch commands; set trace_region_size to "
            f"{report.trace_region_size} and more"
        )
    for note, times in report.assumptions.items():
        parts.append(f"assumed: {note} ({times} times)" if times > 1 else f"assumed: {note}")
    return Group(*parts)


def _count_meshes(report: RunReport) -> list[tuple[str, int]]:
    return Counter("x".join(map(str, shape)) for shape in report.shapes).most_common()


def _draw_memory(part: ChipMemory) -> list[RenderableType]:
    share = part.peak_bytes / part.capacity_bytes
    lines: list[RenderableType] = [
        f"{part.memory}: {size_text(part.peak_bytes)} of {size_text(part.capacity_bytes)} per chip ({share:.1%}), "
        f"most on chip {part.chip} at {part.operation or 'the start'}; largest free block "
        f"{size_text(part.largest_free_bytes)}"
    ]
    kinds = ", ".join(f"{kind} {size_text(size)}" for kind, size in part.by_kind.items())
    lines.append(f"  {kinds}" + (f"; system {size_text(part.system_bytes)}" if part.system_bytes else ""))
    least = min(part.by_chip.values())
    if least < part.peak_bytes:
        lines.append(f"  least on any chip: {size_text(least)}")
    if not part.holders:
        return lines
    table = Table(box=None)
    for column in ("what", "bytes", "buffers", "asked for at"):
        table.add_column(column, justify="right" if column in ("bytes", "buffers") else "left", overflow="fold")
    for holder in part.holders[:SITES]:
        table.add_row(holder.kind, size_text(holder.size_bytes), str(holder.buffers), holder.site)
    if len(part.holders) > SITES:
        rest = sum(holder.size_bytes for holder in part.holders[SITES:])
        table.add_row(f"{len(part.holders) - SITES} more lines", size_text(rest), "", "")
    return [*lines, table]


def _draw_traffic(report: RunReport) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if report.links:
        source, target, size = report.links[0]
        total = sum(entry[2] for entry in report.links)
        lines.append(f"links: {size_text(total)} in all; busiest {source} to {target} with {size_text(size)}")
    for name, sizes in report.collectives.items():
        shown = ", ".join(f"{times} of {size_text(size)}" for size, times in sizes[:4])
        more = f", {sum(times for _, times in sizes[4:])} smaller" if len(sizes) > 4 else ""
        lines.append(f"  {name}: {shown}{more} per chip")
    if report.host_bytes:
        lines.append(f"through the host: {size_text(report.host_bytes)}")
    return lines
