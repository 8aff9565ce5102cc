"""Heads of one token per user, with one user per core."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.core_work import num_cores_to_corerangeset, num_cores_to_corerangeset_in_subcoregrids
from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, Layout, TensorMemoryLayout
from ttmesh.ops.attention.attention_heads import TILE, QueryKeyValue
from ttmesh.ops.attention.head_rules import check_concat_decode, check_create_decode
from ttmesh.ops.catalogue.definition import device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import qkv_heads as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _round_up_to_tile(extent: int) -> int:
    return -(-extent // TILE) * TILE


def _available_cores(call: Call) -> CoreRangeSet:
    """The cores that may hold users: those of memory_config's shards, else all cores."""
    config = call["memory_config"]
    if config is not None and config.shard_spec is not None:
        grid: CoreRangeSet = config.shard_spec.grid
        return grid
    size = call.mesh.compute_with_storage_grid_size()
    return CoreRangeSet([CoreRange((0, 0), (size.x - 1, size.y - 1))])


def _decode_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    grid, users = _available_cores(call), inferred[0][0][1]
    config = call["memory_config"]
    first = grid.ranges()[0].start
    query_cores = num_cores_to_corerangeset_in_subcoregrids(first, users, grid, row_wise=True)
    key_cores = query_cores
    if not call["overlap_qk_coregrid"]:  # keys on the cores after the queries', so that both can be rotated at once
        start = num_cores_to_corerangeset_in_subcoregrids(first, users + 1, grid, row_wise=True).ranges()[-1].end
        key_cores = num_cores_to_corerangeset_in_subcoregrids(start, users, grid, row_wise=True)
    buffer_type = BufferType.L1 if config is None else config.buffer_type
    specs = []
    for i, ((shape, _), cores) in enumerate(zip(inferred, (query_cores, key_cores, query_cores), strict=True)):
        output = call.outputs[i] if i < len(call.outputs) else None
        shard = ShardSpec(cores, (_round_up_to_tile(shape[2]), shape[3]))
        memory_config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, buffer_type, shard)
        specs.append(
            output.spec if output else TensorSpec(shape, call.specs[0].dtype, Layout.TILE, memory_config=memory_config)
        )
    return specs


def _split_users(
    x: Lanes, heads: int, kv_heads: int | None, offset: Lanes | None, slice_size: int | None, lane_axes: int
) -> QueryKeyValue:
    """Heads of [*mesh, 1, 1, users, width]; with slice_size only of that many users, from offset on."""
    kv = heads if kv_heads is None else kv_heads
    size = x.shape[-1] // (heads + 2 * kv)
    rows = x.squeeze(-3)
    if slice_size is not None:
        start = 0 if offset is None or offset.is_meta else int(offset.flatten()[0])
        rows = rows.narrow(-2, start, slice_size)
    q, k, v = torch.tensor_split(rows, (heads * size, (heads + kv) * size), dim=-1)
    return tuple(torch.unflatten(heads_, -1, (-1, size)) for heads_ in (q, k, v))  # type: ignore[return-value]


@op(
    "ttnn.experimental.nlp_create_qkv_heads_decode",
    golden=goldens.create_qkv_heads_decode,
    out=_decode_spec,
    check=check_create_decode,
)
def nlp_create_qkv_heads_decode(
    input_tensor: Lanes,
    num_heads: int,
    num_kv_heads: int | None,
    batch_offset: Lanes | None,
    slice_size: int | None,
    lane_axes: int,
) -> QueryKeyValue:
    """Query, key and value heads of one token per user, [1, users, heads, dim], a user per core."""
    if batch_offset is None or slice_size is None or batch_offset.is_meta:
        return _split_users(input_tensor, num_heads, num_kv_heads, batch_offset, slice_size, lane_axes)
    # Devices may take different users: every lane has its own offset.
    start = batch_offset.flatten(lane_axes)[..., 0].long()[..., None, None, None, None]
    x = input_tensor.expand(*start.shape[:lane_axes], *input_tensor.shape[lane_axes:])
    user_rows = start + _count_from_zero(slice_size, x)
    rows = x.gather(-2, user_rows.expand(*x.shape[:-2], slice_size, x.shape[-1]))
    return _split_users(rows, num_heads, num_kv_heads, None, None, lane_axes)


def _count_from_zero(count: int, like: Lanes) -> Lanes:
    return like.new_ones(count, dtype=like.long().dtype).cumsum(0)[:, None] - 1


