"""Circular buffers of joined rows equal those that TT-NN 0.81.1 prints in graph captures on an n150."""

from __future__ import annotations

import pytest

import ttmesh
import ttmesh.ttnn as ttnn


@pytest.mark.parametrize(
    ("widths", "printed"),
    [((128, 512), 5120), ((40000, 40488), 321952), ((151936, 32), 607872), ((200000, 100000), 1200000)],
)
def test_rows_of_more_than_a_quarter_of_l1_are_joined_one_at_a_time(widths: tuple[int, int], printed: int) -> None:
    assert _concat([(2, width) for width in widths], ttnn.ROW_MAJOR_LAYOUT) == printed


def test_tiles_of_more_rows_than_l1_holds_are_joined_in_parts() -> None:
    assert _concat([(348384, 3), (348384, 1)], ttnn.TILE_LAYOUT) < 1393472


def _concat(shapes: list[tuple[int, int]], layout: ttnn.Layout) -> int:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        memory = ttnn.DRAM_MEMORY_CONFIG
        ttnn.concat([ttnn.empty(shape, ttnn.int32, layout, mesh, memory) for shape in shapes], dim=1)
        ttnn.close_mesh_device(mesh)
    assert run.report is not None
    return run.report.circular_buffer_bytes
