"""reduce_scatter as TT-NN composes it where shards are rows or do not fill tiles: padded one by one, joined, reduced."""

from __future__ import annotations

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ccl.collectives.collective_stages import TILE, Composed, program_attributes, run_reduce_scatter
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ops.stages.movement_stages import fill_padding, interleave, tile_spec, typecast
from ttmesh.ops.stages.rows_stages import slice_rows
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Bounds = tuple[tuple[int, int, int], ...]


def is_composed_scatter(spec: TensorSpec, dim: int, n: int) -> bool:
    """TT-NN's rule: rows, and tiles that a shard does not fill along the dim; never where the shards are uneven."""
    if spec.shape[dim] % n:
        return False
    if spec.layout is Layout.ROW_MAJOR:
        return True
    return dim >= len(spec.shape) - 2 and spec.shape[dim] // n % TILE != 0


def reduce_scatter_stages(request: Request, dim: int, spec: TensorSpec, n: int) -> Composed:
    """One program, or what TT-NN composes."""
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    if not is_composed_scatter(x.spec, dim, n):
        return c, [run_reduce_scatter(c, request, x, dim, spec)]
    return c, [c.view(scatter_padded(c, request, x, dim, spec), spec)]


def scatter_padded(c: Composition, request: Request, x: PlannedTensor, dim: int, spec: TensorSpec) -> PlannedTensor:
    """The composition; every temporary is given back at the end, as TT-NN's are."""
    in_rows, config = x.spec.layout is Layout.ROW_MAJOR, _native_config(x.spec, spec)
    source = x
    if x.spec.memory_config.is_sharded():
        source = c.run("sharded_to_interleaved", x.spec.with_memory_config(config), x)
    widens = not in_rows and x.spec.dtype is DataType.BFLOAT8_B
    if widens:
        wide = typecast(c, source, DataType.BFLOAT16)
        if source is not x:
            c.free(source)
        source = wide
    dtype, held = source.spec.dtype, source.spec.memory_config
    extent = spec.shape[dim]
    plain = TensorSpec(spec.shape, dtype, x.spec.layout, memory_config=held)
    parts = _split_into_tiles(c, source, dim, plain)
    padded = list(spec.shape)
    for back in range(max(-2, -len(padded)), 0):
        padded[back] = -(-padded[back] // TILE) * TILE
    whole = list(padded)
    whole[dim] *= x.spec.shape[dim] // extent
    joined = c.run("concat", tile_spec(whole, dtype, DRAM_MEMORY_CONFIG), *parts, options=dim - len(whole))
    reduced = run_reduce_scatter(c, request, joined, dim, tile_spec(padded, dtype, config), padded=True)
    final = TensorSpec(spec.shape, dtype, x.spec.layout, memory_config=config)
    if in_rows:
        made = c.run("untilize", final, reduced)
    else:
        made = c.run("slice", final, reduced, options=tuple((0, extent, 1) for extent in spec.shape))
    if widens:
        made = c.replace(made, typecast(c, made, spec.dtype))
    if spec.memory_config.is_sharded():
        made = c.replace(made, c.run("interleaved_to_sharded", made.spec.with_memory_config(spec.memory_config), made))
    for stage in (reduced, joined, *parts):
        c.free(stage)
    if source is not x:
        c.free(source)
    return made


def _native_config(held: TensorSpec, spec: TensorSpec) -> MemoryConfig:
    """Where the reduction itself puts its result."""
    asked = spec.memory_config
    if held.memory_config.is_sharded():
        return DRAM_MEMORY_CONFIG if asked.is_sharded() else asked
    return held.memory_config if asked.is_sharded() else asked


def _split_into_tiles(c: Composition, x: PlannedTensor, dim: int, spec: TensorSpec) -> list[PlannedTensor]:
    """The shards of the chips, each in separate tiles that zeros fill up."""
    extent, shape = spec.shape[dim], x.spec.shape
    bounds: list[Bounds] = [
        tuple((i * extent, (i + 1) * extent, 1) if j == dim else (0, n, 1) for j, n in enumerate(shape))
        for i in range(shape[dim] // extent)
    ]
    if x.spec.layout is Layout.ROW_MAJOR:
        rows = [c.run("slice", spec, x, options=one) for one in bounds]
        tiled = tile_spec(spec.shape, spec.dtype, spec.memory_config)
        parts = [c.replace(row, c.run("tilize", tiled, row)) for row in rows]
    else:
        parts = [
            slice_rows(c, x, one, spec) if one[dim][0] % TILE else c.run("slice", spec, x, options=one)
            for one in bounds
        ]
    for part in parts:
        fill_padding(c, part, 0.0)
    return parts


def fused_scatter_stages(request: Request, dim: int, spec: TensorSpec) -> Composed | None:
    """What the reduce_scatter of a fused form takes: see `fused` of reduce_gather.scatter."""
    if request["fused"] == "buffered" or request.outputs:
        return None
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    arriving = c.allocate(x.spec.with_memory_config(interleave(x.spec.memory_config)))
    options = (dim, program_attributes(request, request["axis"]))
    made = (
        c.allocate(spec)
        if request["fused"] == "strided matmul"
        else c.run("strided_reduce_scatter", spec, x, options=options)
    )
    c.free(arriving)
    return c, [made]
