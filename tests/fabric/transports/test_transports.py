"""Every engine keeps the contract with real processes, and names the rank that fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from ttmesh.fabric.messaging import engines
from ttmesh.launch.commands import find_mpirun

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
NEEDS = {"mpi": find_spec("mpi4py") is not None and find_mpirun() is not None}


def launched(engine: str, ranks: int, *program: str) -> subprocess.CompletedProcess[str]:
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    env = {k: v for k, v in os.environ.items() if not k.startswith("TTMESH_")}
    return subprocess.run(
        [sys.executable, "-m", "ttmesh.cli.launch", "-n", str(ranks), "--engine", engine, *program],
        capture_output=True,
        text=True,
        timeout=300,
        env=env | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("engine", engines.names())
def test_the_engine_keeps_the_contract(engine: str, ranks: int) -> None:
    done = launched(engine, ranks, str(HERE / "ranks_contract.py"))

    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(ranks):
        assert f"[{rank}] rank {rank} of {ranks} kept the contract of {engine}" in done.stdout


# Three ranks where it matters that several survivors agree; starting a rank costs a second of torch.
FAULTS = [
    ("kill", 3, r"rank 2 died, stopped or was cut off during all_reduce on group 'axis1' of ranks \[0, 1, 2\]"),
    ("stop-first", 3, "rank 0 died, stopped or was cut off during all_reduce on group 'axis1'"),
    pytest.param(
        "stop-message", 2, "rank 1 died, stopped or was cut off during recv from rank 1", marks=pytest.mark.slow
    ),
    pytest.param(
        "elsewhere", 2, "rank 1 alive but not in all_reduce .*rank 1: barrier #2 on group", marks=pytest.mark.slow
    ),
    pytest.param("abort", 2, "rank 1 aborted: out of paper; this ended all_reduce on group", marks=pytest.mark.slow),
    pytest.param("leave", 2, "rank 1 alive but not in all_reduce .*rank 1: it left", marks=pytest.mark.slow),
]
# A rank that ends starts the launcher's clock: the others may be slow to tell. A stopped one is ended by it, when they have.
GRACE = {"kill": "120", "stop-first": "4", "stop-message": "4", "elsewhere": "4", "abort": "120", "leave": "120"}


@pytest.fixture(scope="module")
def fault_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]]]:
    """The runs of the tests below, two at a time: most of their time the ranks wait for one that is gone."""
    chosen = [
        item.callspec.params for item in request.session.items if "fault_runs" in getattr(item, "fixturenames", ())
    ]
    with ThreadPoolExecutor(2) as pool:
        runs = {}
        for case in chosen:
            engine, fault, folder = case["engine"], case["fault"], tmp_path_factory.mktemp("fault")
            program = ["--grace", GRACE[fault], str(HERE / "ranks_faults.py"), fault, "3", str(folder)]
            runs[engine, fault] = pool.submit(launched, engine, case["ranks"], *program)
        yield runs
        for run in runs.values():
            run.cancel()


@pytest.mark.parametrize(("fault", "ranks", "words"), FAULTS)
@pytest.mark.parametrize("engine", engines.names())
def test_the_others_name_the_rank_the_operation_and_the_group(
    engine: str,
    fault: str,
    ranks: int,
    words: str,
    fault_runs: dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]],
) -> None:
    done = fault_runs[engine, fault].result()

    victim = 0 if "first" in fault else ranks - 1
    for rank in set(range(ranks)) - {victim}:
        said = re.search(rf"\[{rank}\] rank {rank} was told: (.*)", done.stdout)
        assert said, done.stdout + done.stderr
        assert re.search(words, said.group(1)), said.group(1)
    assert done.stderr.count("first cause") == 1
    assert done.returncode != 0
