"""A rank that is killed or stopped in any phase of a job is named by all others; no process and no port is left."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rank_launches import HERE, NEEDS, environment

from ttmesh.fabric.messaging import engines

PHASES = ("before", "joining", "collective", "idle", "closing", "finalising")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
RANKS = 3
# For every rank; processes need some seconds to start, silence is noticed after ten.
LIMIT_S = "30"
SHORT = [("mpi", "before", signal.SIGKILL, 1), ("torchdist", "closing", signal.SIGKILL, 1)]
WHOLE = [
    pytest.param(engine, phase, number, victim, marks=pytest.mark.deep)
    for engine in engines.names()
    for phase in PHASES
    for number in SIGNALS
    for victim in (0, RANKS - 1)
]


@pytest.mark.parametrize(("engine", "phase", "number", "victim"), SHORT + WHOLE)
def test_a_rank_that_goes_down_is_named_by_all_others(
    engine: str, phase: str, number: signal.Signals, victim: int, tmp_path: Path
) -> None:
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    ranks = 2 if victim == 1 else RANKS
    program = [str(HERE / "going_down.py"), phase, str(int(number)), str(victim), str(tmp_path)]
    command = [sys.executable, "-m", "ttmesh.cli.launch", "-n", str(ranks), "--engine", engine, "-v", *program]

    # Whoever does not end is killed with its whole family, and the assertion below fails.
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment(TTMESH_TIMEOUT_S=LIMIT_S)
    )

    output = done.stdout + done.stderr
    for rank in set(range(ranks)) - {victim}:
        lines = re.findall(rf"^\[{rank}\] .*RankError: .*$", output, re.MULTILINE)
        assert any(re.search(rf"\brank {victim} (died|has not come|alive but)", line) for line in lines), output
    assert done.returncode != 0
    assert output.count("first cause") == 1, output
    left = [p for p in psutil.process_iter(["cmdline"]) if program == (p.info["cmdline"] or [])[-len(program) :]]
    assert not left
    for port in re.findall(r"MASTER_PORT=(\d+)", output):
        with socket.socket() as free:
            free.bind(("127.0.0.1", int(port)))
