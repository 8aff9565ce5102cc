"""Collectives over the chips of one row, listed where there are several (CHIPS=8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ttnn

from buffer_calls.listed_call import CHIPS, Call, T, call, device

SHAPES = ((1, 1, 32, 256), (1, 1, 128, 512), (2, 2, 64, 2048), (1, 1, 32, 64), (1, 1, 40, 104), (1, 1, 32, 8192))
SHARDS = (
    ((1, 1, 32, 1024), "width@1x8"), ((1, 1, 32, 2048), "width@4x8"), ((1, 1, 1024, 128), "height@1x8"),
    ((1, 1, 512, 512), "block@4x4"), ((1, 1, 32, 4096), "width@2x8"),
)  # fmt: skip
SOURCE = ttnn.MeshCoordinate(0, 1)

Run = Callable[..., Any]


def _semaphores(count: int) -> list[Any]:
    size = device().compute_with_storage_grid_size()
    cores = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(size.x - 1, size.y - 1))])
    return [ttnn.create_global_semaphore(device(), cores, 0) for _ in range(count)]


def _async(name: str, semaphores: int, a: Any, dim: int) -> Any:
    return getattr(ttnn.experimental, name)(
        a, dim=dim, multi_device_global_semaphore=_semaphores(semaphores), num_links=1, topology=ttnn.Topology.Linear,
        memory_config=ttnn.DRAM_MEMORY_CONFIG,
    )  # fmt: skip


ALONG: dict[str, Run] = {
    "all_gather": lambda a, dim: ttnn.all_gather(a, dim=dim, memory_config=ttnn.DRAM_MEMORY_CONFIG),
    "all_gather_async": lambda a, dim: _async("all_gather_async", 2, a, dim),
    "reduce_scatter": lambda a, dim: ttnn.reduce_scatter(a, dim=dim, memory_config=ttnn.DRAM_MEMORY_CONFIG),
    "reduce_scatter_minimal_async": lambda a, dim: _async("reduce_scatter_minimal_async", 3, a, dim),
}
WHOLE: dict[str, Run] = {
    "all_reduce": lambda a: ttnn.all_reduce(a, memory_config=ttnn.DRAM_MEMORY_CONFIG),
    "all_broadcast": lambda a: ttnn.all_broadcast(a),
    "broadcast": lambda a: ttnn.broadcast(a, SOURCE),
    "mesh_partition": lambda a: ttnn.mesh_partition(a, dim=3, cluster_axis=1),
    "point_to_point": lambda a: ttnn.point_to_point(
        a, ttnn.MeshCoordinate(0, 0), SOURCE, topology=ttnn.Topology.Linear
    ),
}


def collectives() -> Iterator[Call]:
    if CHIPS == 1:
        return
    tensors = [
        T(shape, dtype, layout)
        for shape in SHAPES
        for layout, dtypes in (("T", ("b16", "f32", "b8")), ("R", ("b16", "f32")))
        for dtype in dtypes
    ]
    tensors += [T(shape, dtype, "T", memory) for shape, memory in SHARDS for dtype in ("b16", "b8")]
    for tensor in tensors:
        for name, run in ALONG.items():
            for dim in (3, 2, 0) if tensor.memory == "dram" else (3,):
                yield call("collective", name, tensor, note=f"{dim}", run=lambda a, run=run, dim=dim: run(a, dim))
        for name, run in WHOLE.items():
            yield call("collective", name, tensor, run=run)
