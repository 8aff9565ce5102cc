"""What a program waits for before its first result."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

import torch

import ttmesh.ttnn as ttnn

before = set(sys.modules)
ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
x = ttnn.from_torch(torch.ones(1, 1, 32, 32), device=mesh, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16,
                    mesh_mapper=ttnn.ReplicateTensorToMesh(mesh))
y = ttnn.softmax(ttnn.gelu(ttnn.matmul(ttnn.add(x, 1.0), x) * x), dim=-1)
y = ttnn.concat([ttnn.where(ttnn.gt(x, y), x, y), ttnn.mean(x, dim=-1, keepdim=True)], dim=-1)
y = ttnn.all_gather(y, dim=-1, cluster_axis=1)
row = ttnn.from_torch(torch.ones(1, 32), device=mesh, layout=ttnn.TILE_LAYOUT, dtype=ttnn.bfloat16)
y = ttnn.linear(ttnn.layer_norm(ttnn.rms_norm(x, weight=row), weight=row, bias=row), x, bias=row, activation="silu")
y = ttnn.transformer.scaled_dot_product_attention(y, y, y, is_causal=True)
tokens = ttnn.from_torch(torch.zeros(1, 32, dtype=torch.int32), device=mesh, dtype=ttnn.uint32)
ttnn.embedding(tokens, ttnn.to_layout(ttnn.reshape(x, (32, 32)), ttnn.ROW_MAJOR_LAYOUT))
cache, user = ttnn.reshape(x, (1, 1, 32, 32)), ttnn.from_torch(torch.zeros(1, dtype=torch.int32), device=mesh)
ttnn.transformer.scaled_dot_product_attention_decode(cache, cache, cache, cur_pos_tensor=user)
ttnn.close_mesh_device(mesh)
print(sorted(name for name in set(sys.modules) - before if name in ("sympy", "torch._dynamo", "torch._inductor")))
"""


def test_the_first_operations_import_neither_torch_s_compiler_nor_its_library_for_symbols():
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)

    assert found.stdout.strip() == "[]", found.stderr


FORGETFUL = """
import ttmesh.ttnn

def name():
    return "deleted"

class Thing:
    def __del__(self):
        print(name())

thing = Thing()
file = open("file", "w")
file.write("written")
"""


def test_what_a_program_leaves_open_is_finished_at_its_end(tmp_path):
    found = subprocess.run([sys.executable, "-c", FORGETFUL], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert found.stdout == "deleted\n", found.stderr
    assert (tmp_path / "file").read_text() == "written"


FROZEN = "import gc, ttmesh.ttnn; print(gc.isenabled(), gc.get_freeze_count() > 10_000)"


def test_the_garbage_collector_passes_the_modules_by():
    """The search after the import would take 0.2 s. In a process of its own: tests that list all objects unfreeze them."""
    found = subprocess.run([sys.executable, "-c", FROZEN], capture_output=True, text=True, timeout=300)

    assert found.stdout == "True True\n", found.stderr
