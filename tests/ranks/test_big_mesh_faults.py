"""A rank that is killed while others are in a collective with it: they name it, the operation and the axis."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_launches import HERE, NEEDS, environment, launched

from ttmesh.fabric.messaging import engines
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor


@pytest.mark.parametrize(
    ("engine", "ranks"), [(name, ranks) for name, ranks in zip(engines.names(), (4, 2), strict=True)]
)
def test_a_killed_rank_is_named_with_operation_and_axis_and_holds_nothing(
    engine: str, ranks: int, tmp_path: Path
) -> None:
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    address = Address(path=str(tmp_path / "s.sock"))
    serve = [sys.executable, "-c", "import sys; from ttmesh.cli.server import main; sys.exit(main())"]
    tracked = {"TTMESH_SOCKET": str(address), "TT_ALLOC_TRACKING_ENABLED": "1"}
    program = ["--grace", "180", str(HERE / "big_mesh_mlp.py"), str(tmp_path), "10"]
    start = [sys.executable, "-m", "ttmesh.cli.launch", "-n", str(ranks), "--engine", engine, *program]
    server = subprocess.Popen([*serve, "--socket", address.path], stdout=subprocess.DEVNULL, env=environment())
    launcher = None
    try:
        eventually(lambda: Path(address.path).exists())
        launcher = subprocess.Popen(
            start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**tracked)
        )
        eventually(lambda: all((tmp_path / f"sums{rank}").exists() for rank in range(ranks)))
        with Monitor(address, timeout_s=180) as monitor:
            eventually(lambda: len(holding(monitor)) == 16)
            own = holding(monitor)
            victim = ranks - 1

            os.kill(int((tmp_path / f"sums{victim}").read_text()), signal.SIGKILL)

            eventually(lambda: all((tmp_path / f"told{rank}").exists() for rank in range(victim)))
            eventually(lambda: len(holding(monitor)) == 16 - 16 // ranks)
            ended = monitor.leaks().ended
            assert [e.orderly for e in ended] == [False]
            assert sum(h.size_bytes for h in ended[0].held) > 0
            assert set(own) - set(holding(monitor)) == expected_chips(victim, ranks)
            (tmp_path / "seen").touch()
        output, _ = launcher.communicate(timeout=180)
    finally:
        for process in (launcher, server):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(180)
    assert launcher.returncode != 0
    assert output.count("first cause") == 1, output
    words = (
        rf"ttnn.all_reduce: rank {victim} died, stopped or was cut off during all_reduce on group "
        "'axis 1 of mesh 2x8, queue 0'"
    )
    for rank in range(victim):
        told = (tmp_path / f"told{rank}").read_text()
        assert words in told


def holding(monitor: Monitor) -> dict[int, int]:
    """The chips that hold something in DRAM."""
    used = {d.physical_id: d.usage["DRAM"].used_bytes for d in monitor.state().devices if "DRAM" in d.usage}
    return {chip: size for chip, size in used.items() if size}


def expected_chips(rank: int, ranks: int) -> set[int]:
    """The block of a rank on a 2x8 mesh cut along its columns."""
    width = 8 // ranks
    return {row * 8 + col for row in (0, 1) for col in range(rank * width, (rank + 1) * width)}


def eventually(look: Callable[[], bool], timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.mark.parametrize("engine", engines.names())
def test_ranks_that_do_not_do_the_same_are_told_where_they_differ(engine: str) -> None:
    done = launched(engine, 2, str(HERE / "ranks_that_differ.py"), TTMESH_CHECK_RANKS="1", TTMESH_TIMEOUT_S="300")

    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"[{rank}] rank {rank} is content" in done.stdout for rank in (0, 1))


def test_ranks_that_keep_their_lanes_differently_sum_alike() -> None:
    done = launched("mpi", 2, str(HERE / "sums_of_unlike_lanes.py"))

    assert all(f"rank {rank} has every sum" in done.stdout for rank in (0, 1)), done.stdout + done.stderr
