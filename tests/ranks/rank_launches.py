"""Programs on real ranks, as users start them."""

from __future__ import annotations

import json
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
    # Ideally, as in tests/conftest.py: ranks are compared with torch.
    return clean | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "TTMESH_NUMERICS": "ideal"} | settings


def launched(engine: str, ranks: int, *program: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A program on so many ranks, to its end."""
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    return _run(["-n", str(ranks), "--engine", engine, *program], settings)


def bound(
    engine: str, folder: Path, mesh_ids: list[int], *program: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """A program on ranks that belong to the meshes given, one per rank, by a rank-binding file."""
    if not NEEDS.get(engine, True):
        pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
    ranks = [
        {"rank": rank, "mesh_id": mesh, "mesh_host_rank": mesh_ids[:rank].count(mesh)}
        for rank, mesh in enumerate(mesh_ids)
    ]
    (folder / "meshes.textproto").write_text("")
    file = folder / "bindings.yaml"
    file.write_text(json.dumps({"rank_bindings": ranks, "mesh_graph_desc_path": str(folder / "meshes.textproto")}))
    return _run(["--rank-binding", str(file), "--engine", engine, *program], settings)


def _run(words: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ttmesh.cli.launch", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment(**settings))
