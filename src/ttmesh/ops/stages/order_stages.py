"""Stages of operations along one dim in order: sort, topk, cumsum and cumprod. TT-NN moves that dim to the last or first."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.stages.movement_stages import (
    fill_padding,
    has_padding,
    permute,
    tile_spec,
    transpose,
    typecast,
    with_four_dims,
)
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]
SORTED_WIDTH = 64  # the narrowest row that is sorted


def sort_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Rows are padded to a power of two, sorted and sliced; other dims change places with the last one for that."""
    spec, c = call.specs[0], Composition()
    rank = len(spec.shape)
    if not 0 < rank <= 4 or any(call.outputs) or not prod(spec.shape):
        return None
    dim = call["dim"] % rank
    if spec.memory_config.is_sharded():
        return _sort_shards(call, results) if dim == rank - 1 and not has_padding(spec) else None
    if spec.layout is not Layout.TILE or spec.shape[dim] == 1 or call["memory_config"] is not None:
        return None
    x, config = PlannedTensor(spec), spec.memory_config
    moved = x if dim == rank - 1 else transpose(c, x, dim, rank - 1, config)
    fill_padding(c, moved, -inf if call["descending"] else inf)
    width = moved.spec.padded_shape[-1]
    wanted = max(SORTED_WIDTH, 1 << (width - 1).bit_length())
    rows = moved
    if wanted != width:
        wide = tile_spec((*moved.spec.shape[:-1], wanted), spec.dtype, config)
        rows = c.run("pad", wide, moved, options=("sort", call["descending"]))
        c.free(moved)
    c.launch(("sort", rows.spec, call["descending"]))
    made = [c.allocate(tile_spec(rows.spec.shape, result.dtype, config)) for result in results]
    if rows is not moved:
        made = [_replace_by(c, one, "slice", tile_spec(moved.spec.shape, one.spec.dtype, config)) for one in made]
    if moved is not x:
        made = [c.replace(one, transpose(c, one, dim, rank - 1, config)) for one in made]
    c.free(rows)
    return c, [c.view(one, result) for one, result in zip(made, results, strict=True)]


def _replace_by(c: Composition, x: PlannedTensor, program: str, spec: TensorSpec) -> PlannedTensor:
    return c.replace(x, c.run(program, spec, x, options="front"))


def _sort_shards(call: Call, results: Sequence[TensorSpec]) -> Composed:
    """Shards are sorted in DRAM; values and indices come back into shards."""
    spec, c = call.specs[0], Composition()
    plain = c.run("sharded_to_interleaved", spec.with_memory_config(DRAM_MEMORY_CONFIG), PlannedTensor(spec))
    c.launch(("sort", plain.spec, call["descending"]))
    made = [c.allocate(result.with_memory_config(DRAM_MEMORY_CONFIG)) for result in results]
    back = [c.run("interleaved_to_sharded", result, one) for result, one in zip(results, made, strict=True)]
    for one in (*made, plain):
        c.free(one)
    return c, back


def topk_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Other dims than the last change places with it; whole tiles are found, and cut."""
    spec, c = call.specs[0], Composition()
    rank, config = len(spec.shape), spec.memory_config
    if not 0 < rank <= 4 or any(call.outputs) or spec.layout is not Layout.TILE or config.is_sharded():
        return None
    dim = call["dim"] % rank
    if call["indices_tensor"] is not None or not prod(spec.shape):
        return None
    x, out = PlannedTensor(spec), results[0].memory_config
    moved = x if dim == rank - 1 else transpose(c, x, dim, rank - 1, config)
    fill_padding(c, moved, -inf if call["largest"] else inf)
    k = results[0].shape[dim]
    found = k if rank == 4 and moved is x else -(-k // 32) * 32  # of other shapes whole tiles are found
    c.launch(("topk", moved.spec, found, call["largest"], call["sorted"], out))
    made = [c.allocate(tile_spec((*moved.spec.shape[:-1], found), result.dtype, out)) for result in results]
    if found != k:
        shape = (*moved.spec.shape[:-1], k)
        made = [_replace_by(c, one, "slice", tile_spec(shape, one.spec.dtype, out)) for one in made]
    if moved is not x:
        made = [c.replace(one, transpose(c, one, dim, rank - 1, out)) for one in made]
        c.free(moved)
    return c, [c.view(one, result) for one, result in zip(made, results, strict=True)]


def scan_stages(kind: str, *, backwards: bool = False) -> StageRule:
    """cumsum and cumprod run along the first of four dims; cumsum of bfloat16 along height and width as they are."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
        spec, c = call.specs[0], Composition()
        rank, config = len(spec.shape), spec.memory_config
        plain = spec.layout is Layout.TILE and not config.is_sharded() and not any(call.outputs)
        if not plain or not 0 < rank <= 4 or not prod(spec.shape):
            return None
        dtype = call["dtype"] or spec.dtype
        dim = call["dim"] % rank + 4 - rank
        source = PlannedTensor(spec)
        if dtype is not spec.dtype:
            source = typecast(c, source, dtype)
            spec = source.spec
        options = (kind, backwards or bool(call["reverse_order"]), key_of(call["memory_config"]))
        if dim == 0 or (kind == "sum" and spec.dtype is DataType.BFLOAT16 and dim > 1):
            made = c.run("accumulate", results[0], source, options=(dim, *options))
            c.free(source)
            return c, [made]
        order = [dim, 1, 2, 3]
        order[dim] = 0
        x = c.view(source, spec.with_shape(with_four_dims(spec.shape)))
        moved = permute(c, x, order, config)
        if moved.allocation != source.allocation:
            c.free(source)
        made = c.run(
            "accumulate",
            tile_spec(moved.spec.shape, spec.dtype, results[0].memory_config),
            moved,
            options=(0, *options),
        )
        c.free(moved)
        if moved.allocation != x.allocation:
            made = c.replace(made, permute(c, made, order, results[0].memory_config))
        return c, [c.view(made, results[0])]

    return stages
