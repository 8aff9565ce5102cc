"""torch's compiler is loaded by programs that compile, not by the first operation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

import torch

import ttmesh.ttnn as ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
y = ttnn.softmax(ttnn.relu(ttnn.matmul(x, x) + x) * 2.0, dim=-1)
y = ttnn.where(ttnn.gt(y, 0.0), ttnn.layer_norm(y), ttnn.all_reduce(y))
y = ttnn.concat([y, ttnn.gelu(ttnn.clamp(y, 0.0, 1.0))], dim=0)
ttnn.sum(ttnn.mean(ttnn.exp(y), dim=-1))
print("torch._dynamo" in sys.modules)


@torch.compile(backend="eager")
def compiled(values):
    return torch.relu(values) + 1


print(compiled(torch.ones(2)).tolist(), "torch._dynamo" in sys.modules)
print(ttnn.to_torch(ttnn.get_device_tensors(ttnn.add(x, 1.0))[7]).unique().tolist())
"""


def test_operations_do_not_load_the_compiler_and_it_works_when_the_program_does() -> None:
    root = Path(__file__).parents[3] / "src"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", "[2.0, 2.0] True", "[2.0]"]
