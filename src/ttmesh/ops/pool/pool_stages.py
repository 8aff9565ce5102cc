"""The device programs of a pool, and what they take of L1: shards, rows with those of neighbours, the result."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from ttmesh.base.dtypes import BLOCK_FLOATS, BufferType, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.conv.conv_sharding import ParallelConfig
from ttmesh.ops.pool.pool_sharding import PoolWork, choose_cores, input_memory, shard_output
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Two = tuple[int, int]
OPTIONS = ("size", "window", "stride", "padding", "dilation", "ceil_mode", "kind", "out_dtype", "out_layout")


def count_halo_rows(
    size: Sequence[int], out: Two, window: Two, stride: Two, padding: Sequence[int], dilation: Two, cores: int
) -> int:
    """The most rows that one core reads: from the first element of its first window to the last of its last."""
    batch, height, width = size[:3]
    (down, across), (high, wide) = out, window
    top, bottom, left, right = padding
    line = max(width + left + right, (across - 1) * stride[1] + dilation[1] * (wide - 1) + 1)
    image = line * max(height + top + bottom, (down - 1) * stride[0] + dilation[0] * (high - 1) + 1)

    def first_element(output: int) -> int:
        which, place = divmod(output, down * across)
        return which * image + place // across * stride[0] * line + place % across * stride[1]

    outputs, reach = batch * down * across, dilation[0] * (high - 1) * line + dilation[1] * (wide - 1)
    share = div_up(outputs, cores)
    starts = range(0, outputs, share)
    return max(first_element(min(start + share, outputs) - 1) - first_element(start) + reach + 1 for start in starts)


def halo_spec(cores: ParallelConfig, rows: int, width: int, dtype: DataType) -> TensorSpec:
    """The rows of all cores with those of their neighbours, in row-major order."""
    config = MemoryConfig(cores.layout, BufferType.L1, ShardSpec(cores.grid, (rows, width), cores.orientation))
    wide = DataType.BFLOAT16 if dtype in BLOCK_FLOATS else dtype
    shape = (1, 1, cores.cores_rows * rows, cores.cores_channels * width)
    return TensorSpec(shape, wide, Layout.ROW_MAJOR, memory_config=config)


class PoolSlices(NamedTuple):
    """How a pool of a tensor in DRAM is divided: rows or columns of the result; 0 parts: as few as fit into L1."""

    by_height: bool
    parts: int


class PoolShape(NamedTuple):
    """The windows of a pool: how many down and across, their size and their distance."""

    out: Two
    window: Two
    stride: Two


class _SliceShards(NamedTuple):
    """What one slice takes of L1."""

    rows: TensorSpec
    halo: TensorSpec
    pooled: TensorSpec


def choose_slices(call: Call, final: TensorSpec, work: PoolWork, shape: PoolShape) -> PoolSlices | None:
    """The slices of a pool: as many as asked for, or as few as fit into L1; None if the whole fits or is in L1."""
    asked: PoolSlices | None = call["slices"]
    if asked is None or asked.parts:
        return asked
    room = call.mesh.heap.map.banks[BufferType.L1].size
    for parts in range(1, shape.out[0 if asked.by_height else 1] + 1):
        slices = PoolSlices(asked.by_height, parts)
        shards = _shard_slice(call, final, work, shape, slices, 0)
        peak = sum(footprint_of(spec, call.mesh.heap.map).bank_bytes for spec in shards[:2])
        if peak <= room:
            return None if parts == 1 else slices
    return None


def sliced_pool_stages(
    call: Call, final: TensorSpec, work: PoolWork, shape: PoolShape, slices: PoolSlices
) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The result in DRAM, then slice by slice: into shards, the rows of neighbours, the pool, and back to DRAM."""
    c, x = Composition(), PlannedTensor(call.specs[0])
    key: Hashable = (call.name, call.specs, slices, *(call[name] for name in OPTIONS))
    made = c.allocate(final)
    for i in range(slices.parts):
        slice_shards = _shard_slice(call, final, work, shape, slices, i)
        config = slice_shards.rows.memory_config
        shards = c.run("padded_slice", slice_shards.rows, x)
        halo = c.allocate(slice_shards.halo)
        c.launch((key, "halo", config))
        c.free(shards)
        pooled = c.allocate(slice_shards.pooled)
        c.launch((key, "pool", config))
        c.free(halo)
        c.launch((key, "slice_write", config))
        c.free(pooled)
    return c, [made]


