"""What ranks compare of their allocations: results, but no memory that a call takes and gives back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.base.records import Allocated
from ttmesh.base.signals import signals
from ttmesh.mesh.allocation.allocation_digest import Digest


@pytest.fixture
def ring() -> Iterator[ttnn.MeshDevice]:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    yield mesh
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.mark.parametrize("tracked", [False, True], ids=["not tracked", "tracked"])
def test_ranks_compare_the_results_of_composites_whether_or_not_one_is_tracked(
    ring: ttnn.MeshDevice, tracked: bool
) -> None:
    x = ttnn.ones((1, 256), dtype=ttnn.float32, device=ring)
    ttnn.all_reduce(x, cluster_axis=1)  # takes its semaphores, which stay
    records: list[object] = []
    stop = signals.listen(records.append) if tracked else None
    ring.heap.digest = digest = Digest()

    results = [ttnn.all_reduce(x, cluster_axis=1) for _ in range(3)]

    entries = [(address, label) for _, address, _, label in digest._fresh]
    assert entries == [(result.buffer_address(), "ttnn.all_reduce") for result in results]
    if stop is not None:
        stop()
        assert sum(isinstance(record, Allocated) for record in records) > 5 * len(results)  # temporaries are tracked
