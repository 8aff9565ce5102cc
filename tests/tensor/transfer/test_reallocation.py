"""Which device programs move a tensor to a new address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield opened
    ttnn.close_mesh_device(opened)


@pytest.mark.parametrize("memory", [ttnn.L1_MEMORY_CONFIG, ttnn.DRAM_MEMORY_CONFIG], ids=["L1", "DRAM"])
def test_a_move_onto_part_of_itself_is_another_program_than_a_move_elsewhere(
    mesh: ttnn.MeshDevice, memory: ttnn.MemoryConfig
) -> None:
    def move_past(*freed: int) -> int:
        values = torch.randn(1, 1, 640, 640).bfloat16()
        options = {"dtype": ttnn.bfloat16, "layout": ttnn.TILE_LAYOUT, "device": mesh, "memory_config": memory}
        before = ttnn.from_torch(torch.ones(freed), **options)
        tensor = ttnn.from_torch(values, **options)
        programs = mesh.num_program_cache_entries()
        before.deallocate()
        moved = ttnn.move(tensor)
        assert torch.equal(ttnn.to_torch(moved), values)
        return mesh.num_program_cache_entries() - programs

    over_itself, elsewhere = (1, 1, 32, 32), (1, 1, 640, 640)

    assert [move_past(*freed) for freed in (over_itself, over_itself, elsewhere, elsewhere)] == [1, 0, 1, 0]