def _scattered_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Queries, keys and values each on as many cores as users, one group after the other, all with the queries' shape.

    Rows stay rows, without padding to tiles.
    """
    config, layout = call["qkv_memory_config"], call.specs[0].layout
    grid, (shape, _) = config.shard_spec.grid, inferred[0]
    first, users = grid.ranges()[0].start, shape[1]
    starts = [first]
    for taken in (users + 1, 2 * users + 1):
        starts.append(num_cores_to_corerangeset_in_subcoregrids(first, taken, grid, row_wise=True).ranges()[-1].end)
    specs = []
    for start in starts:
        cores = num_cores_to_corerangeset_in_subcoregrids(start, users, grid, row_wise=True)
        height = shape[2] if layout is Layout.ROW_MAJOR else _round_up_to_tile(shape[2])
        memory_config = MemoryConfig(config.memory_layout, config.buffer_type, ShardSpec(cores, (height, shape[3])))
        specs.append(TensorSpec(shape, call.specs[0].dtype, layout, memory_config=memory_config))
    return specs


@device_operation("ttnn.experimental.llama_rs_create_heads", out=_scattered_spec, programs=lambda call: ())
def split_scattered_heads(input_tensor: Lanes, num_heads: int, num_kv_heads: int) -> QueryKeyValue:
    """The heads of this chip's users; keys and values have as many rows as the queries, the last ones empty."""
    q, k, v = _split_users(input_tensor, num_heads, num_kv_heads, None, None, 0)
    missing = num_heads - num_kv_heads
    return q, F.pad(k, (0, 0, 0, missing)), F.pad(v, (0, 0, 0, missing))


def _concat_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    output = call.outputs[0] if call.outputs else None
    if output is not None:
        return [output.spec]
    shape, heads = inferred[0][0], call["num_heads"]
    x, sub_grids = call.specs[0], call["sub_core_grids"]
    if sub_grids is not None and x.memory_config.shard_spec is not None:
        start = x.memory_config.shard_spec.grid.ranges()[0].start
        cores = num_cores_to_corerangeset_in_subcoregrids(start, heads, sub_grids, row_wise=True)
    else:
        cores = num_cores_to_corerangeset(heads, call.mesh.compute_with_storage_grid_size(), row_wise=True)
    memory_config = MemoryConfig(
        TensorMemoryLayout.WIDTH_SHARDED,
        BufferType.L1,
        ShardSpec(cores, (_round_up_to_tile(shape[2]), shape[3] // heads)),
    )
    spec = TensorSpec(shape, x.dtype, Layout.TILE, memory_config=memory_config)
    requested = call["memory_config"]
    return [spec if requested is None else spec.with_memory_config(requested)]


def _concat_users(heads: Lanes, number: int) -> Lanes:
    rows = heads[..., :number, :].flatten(-2)
    missing = max(TILE - rows.shape[-2], 0)  # TT-NN pads the users to a full tile
    return F.pad(rows, (0, 0, 0, missing)).unsqueeze(-3)


@op(
    "ttnn.experimental.nlp_concat_heads_decode",
    golden=goldens.concat_heads_decode,
    out=_concat_spec,
    check=check_concat_decode,
)
def nlp_concat_heads_decode(input_tensor: Lanes, num_heads: int) -> Lanes:
    """[1, users, heads, dim] → [1, 1, users, heads · dim], one head per core."""
    return _concat_users(input_tensor, num_heads)


def _gathered_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [TensorSpec(inferred[0][0], call.specs[0].dtype, Layout.TILE, memory_config=call["memory_config"])]


@device_operation("ttnn.experimental.all_gather_concat", out=_gathered_spec, programs=lambda call: ())
def concat_gathered_heads(input_tensor: Lanes, num_heads: int) -> Lanes:
    """The heads of the users of all chips, concatenated."""
    return _concat_users(input_tensor, num_heads)


def _slice_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    shape, x = inferred[0][0], call.specs[0]
    cores = shape[0] * shape[1]
    grid = num_cores_to_corerangeset(cores, call.mesh.compute_with_storage_grid_size(), row_wise=True)
    memory_config = MemoryConfig(
        TensorMemoryLayout.HEIGHT_SHARDED,
        BufferType.L1,
        ShardSpec(grid, (_round_up_to_tile(shape[2]), _round_up_to_tile(shape[3]))),
    )
    return [TensorSpec(shape, x.dtype, Layout.TILE, memory_config=memory_config)]


@op(
    "ttnn.experimental.nlp_kv_cache_load_slice",
    golden=goldens.kv_cache_load_slice,
    out=_slice_spec,
)
def nlp_kv_cache_load_slice(input_tensor: Lanes, seq_len_start: int, seq_len_end: int) -> Lanes:
    """Positions start to end of a cache, in L1, a head per core."""
    return input_tensor[..., seq_len_start:seq_len_end, :]
