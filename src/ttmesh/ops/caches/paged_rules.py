"""What updates and fills of paged caches require, in the order of TT-NN's checks."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32
CACHE_FORMATS = (DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B, DataType.BFLOAT4_B)
INPUT_FORMATS = (DataType.FLOAT32, DataType.BFLOAT16)
RESHAPE, RESHARD = "Reshape it to [1, users, heads, head size].", "Shard it by height with one core per user."


def check_update(call: Call) -> None:
    """What updates require of one cache and its tokens: cache, batch, page table, positions, shards, format."""
    cache, x = call["cache"].spec, call["input"].spec
    if call["fused"] is None:
        require_layout(x, Layout.TILE, "Input tensor in non-fused update_cache must be tilized")
    require_layout(cache, Layout.TILE, "Cache tensor in update_cache must be tilized")
    listed = "FLOAT32, BFLOAT16, BFLOAT8_B, or BFLOAT4_B"
    require_dtype(
        cache, CACHE_FORMATS, f"Data type of cache tensor must be {listed} and is DataType::{cache.dtype.name}"
    )
    require(x.padded_shape[0] == 1, "Dim 0 of input tensor must be 1", "1", RESHAPE)
    require_interleaved(cache, "Only interleaved cache is supported")


def check_users(call: Call) -> None:
    """What follows the options of pages: the widths, the batch, and the page table."""
    cache, x = call["cache"].spec, call["input"].spec
    width, held, users = x.padded_shape[-1], cache.padded_shape[-1], x.padded_shape[1]
    table: Tensor | None = call["page_table"]
    wrong = "Last dim of input tensor must match last dim of cache tensor"
    if call["fused"] is None:
        wrong = f"Last dim of input tensor ({width}) must match last dim of cache tensor ({held}) in non-paged mode"
    overridden = call["block_size"] is not None or call["num_kv_heads"] is not None
    if call["fused"] is not None or table is None or not overridden:
        require(width == held, wrong, f"{held}", RESHAPE)
    if table is not None:
        _check_table(call, table.spec, cache, users)
    elif call["share_cache"]:
        wrong = "Share cache feature expects cache tensor to have batch of 1"
        require(cache.padded_shape[0] == 1, wrong, "1", "Allocate one cache for all users.")
    else:
        wrong = "Expect batch in input tensor match the batch in cache tensor"
        require(users == cache.padded_shape[0], wrong, f"{cache.padded_shape[0]} users", RESHAPE)
    _check_positions(call["update_idxs_tensor"], x)
    _check_shards(call, x)
    operation = "paged_update_cache" if call["fused"] is None else "paged_fused_update_cache"
    require_dtype(x, INPUT_FORMATS, f"Data type of input tensor for {operation} must be FLOAT32 or BFLOAT16")


def _check_table(call: Call, table: TensorSpec, cache: TensorSpec, users: int) -> None:
    require(not call["share_cache"], "share_cache not supported with paged cache", "share_cache=None", "Leave it out.")
    positions = call["update_idxs_tensor"]
    wrong = "Paged cache requires update_idxs tensor"
    require(positions is not None, wrong, "update_idxs_tensor=", "Pass the positions as a tensor.")
    sharded = table.memory_config.is_sharded()
    held = DataType.UINT16 if sharded else DataType.INT32
    require_dtype(table, held, f"Expect page table to have datatype {held.name}")
    require_layout(table, Layout.ROW_MAJOR, "Expect page table to have memory layout in ROW MAJOR")
    shards = table.memory_config.shard_spec
    if shards is None:
        wrong, rows = "Batch size between page_table and input_tensor must match", table.padded_shape[0]
    else:
        rows = table.padded_shape[0] // shards.num_cores()
        wrong = f"Batch size in input tensor {users} should match page table shard height {rows}"
    require(rows == users, wrong, f"{users} rows", "Give every user a row of pages.")
    pages, blocks = table.padded_shape[1], cache.padded_shape[0]
    if call["cache_position_modulo"] is None:
        wrong = (
            f"max_num_blocks_per_seq must be less than max_num_blocks: max_num_blocks_per_seq={pages}, "
            f"max_num_blocks={blocks}"
        )
        require(pages <= blocks, wrong, f"at most {blocks} pages", "Shorten the page table, or enlarge the cache.")


def _check_positions(positions: Tensor | None, x: TensorSpec) -> None:
    if positions is None:
        return
    spec, users, fix = positions.spec, x.padded_shape[1], "Pass one position per user."
    require_dtype(spec, DataType.INT32, "Expected update_idxs to have datatype INT32")
    require_layout(spec, Layout.ROW_MAJOR, "Expected update_idxs to have memory layout in ROW MAJOR")
    if spec.memory_config.is_sharded():
        wrong = "Expect update_idxs to be HEIGHT SHARDED if sharded"
        by_height = spec.memory_config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
        require(by_height, wrong, "shards of whole rows", fix)
        wrong = f"Number of update_idxs ({spec.shape[1]}) should match batch size ({x.shape[1]}) if sharded"
        require(spec.shape[1] == x.shape[1], wrong, f"{x.shape[1]} positions", fix)
        return
    wrong = "Expect update_idxs to have buffer type DRAM"
    require(spec.buffer_type is BufferType.DRAM, wrong, "DRAM", "Move it with ttnn.to_memory_config.")
    check_count(spec.padded_shape[0], users)


def check_count(count: int, users: int) -> None:
    """Raise for another number of positions than users."""
    wrong = f"Number of update_idxs ({count}) should match batch size ({users})"
    require(count == users, wrong, f"{users} positions", "Pass one position per user.")


def _check_shards(call: Call, x: TensorSpec) -> None:
    shards, layout, width = x.memory_config.shard_spec, x.memory_config.memory_layout, x.padded_shape[-1]
    require(x.memory_config.is_sharded(), "Expect input_tensor to be sharded", "one core per user", RESHARD)
    if shards is None:
        return
    wrong = "Expect input_tensor to NOT have memory layout WIDTH SHARDED"
    require(layout is not TensorMemoryLayout.WIDTH_SHARDED, wrong, "shards of whole rows", RESHARD)
    wrong = (
        f"Expect input_tensor to have shard width ({shards.shape[1]}) equal to the last dimension of the input tensor "
        f"padded shape ({width})"
    )
    require(shards.shape[1] == width, wrong, "shards of whole rows", RESHARD)
    rows = 1
    for extent in x.padded_shape[:-1]:
        rows *= extent
    wrong = "Input tensor's height must be divisible by the number of shards along the height dimension."
    require(rows % shards.shape[0] == 0, wrong, "equal shards", RESHARD)
    wrong = "Only ROW_MAJOR sharding is supported"
    require(shards.orientation is ShardOrientation.ROW_MAJOR, wrong, "cores row by row", RESHARD)
    users, cores = x.padded_shape[1], shards.grid.num_cores()
    wrong = (
        f"Input tensor shard grid must have num_cores ({cores}) equal to the number of users / batch ({users}). "
        "The kernel dispatches one user per core"
    )
    require(cores == users or call["fused"] is not None, wrong, f"{users} cores", RESHARD)


def check_pair(first: Tensor, second: Tensor) -> None:
    """What a fused update requires of its two inputs together."""
    wrong = "input_tensor1 and input_tensor2 must be either both tiled or both row-major"
    require(first.layout is second.layout, wrong, "one layout", "Convert one with ttnn.to_layout.")
    if first.layout is Layout.ROW_MAJOR:
        wrong = "when input_tensor1 and input_tensor2 are row major, only Llama70b tensor shapes are supported"
        fits = first.padded_shape[-1] == 128 and second.padded_shape[-2] == 8
        require(fits, wrong, "8 heads of 128 columns", "Convert both with ttnn.to_layout.")
    grids = [one.memory_config().shard_spec for one in (first, second)]
    if grids[0] is None or grids[1] is None:
        return
    cores = [set(one.grid.cores()) for one in grids if one is not None]
    wrong = f"input_tensor1 ({grids[0].grid}) and input_tensor2 ({grids[1].grid}) must not overlap"
    require(not cores[0] & cores[1], wrong, "cores of their own", RESHARD)
    wrong = f"input_tensor1 ({grids[0].grid}) and input_tensor2 ({grids[1].grid}) must have same number of cores"
    require(len(cores[0]) == len(cores[1]), wrong, "as many cores", RESHARD)


def require_positions(update_idxs: Sequence[int], update_idxs_tensor: Tensor | None) -> list[int]:
    """The positions as a list; checked at every call, because they are not part of a plan's key."""
    wrong = "Only an update tensor or an update vector can be provided. Not both or neither."
    one = (update_idxs_tensor is not None) != bool(update_idxs)
    require(one, wrong, "update_idxs or update_idxs_tensor", "Pass one of the two.")
    return list(update_idxs)
