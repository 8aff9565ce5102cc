"""Stages of collectives: TT-NN's own programs, and those that it composes where shards do not fill tiles or are rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil, prod

from ttmesh.base.dtypes import BLOCK_FLOATS, Layout
from ttmesh.ccl.collectives.collective_semaphores import keep_semaphores
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ops.stages.movement_stages import fill_padding, tile_spec
from ttmesh.ops.stages.rows_stages import concat, slice_rows
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]
PACKET_BYTES = 4096
TILE = 32


def gather_attributes(request: Request) -> Hashable:
    """What tells two programs of a gather apart beside the tensor's spec; the tensor's topology does not."""
    return request["axis"], key_of(request["topology"]), request.tensor.kind.presence


def reduce_attributes(request: Request) -> Hashable:
    """The same of a reduction."""
    return request["axis"], request["reduction"], key_of(request["topology"]), request.tensor.kind.presence


def gather_spec(request: Request, dim: int, shape: Sequence[int]) -> TensorSpec:
    """The result's spec; where shards are joined in rows, TT-NN forgets the memory config that was asked for."""
    spec = request.result_spec(shape)
    if request.outputs or not _is_joined_in_rows(request.tensor.spec, dim, spec):
        return spec
    return spec.with_memory_config(MemoryConfig())


def _is_joined_in_rows(source: TensorSpec, dim: int, spec: TensorSpec) -> bool:
    """Whether an all_gather's shards do not fill tiles along the dim."""
    splits_tiles = source.layout is Layout.TILE and dim - len(source.shape) >= -2 and source.shape[dim] % TILE != 0
    return splits_tiles and source.memory_config.interleaved and spec.memory_config.interleaved


