"""A user's program is checked by mypy against TT-NN's names, parameters and results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.ttnn import type_stubs

GOOD = """
import torch
import ttmesh.ttnn as ttnn

mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
y: ttnn.Tensor = ttnn.add(x, 2.0, memory_config=ttnn.L1_MEMORY_CONFIG)
z: ttnn.Tensor = ttnn.all_reduce(ttnn.matmul(x, y), cluster_axis=1)
w = ttnn.transformer.scaled_dot_product_attention(x, y, z, is_causal=True)
values = ttnn.to_torch(z, mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))
ttnn.close_mesh_device(mesh)
"""
SKIPPED = "[mypy-torch.*,numpy.*]\nfollow_imports = skip\n"  # their analysis takes minutes and is not the question
MISTAKES = """
import ttmesh.ttnn as ttnn


def wrong(x: ttnn.Tensor) -> None:
    ttnn.add(x, 2.0, memory_confg=ttnn.L1_MEMORY_CONFIG)
    ttnn.matmul(x, x, dtype="bfloat16")
    ttnn.softmaxx(x, dim=-1)
    count: int = ttnn.relu(x)
"""


def test_the_stubs_in_the_package_are_the_generated_ones() -> None:
    for name, text in type_stubs.stubs().items():
        assert (type_stubs.FOLDER / name).read_text() == text, f"{name} is out of date: run `make stubs`"


def test_mypy_accepts_a_right_program_and_names_each_mistake_of_a_wrong_one(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "wrong.py").write_text(MISTAKES)
    source = type_stubs.FOLDER.parent.parent
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {source}\n[mypy-ttmesh.*]\nignore_errors = True\n{SKIPPED}")

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert "good.py" not in done.stdout, done.stdout
    assert 'Unexpected keyword argument "memory_confg" for "add"; did you mean "memory_config"?' in done.stdout
    assert 'Argument "dtype" to "matmul" has incompatible type "str"' in done.stdout
    assert 'Module has no attribute "softmaxx"; maybe "softmax"?' in done.stdout
    assert 'expression has type "Tensor", variable has type "int"' in done.stdout
