"""What the leak check counts: buffers of the program, not what belongs to the mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.testing.memory_watch import leaks

DEVICES = 4
TILE, ROWS = ttnn.TILE_LAYOUT, ttnn.ROW_MAJOR_LAYOUT


@pytest.fixture
def mesh() -> Iterator[Any]:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, DEVICES))
    yield mesh
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def ones(mesh: Any, *shape: int, dtype: Any = ttnn.bfloat16, layout: Any = TILE) -> Any:
    return ttnn.from_torch(torch.ones(shape), dtype=dtype, layout=layout, device=mesh)


KEEP_MEMORY: dict[str, Callable[[Any], Any]] = {
    "all_gather": lambda m: ttnn.all_gather(ones(m, 1, 1, 32, 128), dim=3),
    "reduce_scatter": lambda m: ttnn.reduce_scatter(ones(m, 1, 1, 32, 128), dim=3),
    "all_reduce": lambda m: ttnn.all_reduce(ones(m, 1, 1, 32, 128)),
    "all_broadcast": lambda m: ttnn.all_broadcast(ones(m, 1, 1, 32, 32)),
    "broadcast": lambda m: ttnn.broadcast(ones(m, 1, 1, 32, 32), ttnn.MeshCoordinate(0, 0)),
    "reshape": lambda m: ttnn.reshape(ones(m, 1, 1, 32, 60), (1, 1, 60, 32)),  # its map of tiles
}


@pytest.mark.parametrize("name", KEEP_MEMORY)
def test_what_cached_programs_keep_is_no_leak(mesh: Any, name: str) -> None:
    KEEP_MEMORY[name](mesh)

    assert mesh.program_cache.buffers, "this call is here because its program keeps memory"
    assert leaks(mesh) == []


def test_a_tensor_that_is_still_held_is_one(mesh: Any) -> None:
    held = ttnn.all_gather(ones(mesh, 1, 1, 32, 128), dim=3)

    assert leaks(mesh) == [f"ttnn.all_gather: 32768 B of DRAM at {held.buffer_address()}"]