def all_gather_stages(request: Request, dim: int, spec: TensorSpec) -> Composed:
    """One program; shards that do not fill tiles along the dim are broadcast and joined in rows."""
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    from_end = dim - len(x.spec.shape)
    if not _is_joined_in_rows(x.spec, dim, spec):
        return c, [_gather(c, request, x, dim, spec)]
    parts = _broadcast(c, request, x, spec.shape[dim] // x.spec.shape[dim], gather_attributes(request))
    made = concat(c, parts, from_end, spec)
    for part in parts:
        c.free(part)
    return c, [c.view(made, spec)]


def _gather(c: Composition, request: Request, x: PlannedTensor, dim: int, spec: TensorSpec) -> PlannedTensor:
    """TT-NN's own program; its semaphores are in L1_SMALL where the mesh has such a region."""
    made = c.run("all_gather", spec, x, options=(dim, gather_attributes(request)))
    keep_semaphores(c, request, "all_gather")
    return made


def _broadcast(
    c: Composition, request: Request, x: PlannedTensor, count: int, attributes: Hashable
) -> list[PlannedTensor]:
    """Every chip's tensor on all chips, by one program."""
    c.launch(("all_broadcast", x.spec, attributes))
    parts = [c.allocate(x.spec) for _ in range(count)]
    keep_semaphores(c, request, "all_broadcast")
    return parts


def all_broadcast_stages(request: Request, spec: TensorSpec, lengths: Sequence[int]) -> Composed:
    """One program per axis of the mesh: what came along the first axis is broadcast along the second."""
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    now = [PlannedTensor(spec, x.allocation)]
    for axis, length in enumerate(lengths):
        found: list[PlannedTensor] = []
        for part in now:
            found += _broadcast(c, request, part, length, (axis, gather_attributes(request)))
            c.free(part)
        now = found
    return c, now


def reduce_scatter_stages(request: Request, dim: int, spec: TensorSpec) -> Composed:
    """The result, and room for what arrives; shards in rows or inside tiles are padded to tiles one by one first."""
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    in_rows = x.spec.layout is Layout.ROW_MAJOR
    splits_tiles = dim >= len(x.spec.shape) - 2 and spec.shape[dim] % TILE != 0
    composed = (in_rows or splits_tiles) and x.spec.dtype not in BLOCK_FLOATS
    if not composed or not x.spec.memory_config.interleaved or spec.memory_config != x.spec.memory_config:
        return c, [reduce_scatter(c, request, x, dim, spec)]
    parts = _split_into_tiles(c, x, dim, spec)
    padded = list(spec.shape)
    for back in range(max(-2, -len(padded)), 0):
        padded[back] = -(-padded[back] // TILE) * TILE
    whole = list(padded)
    whole[dim] *= len(parts)
    joined = c.run("concat", tile_spec(whole, spec.dtype, spec.memory_config), *parts, options=dim - len(whole))
    part_spec = tile_spec(padded, spec.dtype, spec.memory_config)
    reduced = reduce_scatter(c, request, joined, dim, part_spec)
    ends_in_padding = tuple(padded) != tuple(spec.shape)
    made = reduced
    if in_rows or ends_in_padding:
        made = c.run("untilize" if in_rows else "slice", spec, reduced)
        c.free(reduced)
    for stage in (joined, *parts):
        c.free(stage)
    return c, [c.view(made, spec)]


def _split_into_tiles(c: Composition, x: PlannedTensor, dim: int, spec: TensorSpec) -> list[PlannedTensor]:
    """The shards of the chips, each in tiles of its own with zeros around it."""
    extent, shape = spec.shape[dim], x.spec.shape
    bounds = [
        tuple((i * extent, (i + 1) * extent, 1) if j == dim else (0, n, 1) for j, n in enumerate(shape))
        for i in range(shape[dim] // extent)
    ]
    if x.spec.layout is Layout.ROW_MAJOR:
        rows = [c.run("slice", spec, x, options=one) for one in bounds]
        tiles = [
            c.replace(row, c.run("tilize", tile_spec(spec.shape, spec.dtype, spec.memory_config), row)) for row in rows
        ]
    else:
        tiles = [
            slice_rows(c, x, one, spec) if one[dim][0] % TILE else c.run("slice", spec, x, options=one)
            for one in bounds
        ]
    for tile in tiles:
        fill_padding(c, tile, 0.0)
    return tiles


def reduce_scatter(c: Composition, request: Request, x: PlannedTensor, dim: int, spec: TensorSpec) -> PlannedTensor:
    """TT-NN's own program, with room for what arrives from both neighbours while it runs."""
    made = c.run("reduce_scatter", spec, x, options=(dim, reduce_attributes(request)))
    arriving = None
    if spec.memory_config.interleaved:
        both_sides = TensorSpec((2, *x.spec.shape), spec.dtype, spec.layout, memory_config=spec.memory_config)
        arriving = c.allocate(both_sides)
    keep_semaphores(c, request, "reduce_scatter")
    if arriving is not None:
        c.free(arriving)
    return made


def all_reduce_stages(request: Request, n: int) -> Composed | None:
    """reduce_scatter into memory of its own, then all_gather; rows are broadcast and summed; shards take one program."""
    spec, final = request.tensor.spec, request.result_spec(request.tensor.shape)
    grains = [32 if spec.layout is Layout.TILE and back >= -2 else 1 for back in range(-len(spec.shape), 0)]
    dims = [i for i, extent in enumerate(spec.shape) if extent % (n * grains[i]) == 0]
    c = Composition()
    if not spec.memory_config.interleaved or not final.memory_config.interleaved or n == 1:
        return None
    if spec.layout is Layout.ROW_MAJOR and request["axis"] is not None:
        return c, [_sum_rows(c, request, PlannedTensor(spec), final, n)]
    if not dims:
        return c, [_sum_tiles(c, request, PlannedTensor(spec), final, n)]
    shape = [*spec.shape]
    shape[dims[-1]] //= n
    part = TensorSpec(shape, final.dtype, spec.layout, memory_config=final.memory_config)
    scattered = reduce_scatter(c, request, PlannedTensor(spec), dims[-1], part)
    made = _gather(c, request, scattered, dims[-1], final)
    c.free(scattered)
    return c, [made]


def _sum_rows(c: Composition, request: Request, x: PlannedTensor, final: TensorSpec, n: int) -> PlannedTensor:
    """Every chip's rows on all chips, one behind the other in tiles, summed."""
    parts, config = _broadcast(c, request, x, n, gather_attributes(request)), x.spec.memory_config
    stacked = TensorSpec((n, *x.spec.shape), x.spec.dtype, Layout.ROW_MAJOR, memory_config=config)
    joined = c.run("concat", stacked, *parts, options="new dim")
    for part in parts:
        c.free(part)
    tiles = c.run("tilize", tile_spec(stacked.shape, x.spec.dtype, config), joined)
    total = c.run("moreh_sum", tile_spec(final.shape, final.dtype, final.memory_config), tiles)
    made = c.run("untilize", final, total)
    for stage in (total, tiles, joined):
        c.free(stage)
    return made


def _sum_tiles(c: Composition, request: Request, x: PlannedTensor, final: TensorSpec, n: int) -> PlannedTensor:
    """The same of tiles; parts and their copy side by side are freed before the sum, so one allocation stands for all."""
    c.launch(("all_broadcast", x.spec, gather_attributes(request)))
    twice = tile_spec((2 * n, *x.spec.shape), x.spec.dtype, x.spec.memory_config)
    parts = c.allocate(twice)
    keep_semaphores(c, request, "all_broadcast")
    c.launch(("concat", x.spec, n, "new dim"))
    c.free(parts)
    return c.run("moreh_sum", final, PlannedTensor(twice))


def packet_spec(spec: TensorSpec) -> TensorSpec:
    """What point_to_point takes for packets on their way: as many whole pages in each as fit."""
    size = element_bytes(spec.dtype)
    pages, page = prod(spec.shape[:-1]), spec.shape[-1] * size
    if spec.layout is Layout.TILE:
        pages, page = prod(spec.padded_shape) // TILE**2, TILE**2 * size
    together = max(1, PACKET_BYTES // page)
    return TensorSpec(
        (ceil(pages / together), together * page // size), spec.dtype, spec.layout, memory_config=spec.memory_config
    )
