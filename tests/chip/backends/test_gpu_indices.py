"""On a GPU an index out of range is an error at the next wait, and the process goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.chip.backends.index_guard import IndexGuard

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@needs_gpu
def test_a_bad_index_is_reported_and_does_not_poison_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_BACKEND", "cuda")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    x = ttnn.from_torch(torch.randn(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    bad = ttnn.from_torch(torch.full((32, 32), 40), dtype=ttnn.uint32, layout=ttnn.TILE_LAYOUT, device=mesh)
    good = ttnn.from_torch(torch.full((32, 32), 3), dtype=ttnn.uint32, layout=ttnn.TILE_LAYOUT, device=mesh)

    result = ttnn.gather(x, 1, bad)
    with pytest.raises((IndexError, RuntimeError), match="index 40 is out of bounds for dimension 3 with size 32"):
        ttnn.to_torch(ttnn.get_device_tensors(result)[0])
    ttnn.gather(x, 1, bad)
    with pytest.raises((IndexError, RuntimeError), match="index 40 is out of bounds"):
        ttnn.synchronize_device(mesh)

    after = ttnn.to_torch(ttnn.get_device_tensors(ttnn.gather(x, 1, good))[0])
    assert torch.equal(after, ttnn.to_torch(ttnn.get_device_tensors(x)[0])[:, 3:4].expand(32, 32))
    ttnn.close_mesh_device(mesh)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i],
        lambda x, i: x[i * 0, :, i],
        lambda x, i: x.index_put((i * 0, i), x.new_ones(2, 4)),
        lambda x, i: torch.gather(x, 2, i.reshape(1, 1, 2)),
        lambda x, i: torch.scatter(x, 1, i.reshape(1, 2, 1), x.new_ones(1, 2, 1)),
    ],
)
@pytest.mark.parametrize("bad", [4, 99, -9])
def test_the_guard_s_error_is_torch_s_own(call, bad: int) -> None:
    x, index = torch.zeros(4, 4, 4), torch.tensor([1, bad])
    with pytest.raises((IndexError, RuntimeError)) as plain:
        call(x, index)
    if torch.cuda.is_available():
        x, index = x.cuda(), index.cuda()
    guard = IndexGuard()

    guard.run(call)(x, index)

    with pytest.raises(plain.type) as guarded:
        guard.check()
    assert str(guarded.value) == str(plain.value)
    guard.check()  # reported once


def test_the_guard_does_not_import_the_compiler_of_torch() -> None:
    program = (
        "import sys, torch\n"
        "from ttmesh.chip.backends.index_guard import IndexGuard, uses_indices\n"
        "call = lambda: torch.arange(3)[torch.tensor([0, 2])]\n"
        "print(uses_indices(call), IndexGuard().run(call)().tolist(), 'torch._dynamo' in sys.modules)\n"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)

    assert found.stdout.split() == ["True", "[0,", "2]", "False"], found.stderr
