"""An uncaught error shows the user's lines and hides those of ttmesh, unless asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import torch
import ttmesh.ttnn as ttnn

def step(mesh):
    x = ttnn.rand((32, 32), device=mesh, layout=ttnn.TILE_LAYOUT)
    ttnn.permute(x, (0, 1, 2))  # three dims of two

mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
step(mesh)
"""
FOREIGN = "import ttmesh.ttnn, json\njson.loads('nonsense')\n"
LAUNCHER = "import sys; from ttmesh.cli import main; sys.exit(main())"  # what the installed command holds
STARTS = {"python": (), "module": ("-m", "ttmesh", "run"), "command": ("-c", LAUNCHER, "run")}


def run_program(tmp_path: Path, text: str, *words: str, **variables: str) -> str:
    script = tmp_path / "program.py"
    script.write_text(text)
    command = [sys.executable, *words, str(script)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize("words", STARTS.values(), ids=STARTS)
def test_a_traceback_ends_at_the_users_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = run_program(tmp_path, PROGRAM, *words)

    lines = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert len(lines) == 2
    assert all("program.py" in line for line in lines)
    assert "in step" in lines[-1]
    assert "The number of dimensions in the tensor input" in text
    assert text.splitlines()[0].endswith("TTMESH_TRACEBACK=full shows them.")


def test_all_frames_are_shown_on_request(tmp_path: Path) -> None:
    text = run_program(tmp_path, PROGRAM, TTMESH_TRACEBACK="full")

    assert str(SOURCE / "ttmesh" / "ops") in text
    assert "shows them" not in text


@pytest.mark.parametrize("words", STARTS.values(), ids=STARTS)
def test_errors_of_others_keep_their_frames(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = run_program(tmp_path, FOREIGN, *words)

    assert "program.py" in text
    assert "decoder.py" in text
    assert ("shows them" in text) is bool(words)


def test_a_program_that_runs_another_keeps_the_lines_of_both(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text("import no_such_module\n")
    outer = f"import runpy\nimport ttnn\nrunpy.run_path({str(tmp_path / 'inner.py')!r})\n"

    lines = [line for line in run_program(tmp_path, outer, *STARTS["command"]).splitlines() if "File " in line]

    assert ["program.py" in lines[0], "inner.py" in lines[1]] == [True, True]
