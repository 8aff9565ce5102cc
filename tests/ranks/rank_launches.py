"""Programs on real ranks, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ttmesh.launch.commands import find_mpirun

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
NEEDS = {"mpi": find_spec("mpi4py") is not None and find_mpirun() is not None}


def environment(**settings: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TTMESH_")}
    return clean | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | settings


def launched(engine: str, ranks: int, *program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program on so many ranks, to its end."""
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    return subprocess.run(
        [sys.executable, "-m", "ttmesh.cli.launch", "-n", str(ranks), "--engine", engine, *program],
        capture_output=True, text=True, timeout=180, env=environment(**settings),
    )  # fmt: skip
