"""The reports of several ranks, merged into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ttmesh.dryrun.run_report import ChipMemory, RunReport, SiteHolding


def read_report(values: Mapping[str, Any]) -> RunReport:
    """A report from its plain values, as `RunReport.to_json` gives them."""
    own = {name: value for name, value in values.items() if name not in ("program_cache_hits", "verdict")}
    own["shapes"] = [tuple(shape) for shape in own["shapes"]]
    own["links"] = [tuple(link) for link in own["links"]]
    own["collectives"] = {name: [tuple(size) for size in sizes] for name, sizes in own["collectives"].items()}
    own["memory"] = [_read_memory(part) for part in own["memory"]]
    return RunReport(**own)


def merge_reports(reports: Sequence[RunReport], ranks: int) -> RunReport:
    """One report of a program of several ranks: chips and links of all, counts of the rank that has most of them.

    Every rank reports its own chips and what these send. A rank without a report did not finish.
    """
    failed = next((report for report in reports if report.fits is False), reports[0])
    links = Counter[tuple[int, int]]()
    for report in reports:
        for source, target, size in report.links:
            links[source, target] += size
    traced = max(reports, key=lambda report: report.trace_bytes)
    buffers = max(reports, key=lambda report: report.circular_buffer_bytes)
    return replace(
        failed,
        fits=_merge_answers([report.fits for report in reports]),
        finished=len(reports) == ranks and all(report.finished for report in reports),
        memory=[_merge_memory(parts) for parts in _by_name(reports)],
        circular_buffer_bytes=buffers.circular_buffer_bytes,
        circular_buffer_operation=buffers.circular_buffer_operation,
        operations=max(report.operations for report in reports),
        program_runs=max(report.program_runs for report in reports),
        programs=max(report.programs for report in reports),
        links=[(*link, size) for link, size in sorted(links.items(), key=lambda item: (-item[1], item[0]))],
        host_bytes=sum(report.host_bytes for report in reports),
        collectives=_merge_collectives(reports),
        trace_bytes=traced.trace_bytes,
        trace_region_size=traced.trace_region_size,
        calls=_merge_counts(report.calls for report in reports),
        assumptions=_merge_counts(report.assumptions for report in reports),
        ranks=ranks,
    )


def _merge_answers(answers: Sequence[bool | None]) -> bool | None:
    """Whether all ranks fit that asked their chips for something; None where none did."""
    known = [answer for answer in answers if answer is not None]
    return all(known) if known else None


def _read_memory(values: Mapping[str, Any]) -> ChipMemory:
    own = dict(values)
    own["by_chip"] = {int(chip): size for chip, size in own["by_chip"].items()}
    own["holders"] = [SiteHolding(**holder) for holder in own["holders"]]
    own["history"] = [tuple(point) for point in own["history"]]
    return ChipMemory(**own)


def _by_name(reports: Sequence[RunReport]) -> list[list[ChipMemory]]:
    """The memories of all ranks, one list per kind."""
    found: dict[str, list[ChipMemory]] = {}
    for report in reports:
        for part in report.memory:
            found.setdefault(part.memory, []).append(part)
    return list(found.values())


def _merge_memory(parts: Sequence[ChipMemory]) -> ChipMemory:
    """The fullest chip of all ranks."""
    fullest = max(parts, key=lambda part: (part.peak_bytes, -part.chip))
    peaks = Counter[int]()
    for part in parts:
        peaks |= Counter(part.by_chip)
    return replace(fullest, by_chip={chip: peaks[chip] for chip in sorted(peaks)})


def _merge_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The most of every name that one rank has."""
    merged = Counter[str]()
    for each in counts:
        merged |= Counter(each)
    return dict(merged.most_common())


def _merge_collectives(reports: Sequence[RunReport]) -> dict[str, list[tuple[int, int]]]:
    names = sorted({name for report in reports for name in report.collectives})
    merged = {}
    for name in names:
        sizes = Counter[int]()
        for report in reports:
            sizes |= Counter(dict(report.collectives.get(name, [])))
        merged[name] = sorted(sizes.items(), reverse=True)
    return merged
