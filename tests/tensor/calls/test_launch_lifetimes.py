"""What operations keep alive: nothing. Memory and host storage go with the last tensor, without the collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh():
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
    yield opened
    ttnn.close_mesh_device(opened)


def on(mesh, *shape: int):
    return ttnn.from_torch(torch.randn(*shape), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


CALLS = {
    "one input": lambda mesh: ttnn.relu(on(mesh, 32, 32)),
    "two inputs": lambda mesh: ttnn.add(on(mesh, 32, 32), on(mesh, 32, 32)),
    "three inputs": lambda mesh: ttnn.where(on(mesh, 32, 32), on(mesh, 32, 32), on(mesh, 32, 32)),
    "a scalar": lambda mesh: ttnn.multiply(on(mesh, 32, 32), 0.5),
    "a list": lambda mesh: ttnn.concat([on(mesh, 32, 32), on(mesh, 32, 32)], dim=0),
    "several results": lambda mesh: ttnn.topk(on(mesh, 1, 1, 32, 64), 32, dim=-1),
    "an output tensor": lambda mesh: ttnn.add(on(mesh, 32, 32), on(mesh, 32, 32), output_tensor=on(mesh, 32, 32)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_keeps_none_of_its_tensors(mesh, name: str) -> None:
    CALLS[name](mesh)  # the first call may load modules of torch, which leaves cycles of its own
    gc.collect()
    gc.disable()
    try:
        CALLS[name](mesh)
        assert [cell.label for cell in mesh.heap.cells()] == []
    finally:
        gc.enable()


def test_a_mesh_whose_tensors_are_gone_closes_itself() -> None:
    gc.collect()
    gc.disable()
    try:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
        ref = weakref.ref(mesh)
        for call in CALLS.values():
            call(mesh)
        del mesh
        assert ref() is None
    finally:
        gc.enable()
