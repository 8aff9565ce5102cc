"""Ranks that divide a mesh get the results of one process: the same program with 1, 2 and 4 of them on both engines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_launches import HERE, environment, launched

PROGRAM = str(HERE / "big_mesh.py")
DESCRIPTOR = "mesh_descriptors {\n  device_topology { dims: [ 2, 8 ] }\n  host_topology { dims: [ 2, 2 ] }\n}\n"
# bfloat16 rounds once more or less in the last of its 8 bits; float32 sums of a few terms differ in the last of 24.
TOLERANCES = {"BFLOAT16": 2**-6, "BFLOAT8_B": 2**-5, "rms": 2**-6}

Results = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, PROGRAM, str(folder)], check=True, env=environment(), timeout=180)
    found: Results = torch.load(folder / "rank0.pt")
    return found


@pytest.mark.parametrize(
    ("engine", "ranks", "settings", "described"),
    [
        pytest.param("mpi", 2, {}, False, id="two ranks of mpi", marks=pytest.mark.deep),
        pytest.param("torchdist", 2, {"TTMESH_SCHEDULE": "async"}, False, id="two ranks of torchdist, async queues"),
        pytest.param("mpi", 4, {"TTMESH_ORDERED": "1"}, True, id="four ranks of mpi in a grid, ordered sums"),
        pytest.param("torchdist", 4, {}, False, id="four ranks of torchdist", marks=pytest.mark.deep),
    ],
)
def test_ranks_get_the_results_of_one_process(
    engine: str, ranks: int, settings: dict[str, str], described: bool, alone: Results, tmp_path: Path
) -> None:
    more = []
    if described:
        (tmp_path / "mesh.textproto").write_text(DESCRIPTOR)
        more.append(str(tmp_path / "mesh.textproto"))
    done = launched(engine, ranks, PROGRAM, str(tmp_path), *more, **settings)

    assert done.returncode == 0, done.stdout + done.stderr
    seen = set[str]()
    for rank in range(ranks):
        found: Results = torch.load(tmp_path / f"rank{rank}.pt")
        seen |= found.keys()
        wrong = [name for name, values in found.items() if not agrees(name, values, alone[name], settings)]
        assert not wrong, f"rank {rank}"
    assert seen == alone.keys(), "every result is on some rank"


BINDINGS = """
mesh_graph_desc_path: {folder}/mesh.textproto
rank_bindings:
  - {{rank: 0, mesh_id: 0, mesh_host_rank: 0, env_overrides: {{TT_VISIBLE_DEVICES: "0,1"}}}}
  - {{rank: 1, mesh_id: 0, mesh_host_rank: 1, env_overrides: {{TT_VISIBLE_DEVICES: "2,3"}}}}
"""
PARTITIONED = """
import torch, ttmesh, ttmesh.ttnn as ttnn
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
parts = ttnn.from_torch(torch.arange(8.0), device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, 0))
whole = ttnn.to_torch(parts, mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0)).tolist()
print(ttnn.get_num_devices(), "of", mesh.get_num_devices(), mesh.get_device_ids(), whole, flush=True)
"""


def test_rank_bindings_give_each_rank_its_block_of_a_t3000(tmp_path: Path) -> None:
    (tmp_path / "mesh.textproto").write_text("host_topology { dims: [ 1, 2 ] }")
    (tmp_path / "ranks.yaml").write_text(BINDINGS.format(folder=tmp_path))
    (tmp_path / "program.py").write_text(PARTITIONED)

    done = subprocess.run(
        [sys.executable, "-m", "ttmesh.cli.launch", "--rank-binding", str(tmp_path / "ranks.yaml"), "--engine",
         "torchdist", str(tmp_path / "program.py")],
        capture_output=True, text=True, timeout=300, env=environment(TTMESH_RUNTIME_DIR=str(tmp_path)),
    )  # fmt: skip

    for rank, chips in enumerate(("4, 0, 5, 1", "3, 7, 2, 6")):
        said = rf"\[{rank}\] 4 of 8 \[{chips}\] \[0.0, .*7.0\]"
        assert re.search(said, done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("train_gpt.py", "--steps 3"), pytest.param("train_stages.py", "--epochs 1", marks=pytest.mark.deep)],
)
def test_the_training_examples_reach_the_same_loss_on_ranks(name: str, words: str, tmp_path: Path) -> None:
    example = str(HERE.parents[1] / "examples" / name)
    more = [*words.split(), "--out", str(tmp_path)]

    alone = subprocess.run(
        [sys.executable, example, *more], capture_output=True, text=True, timeout=180, env=environment(TERM="dumb")
    )
    ranks = launched("torchdist", 2, example, *more)

    assert ranks.returncode == 0, ranks.stderr
    expected = re.search(r"loss [\d.]+ → [\d.]+", alone.stdout)
    assert expected, alone.stdout + alone.stderr
    assert f"[0] {expected[0]}" in ranks.stdout
    assert "[1]" not in ranks.stdout, "the first rank speaks for all"


def test_a_split_job_has_meshes_and_numbers_per_context(tmp_path: Path) -> None:
    (tmp_path / "mesh.textproto").write_text("")
    ranks = "".join(f"\n  - {{rank: {r}, mesh_id: 0, mesh_host_rank: {r}}}" for r in range(2))
    (tmp_path / "half.yaml").write_text(f"mesh_graph_desc_path: {tmp_path}/mesh.textproto\nrank_bindings:{ranks}\n")
    (tmp_path / "both.yaml").write_text("subcontext_id_to_rank_bindings: {0: half.yaml, 1: half.yaml}\n")

    done = subprocess.run(
        [sys.executable, "-m", "ttmesh.cli.launch", "--rank-bindings-mapping", str(tmp_path / "both.yaml"), "--engine",
         "torchdist", str(HERE / "split_job.py")],
        capture_output=True, text=True, timeout=180, env=environment(TTMESH_TIMEOUT_S="60"),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    for rank in range(4):
        assert f"[{rank}] rank {rank % 2} of context {rank // 2} is content" in done.stdout


def agrees(name: str, values: torch.Tensor, expected: torch.Tensor, settings: dict[str, str]) -> bool:
    """To the bit, except where floats are added in another order: over ranks, or by torch's matmul for fewer lanes."""
    free_order = "mlp" in name or (name.startswith("sum") and "TTMESH_ORDERED" not in settings)
    if not free_order:
        return torch.equal(values, expected)
    tolerance = next((bound for word, bound in TOLERANCES.items() if word in name), 1e-5)
    return torch.allclose(values.float(), expected.float(), rtol=tolerance, atol=tolerance)
