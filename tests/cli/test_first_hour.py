"""What a newcomer types first: demo, examples, doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.cli import main
from ttmesh.cli.doctor import BROKEN, examine_machine
from ttmesh.showcase.example_files import list_examples


def run_command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-m", "ttmesh", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment, check=False)


def test_the_demo_shows_a_mesh(tmp_path: Path) -> None:
    done = run_command("demo", "--megabytes", "4", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "DRAM 8 MiB" in done.stdout
    assert "every device returned to its baseline" in done.stdout


def test_examples_are_listed_with_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples"]) == 0

    out = capsys.readouterr().out
    for example in list_examples():
        assert example.name in out
        assert example.summary, example.name
    assert "train_gpt" in out
    assert "test_" not in out
    assert "python examples" not in " ".join(out.split())  # a path that only a checkout has
    assert "llama_files" not in out  # a module that others import


def test_an_example_runs_by_its_name_with_its_arguments(tmp_path: Path) -> None:
    done = run_command("examples", "vision_pipeline", "--help", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_a_copied_example_runs_where_it_was_copied_to(tmp_path: Path) -> None:
    assert run_command("examples", "--copy", str(tmp_path / "mine")).returncode == 0

    script = tmp_path / "mine" / "train_gpt.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["examples", "train_gtp"], "no example named 'train_gtp'"),
        (["examples", "--copy", "/proc/none/here"], "cannot be copied to"),
        (["examples", "--copy", "/"], "exists and is not an empty folder"),
        (["examples", "--copy", "x", "train_gpt"], "--copy takes all examples, not only 'train_gpt'"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2

    assert text in capsys.readouterr().err


def test_the_doctor_names_what_is_there_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0

    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["torch"]["state"] == "ok"
    assert {"settings", "compiled kernels", "GPU", "mpirun", "browser", "textual"} <= found.keys()
    assert all(
        finding["remedy"] for finding in found.values() if finding["state"] == "missing" and finding["name"] != "GPU"
    )


def test_the_doctor_finds_a_setting_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_KERNELS", "perhaps")

    settings = next(finding for finding in examine_machine() if finding.name == "settings")

    assert settings.state == BROKEN
    assert "TTMESH_KERNELS" in settings.remedy
