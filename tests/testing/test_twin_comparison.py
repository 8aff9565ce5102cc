"""Two recordings, compared: what counts as a difference, and where it is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ttmesh.base.errors import MeshError
from ttmesh.testing.twin_comparison import TwinReport, compare_recordings, correlate, read_recording

TENSOR = {
    "shape": [32, 32],
    "padded shape": [32, 32],
    "dtype": "DataType.BFLOAT16",
    "layout": "Layout.TILE",
    "memory config": ["INTERLEAVED", "DRAM"],
    "topology": [[1], ["PlacementReplicate"], [[0, 0]]],
    "storage": "StorageType.DEVICE",
}


def tensor(**changes: Any) -> dict[str, Any]:
    return {"result": [{**TENSOR, **{name.replace("_", " "): value for name, value in changes.items()}}]}


def write(
    path: Path, *outcomes: dict[str, Any] | None, library: str = "TT-NN", values: bool = True, **end: Any
) -> Path:
    """A recording of calls on lines 1, 2, 3 …; None ends the process."""
    lines: list[dict[str, Any]] = [{"twin": 1, "library": library, "version": "1", "values": values}]
    for number, outcome in enumerate(outcomes):
        outcome = dict(outcome) if outcome is not None else None
        name = outcome.pop("name", f"ttnn.op{number}") if outcome is not None else f"ttnn.op{number}"
        lines.append({"start": number, "name": name, "file": "p.py", "line": number + 1, "arguments": "x"})
        if outcome is not None:
            lines.append({"end": number, **outcome})
    if None not in outcomes:
        lines.append({"status": 0, "problem": None, **end})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compare(folder: Path, ours: list[Any], theirs: list[Any], **options: Any) -> TwinReport:
    sides = [read_recording(write(folder / name, *calls, **options)) for name, calls in (("a", ours), ("b", theirs))]
    return compare_recordings(*sides)


def found(report: TwinReport) -> list[tuple[int, str, Any, Any]]:
    return [(c.call.line, d.what, d.ours, d.theirs) for c in report.differing for d in c.differences]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"shape": [32, 64]}, "shape"),
        ({"padded_shape": [32, 64]}, "padded shape"),
        ({"dtype": "DataType.FLOAT32"}, "dtype"),
        ({"layout": "Layout.ROW_MAJOR"}, "layout"),
        ({"memory_config": ["INTERLEAVED", "L1"]}, "memory config"),
        ({"topology": [[2], ["PlacementShard 0"], [[0, 0], [0, 1]]]}, "topology"),
    ],
)
def test_every_part_of_a_spec_counts(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    report = compare(tmp_path, [tensor(), tensor()], [tensor(), tensor(**change)])

    (value,) = change.values()
    assert found(report) == [(2, what, TENSOR[what], value)]
    assert report.count_by_name()["ttnn.op1"]["spec"] == 1
    assert report.count_by_name()["ttnn.op0"]["agree"] == 1


def test_refusals_and_their_first_words_are_compared(tmp_path: Path) -> None:
    def refuse(text: str) -> dict[str, Any]:
        return {"error": ["RuntimeError", text]}

    ours = [tensor(), refuse("Width 3 is wrong; expected 4."), refuse("Something else"), refuse("no")]
    theirs = [refuse("Width 3"), refuse("Width 3 is wrong"), refuse("Width 3 is wrong"), tensor()]

    assert found(compare(tmp_path, ours, theirs)) == [
        (1, "refusal", "ran", "refused: Width 3"),
        (3, "text", "Something else", "Width 3 is wrong"),
        (4, "refusal", "refused: no", "ran"),
    ]


def test_distances_of_addresses_count_not_addresses(tmp_path: Path) -> None:
    ours = [tensor(address=a) for a in (1000, 1100, 1200, 1300)]
    theirs = [tensor(address=a) for a in (5000, 5100, 5400, 5500)]

    assert found(compare(tmp_path, ours, theirs)) == [(3, "address", "+100", "+300")]


def test_programs_and_memory_count_where_both_sides_know_them(tmp_path: Path) -> None:
    ours = [{**tensor(), "programs": 1, "circular buffers": [64, 64], "L1 peak": 128}] * 2
    theirs = [{**tensor(), "programs": 2, "circular buffers": [128, 64], "L1 peak": 192}, {**tensor(), "L1 peak": 0}]

    assert found(compare(tmp_path, ours, theirs)) == [
        (1, "programs", 1, 2),
        (1, "circular buffers", 128, 192),
        (1, "L1 peak", 128, 192),
    ]


def test_values_are_compared_unless_a_side_has_none(tmp_path: Path) -> None:
    ours, theirs = (
        [{"result": [{"torch": [[4], "torch.float32"], "values": values}]}]
        for values in ([1.0, 2.0, 3.0, 4.0], [4.0, 2.0, 3.0, 1.0])
    )

    (line, what, _, _) = found(compare(tmp_path, ours, theirs))[0]
    assert (line, what) == (1, "values")
    assert compare(tmp_path, ours, theirs, values=False).has_agreed
    assert compare(tmp_path, ours, ours).calls[0].closeness == ((1.0, 0.0),)


def test_a_call_that_ends_the_process_is_the_last_difference(tmp_path: Path) -> None:
    report = compare(tmp_path, [tensor(), tensor(), tensor()], [tensor(), None])

    assert found(report) == [(2, "refusal", "ran", "ended the process")]
    assert report.as_dict()["differences"][0]["line"] == 2


def test_calls_that_one_side_does_not_make_are_named(tmp_path: Path) -> None:
    calls = [{**tensor(), "name": "ttnn.add"}, {**tensor(), "name": "ttnn.sub"}, {**tensor(), "name": "ttnn.add"}]
    only = [{**tensor(), "name": "ttnn.Thing"}, *calls]

    report = compare(tmp_path, only, [{"value": 1, "name": "ttnn.other"}, *calls])
    assert report.has_agreed
    assert report.one_sided == ("ttnn.Thing", "ttnn.other")
    assert found(compare(tmp_path, calls[:1], calls)) == [(3, "refusal", "not made", "made")]


def test_another_end_of_the_program_is_a_difference(tmp_path: Path) -> None:
    sides = [write(tmp_path / "a", tensor()), write(tmp_path / "b", tensor(), status=1, problem="ValueError: x")]

    report = compare_recordings(*map(read_recording, sides))

    assert found(report) == [(0, "end", "status 0", "status 1 (ValueError: x)")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "does not begin as one"),
        ("[]\n{}\n", "line 1 is no record"),
        ('{"twin": 2}\n', "does not begin as one"),
        ('{"twin": 1}\n', "a line has no 'values'"),
        ('{"twin": 1, "values": 1, "library": "x"}\n{nonsense\n{}\n', "line 2 is not JSON"),
        ('{"twin": 1, "values": 1, "library": "x"}\n{"start": 0}\n', "a line has no"),
    ],
)
def test_other_files_are_no_recordings(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "f").write_text(text)

    with pytest.raises(MeshError, match=f"is no recording .*{words}"):
        read_recording(tmp_path / "f")


def test_a_recording_that_was_cut_off_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "f", tensor(), tensor())
    path.write_text(path.read_text()[:-50])

    recording = read_recording(path)

    assert len(recording.calls) == 2
    assert recording.status is None


def test_correlation_knows_equal_constants_and_nan() -> None:
    assert correlate([1.0, 1.0], [1.0, 1.0]) == 1
    assert correlate([math.nan, 1.0], [math.nan, 1.0]) == 1
    assert correlate([math.nan, 1.0], [0.0, 1.0]) == 0
    assert correlate([1.0, 2.0, 3.0], [2.0, 4.0, 6.5]) == pytest.approx(0.998, abs=1e-3)
