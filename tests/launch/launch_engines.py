"""The engines that this machine can launch ranks with."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from ttmesh.launch.commands import find_mpirun

SOURCE = Path(__file__).parents[2] / "src"
HAS_MPI = find_spec("mpi4py") is not None and find_mpirun() is not None
ENGINES = [
    pytest.param("mpi", marks=pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpirun is not installed")),
    "torchdist",
]
