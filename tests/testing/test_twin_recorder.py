"""What the recorder of `ttmesh twin` puts on record: the program's calls, not those of the library's own helpers."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

from ttmesh.testing.twin_recorder import RecordedModule, Recorder


def make_library(folder: Path) -> ModuleType:
    library = ModuleType("ttnn")
    library.__file__ = str(folder / "ttnn" / "__init__.py")
    library.relu = lambda value: value  # type: ignore[attr-defined]
    return library


def compile_helper(path: Path) -> object:
    names: dict[str, object] = {}
    exec(compile("def helper(ttnn):\n    return ttnn.relu(1)\n", str(path), "exec"), names)
    return names["helper"]


def test_calls_of_the_librarys_helpers_are_not_on_record(tmp_path: Path) -> None:
    library, record = make_library(tmp_path), tmp_path / "run.jsonl"
    recorder = Recorder(str(record), {}, str(tmp_path / "script.py"), library)
    ttnn = RecordedModule(recorder, "ttnn", library)

    ttnn.relu(1)
    compile_helper(tmp_path / "ttnn" / "model_preprocessing.py")(ttnn)  # type: ignore[operator]
    compile_helper(tmp_path / "model.py")(ttnn)  # type: ignore[operator]

    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["name"] for line in lines if "start" in line] == ["ttnn.relu", "ttnn.relu"]
    recorder.file.close()
