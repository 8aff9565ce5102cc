"""What a recorded run says: per operation and per module, where it is lost first, what would give it back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ttmesh.drift.measures import Distance
from ttmesh.drift.recorder import Alternative, DriftRecorder, Record

FIRST_LOSS = 0.999  # PCC below which something counts as lost
WORST = 5


@dataclass
class Line:
    """All runs of one call: the same operation at the same place."""

    name: str
    module: str
    site: str
    setting: str
    runs: int
    total: Distance  # of the worst run
    own: Distance
    modes: list[Alternative]
    remedies: list[Alternative]


@dataclass
class DriftReport:
    """Calls and modules in the order in which they first ran."""

    records: list[Record]
    calls: list[Line]
    modules: list[Line]
    first: Record | None  # where PCC first falls below FIRST_LOSS
    worst: list[Line]  # what loses most by itself
    unfollowed: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain values."""
        return {
            "threshold": FIRST_LOSS,
            "first_loss": None if self.first is None else _plain(self.first),
            "modules": [_plain(line) for line in self.modules],
            "calls": [_plain(line) for line in self.calls],
            "runs": [_plain(record) for record in self.records],
            "unfollowed": self.unfollowed,
        }


def _plain(item: Record | Line) -> dict[str, Any]:
    values = asdict(item)
    for name, value in values.items():
        if isinstance(value, Distance):
            values[name] = _plain_distance(value)
        elif isinstance(value, list):
            values[name] = [{**one, "distance": _plain_distance(one["distance"])} for one in value]
        elif isinstance(value, tuple):
            values[name] = list(value)
    return values


def _plain_distance(distance: Distance) -> dict[str, float | None]:
    """JSON has no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in distance._asdict().items()}


def make_report(recorder: DriftRecorder) -> DriftReport:
    """Sum a run up."""
    records = recorder.records
    calls = _group(records, lambda r: (r.module, r.name, r.site))
    modules = _group(records, lambda r: (r.module,))
    for line in modules:
        line.name = line.site = line.setting = ""
    first = next((record for record in records if record.total.pcc < FIRST_LOSS), None)
    worst = sorted((line for line in calls if line.own.lost > 0), key=lambda line: -line.own.lost)[:WORST]
    unfollowed = sorted({record.name for record in records if not record.followed})
    return DriftReport(records, calls, modules, first, worst, unfollowed)


def _group(records: Iterable[Record], key: Any) -> list[Line]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Record]) -> Line:
    hardest = max(group, key=lambda record: record.own.lost)
    total = max((record.total for record in group), key=lambda distance: distance.lost)
    return Line(
        *(hardest.name, hardest.module, hardest.site, hardest.setting, len(group)),
        *(total, hardest.own, hardest.modes, hardest.remedies),
    )


def format_table(report: DriftReport) -> str:
    """The report for a terminal."""
    if not report.records:
        return "No operation with floating-point results ran on a device."
    lines = [f"{'operation':28} {'runs':>5} {'PCC':>10} {'rel. error':>10} {'ulp':>8} {'own 1-PCC':>10}  setting"]
    module = None
    for line in report.calls:
        if line.module != module:
            module = line.module
            lines.append(module)
        total = line.total
        figures = f"{total.pcc:10.6f} {total.relative_error:10.2e} {total.ulp:8.3g} {line.own.lost:10.1e}"
        lines.append(f"  {line.name:26.26} {line.runs:5} {figures}  {line.setting} ({line.site})")
    lines += ["", *_explain(report)]
    return "\n".join(lines)


def _explain(report: DriftReport) -> list[str]:
    first = report.first
    if first is None:
        lines = [f"PCC against float32 never falls below {FIRST_LOSS}."]
    else:
        lines = [f"First below {FIRST_LOSS}: {first.name} in {first.module} ({first.site}), PCC {first.total.pcc:.6f}."]
    if report.worst:
        lines.append("What loses most by itself, and what would give it back:")
    for line in report.worst:
        lines.append(f"  {line.name} in {line.module} ({line.site}), {line.setting}: 1 - PCC {line.own.lost:.1e}")
        modes = [f"{f.label.removeprefix('mode ')} {f.distance.lost:.1e}" for f in line.modes]
        if modes:
            lines.append(f"    in other modes: {', '.join(modes)}")
        for finding in best_remedies(line):
            if finding.label.startswith("format "):
                text = f"would save {finding.distance.lost:.1e}"
            else:
                text = f"1 - PCC {finding.distance.lost:.1e}"
            lines.append(f"    {finding.label}: {text}{f' ({finding.cost})' if finding.cost else ''}")
    if report.unfollowed:
        lines.append(f"Taken as they are, for float32 cannot follow them: {', '.join(report.unfollowed)}.")
    return lines


def best_remedies(line: Line) -> list[Alternative]:
    """Settings that give at least a tenth of the loss back, and formats that cost a tenth of it."""
    kept = []
    for finding in line.remedies:
        if finding.label.startswith("format "):
            helps = finding.distance.lost > 0.1 * line.own.lost
        else:
            helps = finding.distance.lost < 0.9 * line.own.lost
        if helps:
            kept.append(finding)
    return kept
