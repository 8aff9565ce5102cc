"""`ttmesh twin`: two real runs of a program, the second one under ttmesh as well, made to differ where it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ttmesh import shim

SOURCE = str(Path(__file__).parents[2] / "src")
PROGRAM = """
import os, sys
import torch, ttnn
from ttnn import relu

other = "ttmesh.cli" not in sys.modules  # the run that stands for TT-NN
device = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
x = ttnn.from_torch(torch.ones(64, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
y = relu(x) + x
z = ttnn.sum(y, dim=-1 if other else 0)
try:
    ttnn.matmul(y, y)
except RuntimeError:
    pass
golden = ttnn.get_golden_function(ttnn.add)
print(sys.argv, ttnn.experimental.__name__)
ttnn.as_tensor(torch.ones(2), preprocess=lambda values: os._exit(7) if other else values)
ttnn.close_mesh_device(device)
"""


def ttmesh_twin(folder: Path, *arguments: str, stand_in: bool = True) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*shim.__path__, SOURCE] if stand_in else [SOURCE])
    env = {**os.environ, "PYTHONPATH": path, "TTMESH_SYSTEM": "n300"}
    command = [sys.executable, "-m", "ttmesh", "twin", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_a_recording_is_compared_with_a_run_to_the_line(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    recorded = ttmesh_twin(
        tmp_path, "--python", sys.executable, "--record", "run.jsonl", "--graph", "program.py", "--flag", "3"
    )
    compared = ttmesh_twin(
        tmp_path, "--against", "run.jsonl", "--graph", "--json", "report.json", "program.py", "--flag", "3"
    )

    assert recorded.returncode == 0, recorded.stderr
    assert "calls of ttmesh" in recorded.stdout
    assert "the program ended with status 7 under TT-NN" in recorded.stderr
    assert "['program.py', '--flag', '3'] ttnn.experimental" in recorded.stderr
    assert compared.returncode == 1, compared.stderr
    assert "program.py:10  ttnn.sum(Tensor[64x32 bf16 TILE], dim=0)" in compared.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(d["name"], d["line"]) for d in report["differences"]] == [
        ("ttnn.sum", 10),
        ("ttnn.as_tensor", 17),
    ]
    assert report["differences"][-1]["differences"] == [
        {"what": "refusal", "ours": "ran", "theirs": "ended the process"}
    ]
    agreeing = {name for name, row in report["operations"].items() if row["agree"] == row["calls"]}
    assert {"ttnn.open_mesh_device", "ttnn.from_torch", "ttnn.relu", "Tensor.__add__", "ttnn.matmul"} <= agreeing


def fake_python(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_environments_and_files_that_do_not_serve_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import ttnn\n")
    without = fake_python(tmp_path, "echo 'python cannot import ttnn: No module' >&2; exit 97")

    for arguments, words in (
        (("p.py",), "no environment with TT-NN was named"),
        (("--python", "/no/python", "p.py"), "--python /no/python cannot be run"),
        (("--python", without, "p.py"), "cannot import ttnn: No module"),
        (("--python", sys.executable, "none.py"), "no file none.py"),
        (("--against", "none.jsonl", "p.py"), "none.jsonl is no recording"),
        (("--against", "a", "--record", "b", "p.py"), "--record and --against were given"),
    ):
        done = ttmesh_twin(tmp_path, *arguments, stand_in=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import ttnn\n")

    done = ttmesh_twin(
        tmp_path, "--python", fake_python(tmp_path, "exec sleep 1000"), "--timeout", "0.2", "p.py", stand_in=False
    )

    assert done.returncode == 2
    assert "ended after 0.2 s (--timeout)" in done.stderr


def test_an_interrupt_ends_the_other_process_too(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("import ttnn\n")
    python = fake_python(tmp_path, "echo $$ > pid.new; mv pid.new pid; exec sleep 1000")
    command = [sys.executable, "-m", "ttmesh", "twin", "--python", python, "p.py"]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    twin = subprocess.Popen(command, cwd=tmp_path, env=env, preexec_fn=_default_interrupt)
    pid = tmp_path / "pid"
    for _ in range(3000):
        if pid.exists():
            break
        time.sleep(0.02)

    twin.send_signal(signal.SIGINT)

    assert twin.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def _default_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
