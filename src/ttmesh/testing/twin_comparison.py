"""Two recordings of one program, compared call by call."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from ttmesh.base.errors import MeshError

FORMAT = 1
TEXT_LENGTH = 60  # characters of TT-NN's sentence that ours has to contain; ours may go on
SPEC = (
    "count",
    "kind",
    "shape",
    "padded shape",
    "dtype",
    "layout",
    "memory config",
    "topology",
    "storage",
    "torch",
    "value",
)
GROUPS = ("refusal", "text", "spec", "address", "programs", "circular buffers", "L1 peak", "values", "end")
ENDED = "ended the process"


@dataclass(frozen=True)
class RecordedCall:
    """A call of the program; `outcome` is None where it ended the process."""

    number: int
    name: str
    file: str
    line: int
    arguments: str
    outcome: dict[str, Any] | None

    @property
    def key(self) -> tuple[str, int, str]:
        """What the same call has in both recordings."""
        return self.file, self.line, self.name

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.name}({self.arguments})"


@dataclass(frozen=True)
class Recording:
    """What a library did in a program."""

    library: str
    version: str | None
    has_values: bool
    calls: tuple[RecordedCall, ...]
    status: int | None  # None: the program did not come to its end
    problem: str | None


@dataclass(frozen=True)
class Difference:
    """One thing that differs, on both sides."""

    what: str
    ours: Any
    theirs: Any

    @property
    def group(self) -> str:
        """The column that it counts in."""
        return "spec" if self.what in SPEC else self.what


@dataclass(frozen=True)
class ComparedCall:
    """A call in both recordings, or in one of them."""

    ours: RecordedCall | None
    theirs: RecordedCall | None
    differences: tuple[Difference, ...]
    closeness: tuple[tuple[float, float], ...] = ()  # PCC and largest error of every result with values

    @property
    def call(self) -> RecordedCall:
        """The call on one of the sides."""
        found = self.ours or self.theirs
        assert found is not None, "one side made it"
        return found


@dataclass
class TwinReport:
    """What two runs of a program have in common."""

    ours: Recording
    theirs: Recording
    calls: list[ComparedCall] = field(default_factory=list)
    one_sided: tuple[str, ...] = ()  # names that one recorder saw only: a class there, a function here

    @property
    def differing(self) -> list[ComparedCall]:
        """The calls that differ, in the order of the program."""
        return [call for call in self.calls if call.differences]

    @property
    def has_agreed(self) -> bool:
        """Whether nothing differs."""
        return not self.differing

    def count_by_name(self) -> dict[str, dict[str, int]]:
        """Per operation: calls, those that agree, and how many differ in what."""
        counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(("calls", "agree", *GROUPS), 0))
        for compared in self.calls:
            row = counts[compared.call.name]
            row["calls"] += 1
            row["agree"] += not compared.differences
            for group in {difference.group for difference in compared.differences}:
                row[group] += 1
        return dict(counts)

    def as_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "ours": _side(self.ours),
            "theirs": _side(self.theirs),
            "calls": len(self.calls),
            "agree": len(self.calls) - len(self.differing),
            "operations": self.count_by_name(),
            "not compared": list(self.one_sided),
            "differences": [
                {
                    "call": compared.call.number,
                    "name": compared.call.name,
                    "file": compared.call.file,
                    "line": compared.call.line,
                    "arguments": compared.call.arguments,
                    "differences": [vars(difference) for difference in compared.differences],
                }
                for compared in self.differing
            ],
            "closeness": [
                {"call": c.call.number, "name": c.call.name, "pcc": pcc, "max error": error}
                for c in self.calls
                for pcc, error in c.closeness
            ],
        }


def read_recording(path: Path) -> Recording:
    """The recording in a file; the last line may be cut off by the end of its writer."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise _unreadable(path, str(problem)) from None
    records = list(_parse(path, lines))
    if not records or records[0].get("twin") != FORMAT:
        raise _unreadable(path, "it does not begin as one")
    header, started, ended = (
        records[0],
        [r for r in records if "start" in r],
        {r["end"]: r for r in records if "end" in r},
    )
    last = records[-1] if "status" in records[-1] else {}
    try:
        calls = tuple(
            RecordedCall(r["start"], r["name"], r["file"], r["line"], r["arguments"], ended.get(r["start"]))
            for r in started
        )
        has_values = bool(header["values"])
        return Recording(
            header["library"], header.get("version"), has_values, calls, last.get("status"), last.get("problem")
        )
    except KeyError as problem:
        raise _unreadable(path, f"a line has no {problem}") from None


