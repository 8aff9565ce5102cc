"""Whether a program fits and what it moves, from what a dry run recorded."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ttmesh.base.errors import OutOfMemoryError
from ttmesh.base.sizes import size_text
from ttmesh.dryrun.memory_log import HOST, MemoryLog, Use

SITES = 10  # call sites listed


@dataclass
class SiteHolding:
    """Bytes of one chip that one line of the program holds at the peak."""

    kind: str
    site: str
    buffers: int
    size_bytes: int


@dataclass
class ChipMemory:
    """One kind of memory of the fullest chip."""

    memory: str
    chip: int
    peak_bytes: int
    capacity_bytes: int
    operation: str
    by_kind: dict[str, int]
    holders: list[SiteHolding]
    history: list[tuple[int, int]]


@dataclass
class RunReport:
    """Everything a dry run says."""

    system: str
    shapes: list[tuple[int, ...]]
    fits: bool
    problem: str
    advice: list[str]
    memory: list[ChipMemory]
    circular_buffer_bytes: int
    circular_buffer_operation: str
    operations: int
    program_runs: int
    programs: int
    links: list[tuple[int, int, int]]
    host_bytes: int
    trace_bytes: int
    calls: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def make_report(log: MemoryLog, failure: OutOfMemoryError | None) -> RunReport:
    """Sum up a run; `failure` is why it ended early."""
    chips = {facts.physical_id: facts for mesh in log.meshes for facts in mesh.chips}
    memory = []
    for kind in ("DRAM", "L1"):
        found = [(peak, event, chip) for (chip, name), (peak, event) in log.peaks.items() if name == kind]
        if not found:
            continue
        peak, event, chip = max(found, key=lambda entry: (entry[0], -entry[2]))
        if failure is not None and f" {kind} buffer" in failure.wrong:
            event = len(log.events)
        facts = chips[chip]
        banks, bank_bytes = (
            (facts.dram_banks, facts.dram_bank_bytes) if kind == "DRAM" else (facts.l1_banks, facts.l1_bank_bytes)
        )
        holders = log.holders_at(event, chip, kind)
        at = log.events[event - 1][2] if event else 0
        operation = log.operations[at] if at < len(log.operations) else log.operations[-1] if log.operations else ""
        by_kind = Counter[str]()
        for use in holders:
            by_kind[use.kind] += use.size_bytes
        capacity, grouped, history = banks * bank_bytes, _group(holders), log.history(chip, kind)
        memory.append(ChipMemory(kind, chip, peak, capacity, operation, dict(by_kind.most_common()), grouped, history))
    between = [(a, b, size) for (a, b), size in log.links.most_common() if HOST not in (a, b)]
    advice = [] if failure is None else [failure.fix, *_advise(memory, failure)]
    return RunReport(
        system=log.meshes[0].system if log.meshes else "",
        shapes=[mesh.shape for mesh in log.meshes if mesh.parent_id is None],
        fits=failure is None,
        problem="" if failure is None else failure.wrong,
        advice=advice,
        memory=memory,
        circular_buffer_bytes=log.circular_buffers[0],
        circular_buffer_operation=log.circular_buffers[1],
        operations=len(log.operations),
        program_runs=log.program_runs,
        programs=len(log.programs),
        links=between,
        host_bytes=sum(size for (a, b), size in log.links.items() if HOST in (a, b)),
        trace_bytes=sum(use.size_bytes for use in log.uses.values() if use.kind == "trace"),
        calls=dict(log.calls.most_common()),
    )


def _group(holders: list[Use]) -> list[SiteHolding]:
    sizes, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for use in holders:
        key = (use.kind, use.site.partition("\n")[0] or use.label)
        sizes[key] += use.size_bytes
        counts[key] += 1
    return [SiteHolding(*key, counts[key], size) for key, size in sizes.most_common()]


def _advise(memory: list[ChipMemory], failure: OutOfMemoryError) -> list[str]:
    """What would make room: the largest holder in a smaller format, or over more chips."""
    for part in memory:
        if f" {part.memory} buffer" not in failure.wrong or not part.by_kind:
            continue
        kind, size = next(iter(part.by_kind.items()))
        halves = size_text(size // 2)
        return [
            f"{kind} hold {size_text(size)} of chip {part.chip}: half the format (bfloat8_b for bfloat16) frees {halves}, "
            f"and so do twice as many chips along the axis that splits them."
        ]
    return []


def draw_text(report: RunReport) -> RenderableType:
    """The report for a terminal."""
    meshes = ", ".join("x".join(map(str, shape)) for shape in report.shapes)
    verdict = "fits" if report.fits else "does not fit"
    parts: list[RenderableType] = [f"{verdict} on {report.system} (meshes {meshes or 'none'})"]
    if report.problem:
        parts.append(f"  {report.problem}")
    parts += [f"  {line}" for line in report.advice]
    for part in report.memory:
        share = part.peak_bytes / part.capacity_bytes
        parts.append(
            f"{part.memory}: {size_text(part.peak_bytes)} of {size_text(part.capacity_bytes)} per chip ({share:.1%}), "
            f"most on chip {part.chip} at {part.operation or 'the start'}"
        )
        table = Table(box=None)
        for column in ("what", "bytes", "buffers", "asked for at"):
            table.add_column(column, justify="right" if column in ("bytes", "buffers") else "left")
        for holder in part.holders[:SITES]:
            table.add_row(holder.kind, size_text(holder.size_bytes), str(holder.buffers), holder.site)
        if len(part.holders) > SITES:
            rest = sum(holder.size_bytes for holder in part.holders[SITES:])
            table.add_row(f"{len(part.holders) - SITES} more lines", size_text(rest), "", "")
        parts.append(table)
    if report.circular_buffer_bytes:
        most = size_text(report.circular_buffer_bytes)
        parts.append(f"circular buffers: at most {most} per core, {report.circular_buffer_operation}")
    parts.append(
        f"{report.operations} device operations, {report.program_runs} programs run, {report.programs} compiled, "
        f"{max(report.program_runs - report.programs, 0)} times from the program cache"
    )
    if report.links:
        source, target, size = report.links[0]
        total = sum(entry[2] for entry in report.links)
        parts.append(f"links: {size_text(total)} in all; busiest {source} to {target} with {size_text(size)}")
    if report.host_bytes:
        parts.append(f"through the host: {size_text(report.host_bytes)}")
    if report.trace_bytes:
        parts.append(f"traces: {size_text(report.trace_bytes)}; set trace_region_size={report.trace_bytes}")
    return Group(*parts)
