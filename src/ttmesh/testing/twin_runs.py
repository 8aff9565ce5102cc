"""Starts a program under ttmesh and under an installed TT-NN, each in a separate process that records its calls."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttmesh.base.errors import MeshError
from ttmesh.testing.twin_recorder import NO_TTNN

RECORDER = Path(__file__).with_name("twin_recorder.py")
GRACE_S = 5.0  # for a process that was asked to end
TAIL_LINES = 15


@dataclass(frozen=True)
class TwinProgram:
    """A script with its arguments, and what is recorded of it."""

    script: Path
    arguments: tuple[str, ...]
    options: Mapping[str, bool]
    timeout_s: float


@dataclass(frozen=True)
class FinishedRun:
    """How a process ended, and the end of what it printed."""

    status: int
    output: str

    def describe(self) -> str:
        """In one line."""
        if self.status >= 0:
            return f"status {self.status}"
        try:
            return signal.Signals(-self.status).name
        except ValueError:
            return f"signal {-self.status}"


def check_script(script: Path) -> None:
    """Refuse a path that is not a file."""
    if not script.is_file():
        raise MeshError(f"no file {script}", expected="a Python file", fix="Check the path.")


def find_python(name: str | None) -> str:
    """The interpreter whose environment has TT-NN."""
    if name is None:
        raise MeshError(
            "no environment with TT-NN was named",
            expected="--python PATH, the interpreter of an environment with TT-NN, or --against FILE",
            fix="Pass the path of that environment's python, or a recording of it.",
        )
    found = shutil.which(name)
    if found is None:
        raise MeshError(
            f"--python {name} cannot be run",
            expected="the path of a Python interpreter",
            fix="Name the python of the environment in which TT-NN is installed.",
        )
    return found


def record_ours(program: TwinProgram, recording: Path, system: str | None) -> FinishedRun:
    """Run the program under ttmesh."""
    chosen = [] if system is None else ["--system", system]
    return _run([sys.executable, "-m", "ttmesh", "run", "--force", *chosen, str(RECORDER)], program, recording)


def record_theirs(python: str, program: TwinProgram, recording: Path) -> FinishedRun:
    """Run the program under the TT-NN of another environment, which gets this process's environment variables."""
    ended = _run([python, str(RECORDER)], program, recording)
    if ended.status == NO_TTNN:
        raise MeshError(
            ended.output.strip().splitlines()[-1],
            expected="an environment in which TT-NN is installed",
            fix="Name its python with --python.",
        )
    if not recording.is_file():
        raise MeshError(
            f"{python} ended before it recorded anything ({ended.describe()}): {ended.output.strip()[-300:]}",
            expected="a Python interpreter, version 3.10 or later, with TT-NN",
            fix="Try `import ttnn` in it.",
        )
    return ended


def _run(command: Sequence[str], program: TwinProgram, recording: Path) -> FinishedRun:
    words = [*command, str(recording), json.dumps(dict(program.options)), str(program.script), *program.arguments]
    log = recording.with_suffix(".log")
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as problem:
        raise MeshError(
            f"{command[0]} cannot be run ({problem.strerror})", expected="an interpreter", fix="Check the path."
        ) from None
    try:
        status = process.wait(program.timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        status = -signal.SIGTERM
        with log.open("ab") as output:
            output.write(f"\nended after {program.timeout_s:g} s (--timeout)\n".encode())
    finally:
        _end(process)  # also when this process is interrupted
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return FinishedRun(status, "\n".join(lines[-TAIL_LINES:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
