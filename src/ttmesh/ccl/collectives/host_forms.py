"""Collectives under ttmesh's own names whose parameters differ from TT-NN's."""

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
    """All shards along an axis concatenated along a dim, by default the first one."""
    return gather(
        "ttmesh.all_gather", tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config, mode=mode,
        algorithm=algorithm,
    )  # fmt: skip