def compare_recordings(ours: Recording, theirs: Recording, *, pcc: float = 0.99) -> TwinReport:
    """Align the calls by line and name, and compare what they did."""
    names = [{call.name for call in side.calls} for side in (ours, theirs)]
    finished = not _has_ended(ours) and not _has_ended(theirs)  # else a name may be missing for that reason alone
    report = TwinReport(ours, theirs, one_sided=tuple(sorted(names[0] ^ names[1])) if finished else ())
    shared = names[0] & names[1] if finished else names[0] | names[1]
    sides = [[call for call in side.calls if call.name in shared] for side in (ours, theirs)]
    compare_values = ours.has_values and theirs.has_values
    previous: dict[str, tuple[int, int]] = {}
    for mine, other in _align(*sides):
        if mine is None or other is None:
            ended = _has_ended(ours if mine is None else theirs)
            if not ended:
                made = ("not made", "made") if mine is None else ("made", "not made")
                report.calls.append(ComparedCall(mine, other, (Difference("refusal", *made),)))
            continue
        differences = list(_compare_outcomes(mine, other, previous))
        closeness: tuple[tuple[float, float], ...] = ()
        if compare_values and not differences:
            closeness = tuple(_compare_values(mine, other))
            for found, error in closeness:
                if not found >= pcc:
                    differences.append(Difference("values", f"PCC {found:.6f}, largest error {error:.6g}", "reference"))
        report.calls.append(ComparedCall(mine, other, tuple(differences), closeness))
    if (ours.status, ours.problem is None) != (theirs.status, theirs.problem is None) and not report.differing:
        end = Difference("end", _describe_end(ours), _describe_end(theirs))
        last = RecordedCall(-1, "(the program's end)", "", 0, "", {})
        report.calls.append(ComparedCall(last, last, (end,)))
    return report


