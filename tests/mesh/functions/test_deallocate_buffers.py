"""DeallocateBuffers frees all memory of a mesh without telling its tensors, as TT-NN 0.81.1 does."""

from __future__ import annotations

import torch

import ttmesh.ttnn as ttnn
from ttmesh import MeshDevice


def _put(mesh: MeshDevice) -> ttnn.Tensor:
    return ttnn.from_torch(torch.ones(64, 64), ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


def _held(mesh: MeshDevice) -> int:
    return ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


def test_memory_is_free_while_tensors_say_that_they_are_allocated(mesh: MeshDevice) -> None:
    before = _put(mesh)
    address = before.buffer_address()
    ttnn.device.DeallocateBuffers(mesh)
    assert _held(mesh) == 0
    assert before.is_allocated()
    assert _put(mesh).buffer_address() == address


def test_a_tensor_from_before_frees_what_took_its_address(mesh: MeshDevice) -> None:
    before = _put(mesh)
    ttnn.device.DeallocateBuffers(mesh)
    later = _put(mesh)
    ttnn.deallocate(before)
    assert (_held(mesh), later.is_allocated()) == (0, True)
    ttnn.deallocate(later)
    assert _held(mesh) == 0
    assert not later.is_allocated()
