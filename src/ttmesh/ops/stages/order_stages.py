"""Stages of operations along one dim in order: sort, topk, cumsum and cumprod. TT-NN moves that dim to the last or first."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.stages.movement_stages import (
    fill_padding,
    move_to,
    permute,
    reshape,
    tile_spec,
    transpose,
    typecast,
    with_four_dims,
)
from ttmesh.ops.stages.pad_stages import pad_tensor
from ttmesh.ops.stages.slice_stages import slice_tensor
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]
NARROWEST = 64  # elements of a row that the programs take


def sort_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """The programs of a sort; along a dim of length 1 nothing is sorted."""
    spec = call.specs[0]
    if not spec.shape or spec.shape[call["dim"]] == 1 or any(call.outputs) or not prod(spec.shape):
        return None
    c = Composition()
    made = compose_sort(c, call, results)
    return c, [c.view(one, result) for one, result in zip(made, results, strict=True)]


def compose_sort(c: Composition, call: Call, results: Sequence[TensorSpec]) -> list[PlannedTensor]:
    """Rows are padded to a power of two, sorted and sliced; shards are sorted in DRAM, other dims as the last one."""
    x, rank = PlannedTensor(call.specs[0]), len(call.specs[0].shape)
    dim, config = call["dim"] % rank, results[0].memory_config
    plain = move_to(c, x, DRAM_MEMORY_CONFIG) if x.spec.memory_config.is_sharded() else x
    working = DRAM_MEMORY_CONFIG if config.is_sharded() else config
    low = 0.0 if x.spec.dtype is DataType.UINT16 else -inf
    high = 65535.0 if x.spec.dtype is DataType.UINT16 else inf
    value = low if call["descending"] else high
    moved = plain if dim == rank - 1 else _swap(c, plain, dim, plain.spec.memory_config)
    four = c.view(moved, moved.spec.with_shape(_four_dims(moved.spec.shape)))
    filled = _fill_height(c, four, value)
    rows = _widen(c, filled, value)
    _check_width(rows.spec)
    if rows is not filled:
        for stage in (filled, moved):
            if stage.allocation != plain.allocation:
                c.free(stage)
    c.launch(("sort", rows.spec, call["descending"], working, rows is filled))
    made = [
        c.allocate(TensorSpec(rows.spec.shape, result.dtype, result.layout, memory_config=working))
        for result in results
    ]
    made = [_slice_front(c, one, four.spec.shape[-1], -1, working) for one in made]
    made = [_slice_front(c, one, four.spec.shape[2], 2, working) for one in made]
    made = [c.view(one, one.spec.with_shape(moved.spec.shape)) for one in made]
    if moved is not plain:
        made = [c.replace(one, _swap(c, one, dim, x.spec.memory_config)) for one in made]
    for stage in (rows, filled, moved):
        if stage.allocation != plain.allocation:
            c.free(stage)
    if config.is_sharded():
        made = [c.replace(one, move_to(c, one, config)) for one in made]
    c.free(plain)
    return made


def _four_dims(shape: Sequence[int]) -> tuple[int, ...]:
    return with_four_dims(shape) if len(shape) <= 4 else (prod(shape[:-3]), *shape[-3:])


def _swap(c: Composition, x: PlannedTensor, dim: int, config: MemoryConfig) -> PlannedTensor:
    """A dim in the place of the last one."""
    rank, shape = len(x.spec.shape), list(x.spec.shape)
    if x.spec.layout is Layout.TILE:
        return transpose(c, x, dim, rank - 1, config)
    shape[dim], shape[-1] = shape[-1], shape[dim]
    made = TensorSpec(shape, x.spec.dtype, Layout.ROW_MAJOR, memory_config=config)
    return c.run("permute", made, x, options="rows" if dim == rank - 2 else ("rows", dim - rank))


def _fill_height(c: Composition, x: PlannedTensor, value: float) -> PlannedTensor:
    """Padding of tiles is filled; rows become a multiple of 32."""
    if x.spec.layout is Layout.TILE:
        return fill_padding(c, x, value)
    batch, height = prod(x.spec.shape[:2]), x.spec.shape[2]
    if batch * height % 32 == 0:
        return x
    unit = 32 // gcd(32, batch)
    return pad_tensor(c, x, [(0, 0), (0, 0), (0, -height % unit), (0, 0)], value, None)


def _widen(c: Composition, x: PlannedTensor, value: float) -> PlannedTensor:
    """Rows of a power of two."""
    width = x.spec.padded_shape[-1] if x.spec.layout is Layout.TILE else x.spec.shape[-1]
    wanted = 1 << (width - 1).bit_length()
    if wanted == width > 32:
        return x
    wanted = NARROWEST if wanted == 32 else wanted
    return pad_tensor(c, x, [(0, 0)] * 3 + [(0, wanted - x.spec.shape[-1])], value, None)


def _check_width(spec: TensorSpec) -> None:
    width = spec.padded_shape[-1]
    wrong = (
        f"Input shape inner dim {width} must be a power of two >= 64. Use ttnn.sort, which pads the sort dimension with "
        "+/-infinity to the next power of two."
    )
    require(width >= NARROWEST, wrong, "17 elements or more", "Convert it with ttnn.to_layout to TILE first.")


def _slice_front(c: Composition, x: PlannedTensor, extent: int, dim: int, config: MemoryConfig) -> PlannedTensor:
    """The first elements along a dim of four."""
    if x.spec.shape[dim] == extent:
        return x
    shape = list(x.spec.shape)
    shape[dim] = extent
    return c.replace(x, slice_tensor(c, x, [slice(0, n, 1) for n in shape], config))


def topk_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """The programs of topk."""
    spec = call.specs[0]
    moves = bool(spec.shape) and call["dim"] % len(spec.shape) != len(spec.shape) - 1
    plain = spec.layout is Layout.TILE and not spec.memory_config.is_sharded()
    c = Composition()
    if spec.shape and not prod(results[0].shape):  # TT-NN launches nothing
        return c, [c.allocate(result) for result in results]
    if not spec.shape or any(call.outputs) or call["indices_tensor"] is not None:
        return None
    if moves and not plain:
        return None
    made = compose_topk(c, call, [result.dtype for result in results], results[0].memory_config)
    return c, [c.view(one, result) for one, result in zip(made, results, strict=True)]


def compose_topk(c: Composition, call: Call, dtypes: Sequence[DataType], config: MemoryConfig) -> list[PlannedTensor]:
    """Other dims than the last change places with it; whole tiles are found, and sliced."""
    x, rank, k = PlannedTensor(call.specs[0]), len(call.specs[0].shape), call["k"]
    dim, out = call["dim"] % rank, call["memory_config"] or x.spec.memory_config
    value = -inf if call["largest"] else inf
    moved = x if dim == rank - 1 else _swap(c, x, dim, x.spec.memory_config)
    four = c.view(moved, moved.spec.with_shape(_four_dims(moved.spec.shape)))
    wide = four
    if four.spec.shape[-1] < NARROWEST:
        wide = pad_tensor(c, four, [(0, 0)] * 3 + [(0, NARROWEST - four.spec.shape[-1])], value, None)
    whole = wide.spec.layout is Layout.TILE or not any(n % 32 for n in wide.spec.shape[-2:])
    require(whole, "FillPad should only be used for tile layout", "TILE layout", "Convert it with ttnn.to_layout.")
    filled = fill_padding(c, wide, value)
    found = k if rank == 4 and moved is x else -(-k // 32) * 32  # of other shapes whole tiles are found
    shape = (*wide.spec.shape[:-1], found)
    specs = [tile_spec(shape, dtype, out) for dtype in dtypes]
    c.launch(("topk", filled.spec, -(-k // 32), call["largest"], call["sorted"], call["stable"], out, wide is four))
    made = [c.allocate(one) for one in specs]
    made = [_slice_front(c, one, k, -1, out) for one in made]
    wanted = TensorSpec((*moved.spec.shape[:-1], k), x.spec.dtype, Layout.TILE)
    if rank == 1 or rank > 4:
        made = [c.replace(one, reshape(c, one, _as(wanted, one.spec))) for one in made]
    else:
        made = [c.view(one, _as(wanted, one.spec)) for one in made]
    if moved is not x:
        made = [c.replace(one, _swap(c, one, dim, x.spec.memory_config)) for one in made]
    for stage in (filled, wide, moved):
        if stage.allocation != x.allocation:
            c.free(stage)
    return made


def _as(wanted: TensorSpec, spec: TensorSpec) -> TensorSpec:
    return TensorSpec(wanted.shape, spec.dtype, Layout.TILE, memory_config=spec.memory_config)


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
        direct = kind == "sum" and not backwards and spec.dtype is DataType.BFLOAT16 and dim > 1
        if dim == 0 or direct:
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
