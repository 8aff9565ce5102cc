"""Processes that divide one system: each sees its part, a chip in use names its owner, a crash gives it back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[3] / "src")

HOLD = """
import sys
import ttmesh.ttnn as ttnn
from ttmesh.base.signals import signals
from ttmesh.base.records import Opened
mesh = ttnn.open_mesh_device()
opened = [r for r in signals.ask("holdings") if isinstance(r, Opened)]
print(mesh.get_num_devices(), [chip.physical_id for chip in opened[0].chips], flush=True)
sys.stdin.read()
"""


def start(folder: Path, visible: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": SOURCE, "TT_VISIBLE_DEVICES": visible, "TTMESH_RUNTIME_DIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOLD], env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_two_processes_take_two_parts_and_a_third_is_told_who_has_a_chip(tmp_path) -> None:
    first, second = start(tmp_path, "0"), start(tmp_path, "1,2")

    assert first.stdout.readline() == "2 [4, 0]\n"
    assert second.stdout.readline().startswith("4 [")
    third = start(tmp_path, "0")
    _, complaint = third.communicate("")

    assert third.returncode == 1
    assert f"process {first.pid}" in complaint
    for process in (first, second):
        process.communicate("")


def test_a_crash_gives_the_chips_back(tmp_path) -> None:
    first = start(tmp_path, "0")
    first.stdout.readline()
    first.send_signal(signal.SIGKILL)
    first.communicate()

    second = start(tmp_path, "0")

    assert second.stdout.readline() == "2 [4, 0]\n"
    second.communicate("")