def _shard_slice(
    call: Call, final: TensorSpec, work: PoolWork, shape: PoolShape, slices: PoolSlices, i: int
) -> _SliceShards:
    """The shards of one slice: its rows, those with the rows of neighbours, and its part of the result."""
    out, window, stride = shape
    x, (batch, *sides) = call.specs[0], call["size"][:3]
    padding, dilation = call["padding"] or (0, 0, 0, 0), call["dilation"] or (1, 1)
    axis = 0 if slices.by_height else 1
    reach = dilation[axis] * (window[axis] - 1) + 1
    start, end = (place * out[axis] // slices.parts for place in (i, i + 1))
    first = start * stride[axis] - padding[2 * axis]
    last = (end - 1) * stride[axis] - padding[2 * axis] + reach
    extent = min(sides[axis], last) - max(0, first)
    if slices.parts > 1:
        _require_slice(slices, extent, reach)
    size, windows, border = [batch, *sides], list(out), list(padding)
    size[1 + axis], windows[axis] = extent, end - start
    border[2 * axis : 2 * axis + 2] = max(0, -first), max(0, last - sides[axis])
    part = replace(work, rows=batch * prod(windows))
    cores = choose_cores(call, part, sliced=slices.parts > 1)
    config = input_memory(cores, part, prod(size))
    assert config.shard_spec is not None, "a pool works on two-dimensional shards"
    down, across = windows
    sticks = count_halo_rows(size, (down, across), window, stride, border, dilation, cores.cores_rows)
    return _SliceShards(
        TensorSpec((1, 1, prod(size), x.shape[-1]), x.dtype, x.layout, memory_config=config),
        halo_spec(cores, sticks, config.shard_spec.shape[1], x.dtype),
        TensorSpec(
            (1, 1, part.rows, final.shape[-1]), final.dtype, final.layout, memory_config=shard_output(cores, part)
        ),
    )


def _require_slice(slices: PoolSlices, extent: int, reach: int) -> None:
    dim = "height" if slices.by_height else "width"
    require(
        extent >= reach,
        f"Cannot fit Pool2D operation in L1 memory with DRAM slicing. The smallest input slice (size={extent}) in the {dim} "
        f"dimension is smaller than the effective kernel size ({reach}). Num slices: {slices.parts}, Slicing dimension: "
        f"{dim}.",
        f"slices of {reach} or more",
        "Use fewer slices.",
    )


def pool_stages(
    call: Call, results: Sequence[TensorSpec], work: PoolWork, out: Two, window: Two, stride: Two
) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Into shards, the rows of neighbours, a move into the room that the shards leave, the pool, and out of shards."""
    if len(results) > 1:
        return None
    c, x, final = Composition(), PlannedTensor(call.specs[0]), results[0]
    cores, memory = choose_cores(call, work), call.specs[0].memory_config
    rows, padding = prod(call["size"][:3]), call["padding"] or (0, 0, 0, 0)
    key: Hashable = (call.name, call.specs, *(call[name] for name in OPTIONS))
    shards = x
    config = memory if memory.is_sharded() else input_memory(cores, work, rows)
    assert config.shard_spec is not None, "a pool works on two-dimensional shards"
    if not memory.is_sharded():
        flat = TensorSpec((1, 1, rows, x.spec.shape[-1]), x.spec.dtype, x.spec.layout, memory_config=config)
        shards = c.run("interleaved_to_sharded", flat, x)
    sticks = count_halo_rows(call["size"], out, window, stride, padding, call["dilation"] or (1, 1), cores.cores_rows)
    c.launch((key, "halo", config))
    spec = halo_spec(cores, sticks, config.shard_spec.shape[1], x.spec.dtype)
    first = c.allocate(spec)
    leaves = shards is not x and not memory.is_l1()
    if leaves:
        c.free(shards)
    c.free(first)
    moved = c.allocate(spec)
    if leaves:
        c.launch((key, "move", config))
    c.launch((key, "pool", config))
    sharded = final.memory_config.is_sharded()
    made = c.allocate(final if sharded else final.with_memory_config(shard_output(cores, work)))
    if not sharded:
        made = c.replace(made, c.run("sharded_to_interleaved", final, made))
    c.free(moved)
    if shards is not x:
        c.free(shards)
    return c, [made]
