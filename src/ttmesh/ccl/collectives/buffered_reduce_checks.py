"""What TT-NN's all_reduce through a buffer of the caller's refuses, in its order."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import BufferType, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.link_limits import check_link_number
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

SHARD_FIX = "Convert it with ttnn.to_memory_config first."


def check_buffered_reduce(request: Request, buffer: Tensor, n: int) -> None:
    """Raise for tensors that are not sharded by width, and for a buffer that cannot hold what all chips send."""
    tensor, held = request.tensor, buffer.memory_config()
    config: MemoryConfig = request["memory_config"] or tensor.memory_config()
    in_dram = tensor.memory_config().buffer_type is BufferType.DRAM
    require(
        request.mesh.arch().name != "BLACKHOLE" or not in_dram,
        "This kernel does not support blackhole dram as it does not use an accessor to get the noc address as needed by "
        "the fabric api",
        "a tensor in L1",
        "Move it with ttnn.to_memory_config first.",
    )
    require(
        n % 2 == 0,
        "AllReduceAsync currently only supports even number of blocks in the reduction kernel.",
        "an axis of an even number of chips",
        "Choose another cluster_axis.",
    )
    check_link_number("", request["num_links"])
    for role, found in (
        ("for input tensor", tensor.memory_config()),
        ("for buffer tensor ", held),
        ("for output tensor ", config),
    ):
        require(
            found.memory_layout is TensorMemoryLayout.WIDTH_SHARDED,
            f"Unsupported memory layout {role}TensorMemoryLayout::{found.memory_layout.name}.",
            "WIDTH_SHARDED",
            SHARD_FIX,
        )
    wanted, own = config.shard_spec, held.shard_spec
    if wanted is None or own is None:
        return
    require(
        own.grid.contains(wanted.grid),
        "The output tensor must reside on a subset of the cores of the buffer tensor",
        f"cores of {own.grid!r}",
        "Change the memory config of the output, or the buffer.",
    )
    need, room = prod(wanted.shape) * n, prod(own.shape)
    require(
        need <= room,
        "The shard size for the buffer must be large enough to hold the intermediate tensor. Require at least "
        f"{need} but has {room}",
        f"shards of {need} elements or more",
        "Allocate a larger buffer.",
    )
