"""Temporary folders go with their process, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.base import directories

# `nohup`, and shells that start something in the background, leave signals ignored.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from ttmesh.base.directories import scratch_folder
with scratch_folder("some-") as folder:
    (folder / "weights").touch()
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_folder_goes_with_its_process(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories.tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        directories.remove_abandoned("some-")
        kept = [path.name for path in tmp_path.glob("some-*/*")]
        running.send_signal(number)

    assert kept == ["weights"]
    assert running.returncode == -number
    with directories.scratch_folder("some-") as folder:
        assert list(tmp_path.iterdir()) == [folder]
    assert not list(tmp_path.iterdir())
