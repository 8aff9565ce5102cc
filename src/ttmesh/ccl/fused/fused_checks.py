"""What TT-NN refuses of collectives that are fused with another operation, in its words."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.errors import require
from ttmesh.tensor.tensor import Tensor

# Cores of a Llama's heads on a galaxy, the only ones that all_gather_concat takes: first and last core of the ranges.
CONCAT_CORES = (((1, 0), (3, 1)), ((1, 2), (2, 2)))


def check_concat_cores(tensor: Tensor) -> None:
    """Raise if all_gather_concat's heads are not on the cores that its kernel is written for."""
    shard = tensor.memory_config().shard_spec
    require(
        shard is not None,
        "bad optional access: a tensor without shards",
        "heads sharded by height",
        "Shard it with ttnn.to_memory_config.",
    )
    assert shard is not None, "required above"
    require(
        _list_cores(shard.grid) == _list_cores(CoreRangeSet([CoreRange(*ends) for ends in CONCAT_CORES])),
        "Unsupported input core ranges!",
        f"{CONCAT_CORES}",
        "Shard the heads on these cores.",
    )


def check_sender_groups(grid: Sequence[int], links: int, workers: int, *, transposed: bool) -> None:
    """Raise if the cores that send the first matrix cannot be divided among links and their workers."""
    senders = grid[0] if transposed else grid[1]
    require(
        senders == links * workers,
        f"The in0 sender axis ({senders}) must form exactly num_links ({links}) groups of num_workers_per_link ({workers})",
        f"num_links * num_workers_per_link = {senders}",
        "Change num_workers_per_link or the config's grid.",
    )


def _list_cores(cores: CoreRangeSet) -> set[tuple[int, int]]:
    return {
        (x, y)
        for part in cores.ranges()
        for x in range(part.start.x, part.end.x + 1)
        for y in range(part.start.y, part.end.y + 1)
    }
