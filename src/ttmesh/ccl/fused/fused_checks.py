"""What TT-NN refuses of collectives that are fused with another operation, in its words."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.errors import require
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

GATHERING_CORES = 60
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


def check_concat_buffers(buffer: Tensor, config: MemoryConfig) -> None:
    """Raise if all_gather_concat's result or its buffer has no shards."""
    require(config.is_sharded(), "bad optional access: a result without shards", "shards", "Change memory_config.")
    require(
        buffer.memory_config().is_sharded(),
        "std::bad_alloc: the buffer of all_gather_concat has no shards",
        "a buffer sharded by height",
        "Shard it with ttnn.to_memory_config.",
    )


def check_gathered_shards(tensor: Tensor, config: MemoryConfig | None) -> None:
    """Raise if what llama_all_gather_matmul_async gathers does not fit the 60 cores that it is sent to."""
    shard = None if config is None else config.shard_spec
    require(
        shard is not None,
        "bad optional access: ag_memory_config has no shards",
        "the shards of the gathered tensor",
        "Pass ag_memory_config, sharded by width.",
    )
    assert shard is not None, "required above"
    count = ceil(tensor.padded_shape[-1] * GATHERING_CORES / shard.shape[1])
    require(
        count <= GATHERING_CORES,
        f"Number of shards along width {count} must not exceed number of cores {GATHERING_CORES}",
        f"shards {tensor.padded_shape[-1]} wide or wider",
        "Change ag_memory_config.",
    )


def check_head_cores(users: int, config: MemoryConfig | None) -> None:
    """Raise if the users' queries, keys and values do not get separate cores, one after the other."""
    if config is None or config.shard_spec is None:
        return
    cores = config.shard_spec.grid.num_cores()
    for wanted in (users + 1, 2 * users + 1):
        require(
            wanted <= cores,
            f"Target number of cores {wanted} is greater than total available cores {cores}",
            f"{2 * users + 1} cores or more",
            "Enlarge the grid of final_memory_config, or pass slice_size.",
        )


def check_worker_semaphores(count: int, workers: int | None) -> None:
    """Raise for fewer semaphores than two directions and their workers need: each worker tells the matmul by one."""
    require(
        workers != 0,
        "At least one type of channel must be configured",
        "one worker per link or more",
        "Change num_workers_per_link.",
    )
    needed = 2 + 2 * (workers or 1)
    require(
        count >= needed,
        f"vector::_M_range_check: __n (which is {max(count, 2)}) >= this->size() (which is {count})",
        f"{needed} semaphores",
        "Create them with ttnn.create_global_semaphore.",
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
