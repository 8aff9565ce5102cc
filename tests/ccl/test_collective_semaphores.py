"""Semaphores that the programs of collectives keep in L1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ccl_meshes import opened

import ttmesh.ttnn as ttnn

Call = Callable[[ttnn.Tensor], Any]
SENDER, RECEIVER = ttnn.MeshCoordinate(0, 0), ttnn.MeshCoordinate(0, 1)

PER_PROGRAM: dict[str, tuple[int, Call]] = {
    "all_gather": (2, lambda x: ttnn.all_gather(x, dim=3)),
    "all_broadcast": (2, ttnn.all_broadcast),
    "broadcast": (2, lambda x: ttnn.broadcast(x, SENDER)),
    "reduce_scatter": (4, lambda x: ttnn.reduce_scatter(x, dim=3)),
    "all_reduce": (6, ttnn.all_reduce),
    "point_to_point": (1, lambda x: ttnn.point_to_point(x, SENDER, RECEIVER)),
}


def _tensor(mesh: ttnn.MeshDevice, width: int = 512) -> ttnn.Tensor:
    return ttnn.from_torch(torch.zeros(1, 1, 32, width), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)


def _sizes(mesh: ttnn.MeshDevice, kind: ttnn.BufferType) -> list[int]:
    return [cell.bank_bytes for cell in mesh.heap.cells() if cell.buffer_type is kind]


@pytest.mark.parametrize("name", PER_PROGRAM)
def test_a_compiled_collective_keeps_its_semaphores_in_l1(name: str) -> None:
    count, call = PER_PROGRAM[name]
    with opened((1, 8)) as mesh:
        x = _tensor(mesh)

        call(x)
        call(x)

        assert len(_sizes(mesh, ttnn.BufferType.L1)) == count
        call(_tensor(mesh, 1024))
        assert len(_sizes(mesh, ttnn.BufferType.L1)) == 2 * count
        mesh.clear_program_cache()
        assert _sizes(mesh, ttnn.BufferType.L1) == []


def test_semaphores_lie_behind_the_result_in_l1() -> None:
    with opened((1, 8)) as mesh:
        made = ttnn.all_gather(_tensor(mesh), dim=3, memory_config=ttnn.L1_MEMORY_CONFIG)

        below = sorted(
            made.buffer_address() - cell.address for cell in mesh.heap.cells() if cell.buffer_type.name == "L1"
        )
        assert below == [0, 32, 64]


def test_all_gather_uses_l1_small_where_the_mesh_has_it() -> None:
    with opened((1, 8), l1_small_size=512) as mesh:
        ttnn.all_gather(_tensor(mesh), dim=3)
        ttnn.reduce_scatter(_tensor(mesh), dim=3)

        assert len(_sizes(mesh, ttnn.BufferType.L1_SMALL)) == 2
        assert len(_sizes(mesh, ttnn.BufferType.L1)) == 4


@pytest.mark.parametrize("name", ["reduce_scatter", "all_broadcast"])
def test_semaphores_go_to_l1_small_on_request(name: str) -> None:
    call = {
        "reduce_scatter": lambda x: ttnn.reduce_scatter(x, dim=3, use_l1_small_for_semaphores=True),
        "all_broadcast": lambda x: ttnn.all_broadcast(x, use_l1_small_for_semaphores=True),
    }[name]
    with opened((1, 8), l1_small_size=512) as mesh:
        call(_tensor(mesh))

        assert len(_sizes(mesh, ttnn.BufferType.L1_SMALL)) == PER_PROGRAM[name][0]
        assert _sizes(mesh, ttnn.BufferType.L1) == []
    with opened((1, 8)) as mesh, pytest.raises(RuntimeError, match="The L1_SMALL region is 0 B because it is reserved"):
        call(_tensor(mesh))


def test_collectives_over_the_host_have_no_semaphores() -> None:
    with opened((1, 8)) as mesh:
        ttnn.all_reduce(_tensor(mesh), mode="host")

        assert _sizes(mesh, ttnn.BufferType.L1) == []


def test_a_gather_inside_tiles_lies_in_dram() -> None:
    with opened((1, 8)) as mesh:
        made = ttnn.all_gather(_tensor(mesh, 40), dim=3, memory_config=ttnn.L1_MEMORY_CONFIG)

        assert made.memory_config().buffer_type is ttnn.BufferType.DRAM
