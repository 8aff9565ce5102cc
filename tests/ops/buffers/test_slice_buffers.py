"""Circular buffers of long sliced rows: what TT-NN 0.81.1 prints in graph captures on an n150, and 16 B."""

from __future__ import annotations

import pytest

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.base.errors import OutOfMemoryError


@pytest.mark.parametrize(
    ("width", "printed"), [(130_000, 1_040_000), (180_000, 32768), (186_368, 16384), (258_112, 16384), (262_144, 32768)]
)
def test_rows_that_l1_does_not_hold_twice_are_sliced_in_parts(width: int, printed: int) -> None:
    assert _slice(width, start=0) == printed + 16


def test_rows_that_start_off_an_alignment_are_not_sliced_in_parts() -> None:
    with ttnn.manage_device(0) as device:
        rows = ttnn.empty([1, 2, 180_001], ttnn.float32, ttnn.ROW_MAJOR_LAYOUT, device, ttnn.DRAM_MEMORY_CONFIG)
        with pytest.raises(OutOfMemoryError, match="beyond max L1 size"):
            ttnn.slice(rows, [0, 1, 1], [1, 2, 180_001], [1, 1, 1])


def test_a_slice_that_starts_and_ends_anywhere_has_no_steps() -> None:
    assert _slice(1000, start=16) == 8000 + 16


def _slice(width: int, *, start: int) -> int:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        rows = ttnn.empty([1, 2, start + width], ttnn.float32, ttnn.ROW_MAJOR_LAYOUT, mesh, ttnn.DRAM_MEMORY_CONFIG)
        ttnn.slice(rows, [0, 1, start], [1, 2, start + width], [1, 1, 1])
        ttnn.close_mesh_device(mesh)
    assert run.report is not None
    return run.report.circular_buffer_bytes
