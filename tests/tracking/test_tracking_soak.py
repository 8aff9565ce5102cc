"""The short versions of benchmarks/tracking_soak.py and benchmarks/tracking_hostile.py, and the long one."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tracked import environment

from ttmesh.tracking import process_table
from ttmesh.tracking.address import Address

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SOAK = BENCHMARKS / "tracking_soak.py"


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name, value in environment().items():  # its processes inherit this one's
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TTMESH_SOCKET", "")
    monkeypatch.setenv("TTMESH_TOKEN", "")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tracking_hostile")


def test_killed_programs_and_servers_leave_exact_totals():
    command = [sys.executable, str(SOAK), "--seconds", "3", "--programs", "4", "--seed", "7", "--exact-s", "120"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ programs and 4 servers killed", done.stdout)
    assert "a new server knew it all in" in done.stdout


def test_hostile_peers_leave_exact_totals_and_nothing_behind(hostile, address):
    malice = (hostile.send_largest_texts, hostile.ask_without_reading, hostile.send_halves)

    found = hostile.soak(address, seconds=2, clients=2, malice=malice)  # fails when totals are not exact

    assert found["most_held"] <= process_table.MAX_BYTES
    assert found["held_at_end"] == 0


@pytest.mark.deep
def test_the_long_soak_keeps_memory_and_answers_within_what_is_promised(hostile, tmp_path, capsys):
    found = hostile.soak(Address(path=str(tmp_path / "s.sock")), seconds=60, clients=16)

    with capsys.disabled():
        print(found)
    assert found["most_rss"] <= hostile.MEMORY_BYTES
    assert found["held_at_end"] == 0
    assert found["p99_s"] <= hostile.QUERY_S
