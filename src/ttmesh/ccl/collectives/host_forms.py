"""Collectives as ttmesh's own names take them, where they differ from TT-NN's."""

from __future__ import annotations

from ttmesh.ccl.collectives.reduce_gather import gather
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


def all_gather(
    tensor: Tensor,
    dim: int = 0,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """All parts along an axis joined along a dim, the first one unless told otherwise (seed 003)."""
    return gather(
        "ttmesh.all_gather", tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config, mode=mode,
        algorithm=algorithm,
    )  # fmt: skip
