"""Whether a program fits and what it moves, from what a dry run recorded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ttmesh.base.errors import TraceRegionError
from ttmesh.base.records import ChipFacts
from ttmesh.dryrun.chip_peaks import Peak
from ttmesh.dryrun.memory_advice import advise
from ttmesh.dryrun.memory_log import HOST, MemoryLog, Use


@dataclass
class SiteHolding:
    """Bytes of one chip that one line of the program holds at the peak."""

    kind: str
    site: str
    buffers: int
    size_bytes: int


@dataclass
class ChipMemory:
    """One kind of memory of the fullest chip, at its peak; `by_chip` has the peak of every chip."""

    memory: str
    chip: int
    peak_bytes: int
    capacity_bytes: int
    largest_free_bytes: int
    system_bytes: int
    operation: str
    by_kind: dict[str, int]
    by_module: dict[str, int]
    by_chip: dict[int, int]
    holders: list[SiteHolding]
    history: list[tuple[int, int]]


@dataclass
class RunReport:
    """Everything a dry run says."""

    system: str
    shapes: list[tuple[int, ...]]
    fits: bool | None  # no allocation was refused, as far as the program ran; None: it asked the chips for nothing
    finished: bool  # the program ended without an error
    problem: str
    problem_operation: str
    problem_site: str
    advice: list[str]
    memory: list[ChipMemory]
    circular_buffer_bytes: int
    circular_buffer_operation: str
    operations: int
    program_runs: int
    programs: int
    links: list[tuple[int, int, int]]
    host_bytes: int
    collectives: dict[str, list[tuple[int, int]]]
    trace_bytes: int
    trace_region_size: int
    calls: dict[str, int]
    assumptions: dict[str, int]
    ranks: int = 1  # counts of operations, programs, collectives and traces are those of one rank

    @property
    def program_cache_hits(self) -> int:
        """How often a program was there already."""
        return max(self.program_runs - self.programs, 0)

    @property
    def verdict(self) -> str:
        """Whether it fits; only a program that ended without an error has shown that it does."""
        if self.fits is None:
            return (
                "nothing ran: no operation and no tensor" if self.finished else "the program failed before anything ran"
            )
        if not self.fits:
            return "does not fit"
        if not self.operations:
            begun = "no operation ran" if self.finished else "the program failed before any operation"
            return f"{begun}; the tensors that it placed fit"
        return "fits" if self.finished else "the program failed; as far as it ran, it fits"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "program_cache_hits": self.program_cache_hits, "verdict": self.verdict}


def make_report(log: MemoryLog, assumptions: Mapping[str, int] | None = None, *, finished: bool = True) -> RunReport:
    """Sum up a run."""
    chips = {facts.physical_id: facts for mesh in log.meshes for facts in mesh.chips}
    memory = [part for kind in ("DRAM", "L1") if (part := _sum_up(log, kind, chips)) is not None]
    between = [(a, b, size) for (a, b), size in log.links.most_common() if HOST not in (a, b)]
    refusal = log.failures[0] if log.failures else None
    refused = [each.error.needed_bytes for each in log.failures if isinstance(each.error, TraceRegionError)]
    traces = max(_most_at_once(log, "trace"), *refused, 0)
    return RunReport(
        system=log.meshes[0].system if log.meshes else "",
        shapes=[mesh.shape for mesh in log.meshes if mesh.parent_id is None],
        fits=(refusal is None) if log.operations or log.events or log.failures else None,
        finished=finished,
        problem="" if refusal is None else refusal.error.wrong,
        problem_operation="" if refusal is None else refusal.operation,
        problem_site="" if refusal is None else _shorten(refusal.site),
        advice=[] if refusal is None else advise(refusal.error, {part.memory: part.by_kind for part in memory}),
        memory=memory,
        circular_buffer_bytes=log.circular_buffers[0],
        circular_buffer_operation=log.circular_buffers[1],
        operations=len(log.operations),
        program_runs=log.program_runs,
        programs=len(log.programs),
        links=between,
        host_bytes=sum(size for (a, b), size in log.links.items() if HOST in (a, b)),
        collectives={name: sorted(sizes.items(), reverse=True) for name, sizes in sorted(log.collectives.items())},
        trace_bytes=traces,
        trace_region_size=-(-traces // REGION_STEP) * REGION_STEP,
        calls=dict(log.calls.most_common()),
        assumptions=dict(assumptions or {}),
    )


REGION_STEP = 1 << 20  # trace_region_size is given in whole mebibytes


def _sum_up(log: MemoryLog, kind: str, chips: Mapping[int, ChipFacts]) -> ChipMemory | None:
    """The fullest chip of one memory; where it ran out, that moment instead of the peak."""
    peaks = {chip: peak for (chip, name), peak in log.peaks.items() if name == kind}
    if not peaks:
        return None
    chip = max(peaks, key=lambda each: (peaks[each].size_bytes, -each))
    peak = _peak_at_failure(log, kind, peaks[chip])
    facts = chips[chip]
    banks, bank_bytes, base = (
        (facts.dram_banks, facts.dram_bank_bytes, facts.dram_base)
        if kind == "DRAM"
        else (facts.l1_banks, facts.l1_bank_bytes, facts.l1_base)
    )
    holders = log.holders_at(peak.event, chip, kind)
    by_kind, by_module = Counter[str](), Counter[str]()
    for use in holders:
        by_kind[use.kind] += use.size_bytes
        by_module[_find_module(use.site)] += use.size_bytes
    if peak.circular_buffer_bytes:
        by_kind["circular buffers"] += peak.circular_buffer_bytes
    return ChipMemory(
        memory=kind,
        chip=chip,
        peak_bytes=peaks[chip].size_bytes,
        capacity_bytes=banks * bank_bytes,
        largest_free_bytes=banks * _find_largest_gap(holders, base, bank_bytes, peak.circular_buffer_bytes // banks),
        system_bytes=sum(r.size_bytes for r in log.reserved if r.buffer_type == kind and chip in r.chips),
        operation=peak.operation,
        by_kind=dict(by_kind.most_common()),
        by_module=dict(by_module.most_common()),
        by_chip={each: peaks[each].size_bytes for each in sorted(peaks)},
        holders=_group(holders),
        history=log.history(chip, kind),
    )


def _peak_at_failure(log: MemoryLog, kind: str, peak: Peak) -> Peak:
    for refusal in log.failures[:1]:
        if f" {kind} buffer" in refusal.error.wrong:
            return Peak(peak.size_bytes, refusal.event, 0, refusal.operation)
    return peak


def _find_largest_gap(holders: list[Use], base: int, bank_bytes: int, taken_below: int) -> int:
    """The largest free span of a bank between these buffers; circular buffers are at its bottom."""
    largest, end = 0, base + taken_below
    for address, size in sorted((use.address, use.bank_bytes) for use in holders):
        largest, end = max(largest, address - end), max(end, address + size)
    return max(largest, base + bank_bytes - end)


def _most_at_once(log: MemoryLog, kind: str) -> int:
    """The most bytes that buffers of a kind took at once on a chip that holds one."""
    used, most = Counter[int](), 0
    for buffer_id, change, _ in log.events:
        use = log.uses[buffer_id]
        if use.kind == kind:
            used[use.chips[0]] += change * use.size_bytes
            most = max(most, used[use.chips[0]])
    return most


def _shorten(site: str) -> str:
    """The first line of a call site, as seen from the working directory."""
    return site.partition("\n")[0].removeprefix(os.getcwd() + os.sep)


def _find_module(site: str) -> str:
    """The file of a call site."""
    return _shorten(site).rpartition(":")[0] or "the runtime"


def _group(holders: list[Use]) -> list[SiteHolding]:
    sizes, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for use in holders:
        key = (use.kind, _shorten(use.site) or use.label)
        sizes[key] += use.size_bytes
        counts[key] += 1
    return [SiteHolding(*key, counts[key], size) for key, size in sizes.most_common()]
