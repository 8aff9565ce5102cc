"""How decode attention divides heads over cores, and the circular buffers that a core then holds."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType
from ttmesh.chip.formats.tiles import tile_bytes
from ttmesh.chip.memory import align_up
from ttmesh.ops.attention.sdpa_prefill import BFLOAT16_TILE, TILE
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


class HeadSplit(NamedTuple):
    """How query heads are divided: groups of cores (a user's, or a part of its heads), tiles of heads in each."""

    groups: int
    tiles: int
    is_local: bool  # every core has its queries in its own shard already


def decode_scratch(call: Call) -> int:
    """Circular buffers per core; those in the memory of a sharded tensor are not counted."""
    q, k = call.specs[0], call.specs[1]
    config, table = call["program_config"], call["page_table_tensor"]
    latent = call["head_dim_v"] if isinstance(call["head_dim_v"], int) else None
    values = k if latent is not None or len(call.specs) < 3 else call.specs[2]
    users, width = _count_users(q, table), math.ceil(q.shape[-1] / TILE)
    split = HeadSplit(users, math.ceil(q.shape[-2] / TILE), False)
    if latent is not None:
        split = split_heads_over_cores(q, users, config)
    heads, value_width = split.tiles, math.ceil((values.shape[-1] if latent is None else latent) / TILE)
    kernel = call["compute_kernel_config"]
    if config is not None:
        wide = kernel is not None and kernel.fp32_dest_acc_en
        keys = max(config.k_chunk_size // TILE, 0) or (4 if wide else 8)  # 0: as many as the destination holds
    else:
        length = k.shape[-2]
        keys = max(min(512, length & -length or TILE) // TILE, 1)
    halved = call["is_causal"] is not False and q.shape[-2] <= TILE // 2 and q.dtype is DataType.BFLOAT16
    tile = BFLOAT16_TILE // 2 if halved else BFLOAT16_TILE
    size_q = tile if q.dtype is DataType.BFLOAT16 else tile_bytes(q.dtype, q.tile)
    queries = (1 if split.is_local else 2) * heads * width * size_q
    chunks = 2 * keys * (width * tile_bytes(k.dtype, k.tile) + value_width * tile_bytes(values.dtype, values.tile))
    padded_blocks = table is not None and call["paged_cache_geometry"] is None and k.shape[-2] < TILE
    masks = 1 + bool(call["sliding_window_size"]) + padded_blocks
    scores = (1 + masks) * heads * keys * tile + 4 * heads * value_width * tile
    statistics = (11 + (call["attention_sink"] is not None)) * heads * tile + 2 * tile + BFLOAT16_TILE
    partial = (heads * value_width + 2 * heads) * (_count_cores_per_head(call, split.groups, k.shape[1]) - 1) * tile
    output = 0 if _is_sharded(call["memory_config"]) else heads * value_width * BFLOAT16_TILE
    return queries + chunks + scores + statistics + _count_index_bytes(call) + partial + output


def split_heads_over_cores(q: TensorSpec, users: int, program_config: Any) -> HeadSplit:
    """How sharded queries of latent attention are divided: as their shards are."""
    shards, heads = q.memory_config.shard_spec, q.shape[-2]
    if shards is None:
        return HeadSplit(users, math.ceil(heads / TILE), False)
    height, most = shards.shape[0], 16 if program_config is None else program_config.max_cores_per_head_batch
    parts = shards.grid.num_cores() // most // users
    if parts and heads == users * height * parts * most:
        return HeadSplit(users * parts, max(height // TILE, 1), True)
    parts = max(math.ceil(heads / height), 1)
    return HeadSplit(users * parts, max(align_up(heads, TILE) // parts // TILE, 1), False)


def select_local_queries(q: Lanes, spec: TensorSpec, users: int, program_config: Any, lane_axes: int) -> Lanes:
    """Queries [1, users, heads, dim] of shards that repeat a user's heads for every core of its group; others unchanged."""
    split, shards = split_heads_over_cores(spec, users, program_config), spec.memory_config.shard_spec
    if shards is None or not split.is_local:
        return q
    lanes, height, parts = q.shape[:lane_axes], shards.shape[0], split.groups // users
    copies = q.reshape(*lanes, users, parts, -1, height, q.shape[-1])
    return copies[..., 0, :, :].reshape(*lanes, 1, users, parts * height, q.shape[-1])


def _count_users(q: TensorSpec, table: Tensor | None) -> int:
    """Users by the page table's rows, without one by the queries' second dimension."""
    if table is None:
        return max(q.shape[-3] if len(q.shape) > 2 else 1, 1)
    shards = table.spec.memory_config.shard_spec
    return max(table.spec.padded_shape[0] // (shards.grid.num_cores() if shards else 1), 1)


def _count_index_bytes(call: Call) -> int:
    """Positions, twice (for two kernels), and a row of the page table; sharded ones are read in place."""
    table, positions = call["page_table_tensor"], call["cur_pos_tensor"]
    step = 64 if call.mesh.arch() is Arch.BLACKHOLE else 32  # what rows in DRAM are aligned to
    total = 0
    if positions is not None:
        copies = 1 if _is_sharded(positions.spec.memory_config) else 2
        total += copies * align_up(4 * positions.spec.shape[-1], step)
    if table is not None and not _is_sharded(table.spec.memory_config):
        total += align_up((table.shape[-1] if len(table.shape) else 1) * 4, step)
    return total


def _is_sharded(config: Any) -> bool:
    return config is not None and config.is_sharded()


def _count_cores_per_head(call: Call, groups: int, key_heads: int) -> int:
    """How many cores share a head: those of the grid, at most 16 where a program config does not say otherwise."""
    config, grid = call["program_config"], call.mesh.compute_with_storage_grid_size()
    if config is None:
        return max(grid.x * grid.y // groups // max(key_heads, 1), 1)
    size = getattr(config, "compute_with_storage_grid_size", None)
    x, y = (grid.x, grid.y) if size is None else size if isinstance(size, (tuple, list)) else (size.x, size.y)
    subgrid = getattr(config, "sub_core_grids", None)
    cores = int(x) * int(y) if subgrid is None else subgrid.num_cores()
    most = (getattr(config, "max_cores_per_head_batch", None) or 16) * groups * key_heads
    return max(min(cores, most) // groups // max(key_heads, 1), 1)