def _align(
    ours: Sequence[RecordedCall], theirs: Sequence[RecordedCall]
) -> Iterator[tuple[RecordedCall | None, RecordedCall | None]]:
    keys = [[call.key for call in side] for side in (ours, theirs)]
    common = 0
    while common < min(map(len, keys)) and keys[0][common] == keys[1][common]:
        common += 1
    yield from zip(ours[:common], theirs[:common], strict=True)
    ours, theirs = ours[common:], theirs[common:]
    matcher = SequenceMatcher(None, keys[0][common:], keys[1][common:], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield from zip(ours[a:b], theirs[c:d], strict=True)
        else:
            yield from ((call, None) for call in ours[a:b])
            yield from ((None, call) for call in theirs[c:d])


def _has_ended(side: Recording) -> bool:
    """Whether a side stopped early: calls that it then did not make are not counted as differences."""
    return side.status != 0


def _compare_outcomes(
    mine: RecordedCall, other: RecordedCall, previous: dict[str, tuple[int, int]]
) -> Iterator[Difference]:
    if mine.outcome is None or other.outcome is None:
        if mine.outcome is not other.outcome:
            yield Difference("refusal", *(ENDED if c.outcome is None else _summary(c.outcome) for c in (mine, other)))
        return
    texts: list[Any] = [
        outcome["error"][1] if "error" in outcome else None for outcome in (mine.outcome, other.outcome)
    ]
    if texts != [None, None]:
        if None in texts:
            yield Difference("refusal", *map(_summary, (mine.outcome, other.outcome)))
        elif not _is_same_text(*texts):
            yield Difference("text", *texts)
        return
    results = mine.outcome.get("result", []), other.outcome.get("result", [])
    if len(results[0]) != len(results[1]):
        yield Difference("count", *map(len, results))
    for a, b in zip(*results, strict=False):
        yield from _compare_results(a, b, previous)
    counts = [outcome.get("programs") for outcome in (mine.outcome, other.outcome)]
    if None not in counts and counts[0] != counts[1]:
        yield Difference("programs", *counts)
    for what in ("circular buffers", "L1 peak"):
        totals = [_total(outcome.get(what)) for outcome in (mine.outcome, other.outcome)]
        if all(totals) and totals[0] != totals[1]:
            yield Difference(what, *totals)


def _compare_results(
    a: dict[str, Any], b: dict[str, Any], previous: dict[str, tuple[int, int]]
) -> Iterator[Difference]:
    if ("shape" in a) != ("shape" in b):
        yield Difference("kind", *(", ".join(side) for side in (a, b)))
        return
    for what in SPEC[2:]:
        if what in a and what in b and a[what] != b[what]:
            yield Difference(what, a[what], b[what])
    if isinstance(a.get("address"), int) and isinstance(b.get("address"), int):
        memory = str((a["memory config"] or ["", ""])[1])
        before = previous.get(memory)
        previous[memory] = a["address"], b["address"]
        if before is not None and a["address"] - before[0] != b["address"] - before[1]:
            yield Difference("address", f"{a['address'] - before[0]:+d}", f"{b['address'] - before[1]:+d}")


def _compare_values(mine: RecordedCall, other: RecordedCall) -> Iterator[tuple[float, float]]:
    results = [(call.outcome or {}).get("result", []) for call in (mine, other)]
    for a, b in zip(*results, strict=False):
        x, y = a.get("values"), b.get("values")
        if isinstance(x, list) and isinstance(y, list) and len(x) == len(y) and x:
            yield correlate(x, y), max((abs(p - q) for p, q in zip(x, y, strict=True)), default=0.0)


def correlate(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation; 1 for equal values, also constant ones, infinities and NaNs in the same places."""
    if all(p == q or (math.isnan(p) and math.isnan(q)) for p, q in zip(x, y, strict=True)):
        return 1.0
    if not all(map(math.isfinite, (*x, *y))):
        return 0.0
    means = sum(x) / len(x), sum(y) / len(y)
    a, b = [p - means[0] for p in x], [q - means[1] for q in y]
    norm = math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))
    return sum(p * q for p, q in zip(a, b, strict=True)) / norm if norm else 0.0


def _is_same_text(ours: str, theirs: str) -> bool:
    plain = [re.sub(r"\W+", " ", text) for text in (ours, theirs)]
    return plain[1][:TEXT_LENGTH].strip() in plain[0]


def _total(numbers: Any) -> int:
    return sum(numbers) if isinstance(numbers, list) else int(numbers or 0)


def _summary(outcome: dict[str, Any]) -> str:
    return f"refused: {outcome['error'][1]}" if "error" in outcome else "ran"


def _describe_end(side: Recording) -> str:
    if side.status is None:
        return ENDED
    return f"status {side.status}" + (f" ({side.problem})" if side.problem else "")


def _side(side: Recording) -> dict[str, Any]:
    return {
        "library": side.library,
        "version": side.version,
        "calls": len(side.calls),
        "status": side.status,
        "problem": side.problem,
        "values": side.has_values,
    }


def _parse(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    for i, line in enumerate(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            if i < len(lines) - 1:
                raise _unreadable(path, f"line {i + 1} is not JSON") from None
            return
        if not isinstance(record, dict):
            raise _unreadable(path, f"line {i + 1} is no record")
        yield record


def _unreadable(path: Path, reason: str) -> MeshError:
    return MeshError(
        f"{path} is no recording ({reason})",
        expected="a file of `ttmesh twin --record`",
        fix="Record the program again.",
    )
