"""Stages of reductions: TT-NN reduces width, height and batches by different programs, one dim after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.ops.catalogue.checks import normalize_dim, normalize_dims
from ttmesh.ops.catalogue.spec_rules import fit_shards, shard_over_all_cores
from ttmesh.ops.stages.divided_columns import count_cores, count_parts, reduce_parts
from ttmesh.ops.stages.movement_stages import (
    fill_padding,
    interleave,
    permute,
    reshape,
    slice_front,
    tile_spec,
    tilize,
    transpose,
    typecast,
    with_four_dims,
)
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

SUM, MEAN, MAX, MIN = "sum", "mean", "max", "min"
PAD_VALUES = {MAX: -inf, MIN: inf}
FAST = (DataType.BFLOAT16, DataType.BFLOAT8_B)  # formats that sums over batches are made in by a program of their own
PRODUCT_TILES = 32  # partial products of a full product

FitShards = Callable[[Call, Sequence[int], Layout], TensorSpec]


def _moved_memory(call: Call, config: MemoryConfig, spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
    """Where tiles go whose dims change places: shards without a shape grow with the tensor's, or take all cores."""
    if not _lacks_shards(config):
        return config
    held, moved = spec.memory_config.shard_spec, tile_spec(shape, spec.dtype, interleave(config))
    if held is not None:
        (rows, columns), (was, now) = held.shape, (prod(one.padded_shape[:-1]) for one in (spec, moved))
        if rows * now % (was * 32) == 0 and moved.padded_shape[-1] == spec.padded_shape[-1]:
            shards = ShardSpec(held.grid, (rows * now // was, columns), held.orientation)
            return MemoryConfig(config.memory_layout, config.buffer_type, shards)
    return shard_over_all_cores(config, moved, call)


def _lacks_shards(config: MemoryConfig) -> bool:
    return config.is_sharded() and config.shard_spec is None and config.nd_shard_spec is None


def _swap(shape: Sequence[int], dim: int) -> list[int]:
    """The shape with a dim and the height in each other's place."""
    swapped = list(shape)
    swapped[dim], swapped[-2] = swapped[-2], swapped[dim]
    return swapped


class Reduction:
    """One call of sum, mean, max or min on tiles."""

    def __init__(self, call: Call, kind: str, final: TensorSpec) -> None:
        spec, self.call = call.specs[0], call
        self.c, self.kind, self.final = Composition(), kind, final
        self.rank, self.scalar = len(spec.shape), 1.0 if call["scalar"] is None else call["scalar"]
        self.config: MemoryConfig = call["memory_config"] or spec.memory_config
        self.options = (key_of(call["compute_kernel_config"]), key_of(call["sub_core_grids"]))
        self.cores = count_cores(call)
        self.pad_value = PAD_VALUES.get(kind, 0.0)
        self.exact_float = (
            spec.dtype is DataType.FLOAT32 and kind in (MEAN, MAX) and not call["fast_and_approximate_mode"]
        )

    def run(self, x: PlannedTensor, dims: Sequence[int], fit: Callable[[Sequence[int]], MemoryConfig]) -> PlannedTensor:
        """Reduce these dims, which count from the front, and give the result its shape."""
        c, self.fit = self.c, fit
        chains = self.kind == SUM and x.spec.dtype is DataType.BFLOAT16 and 1 < len(dims) < self.rank
        filled = fill_padding(c, x, self.pad_value)
        held, left = filled, list(dims)
        if self.kind == SUM and x.spec.dtype in FAST and self.scalar == 1.0:
            batch = [dim for dim in dims if dim < self.rank - 2]
            left = [dim for dim in dims if dim >= self.rank - 2]
            if batch:
                last = DataType.BFLOAT16 if not left else DataType.FLOAT32
                held = self._over_batches(filled, batch, last if chains else x.spec.dtype, chains)
                c.free(filled)
                if not left:
                    return c.replace(held, reshape(c, held, self.final))
        reduced = self._over_dims(held, left, chains)
        result = reshape(c, reduced, self.final)
        c.replace(reduced, result)
        if held.allocation not in (result.allocation, reduced.allocation):
            c.free(held)
        return result

    def _over_batches(self, x: PlannedTensor, dims: Sequence[int], last: DataType, chains: bool) -> PlannedTensor:
        """Sums over batches, of whole tiles; what was padding is sliced off again."""
        c = self.c
        tiled = tilize(c, x, self.config)
        shape, now = list(tiled.spec.padded_shape), tiled
        for dim in sorted(dims, reverse=True):
            shape[dim] = 1
            ends = dim == min(dims)
            dtype = last if ends else DataType.FLOAT32 if chains else x.spec.dtype
            made = c.run("fast_reduce_nc", tile_spec(shape, dtype, self.config), now, options=(dim, *self.options))
            if now is not tiled:
                c.free(now)
            now = made
        if tiled is not x:
            c.free(tiled)
        sliced = slice_front(c, now, [min(a, b) for a, b in zip(x.spec.shape, shape, strict=True)])
        return c.replace(now, sliced)

    def _over_dims(self, x: PlannedTensor, dims: Sequence[int], chains: bool) -> PlannedTensor:
        """One program for the height, the width or both; other dims change places with the height first."""
        c, rank = self.c, self.rank
        together = (rank - 2, rank - 1)
        if not dims or tuple(dims) == together or (len(dims) == 1 and dims[0] >= rank - 2):
            axis = "HW" if tuple(dims) == together and rank > 1 else "H" if dims and dims[0] == rank - 2 else "W"
            volume = prod(x.spec.shape[dim] for dim in dims)
            scale = self.scalar / volume if self.kind == MEAN else self.scalar
            return self._reduce(x, axis, scale, DataType.BFLOAT16 if chains else None, self.kind)
        kind = SUM if self.kind == MEAN and len(dims) > 1 else self.kind
        scale = self.scalar / prod(x.spec.shape[dim] for dim in dims) if kind != self.kind else self.scalar
        now = x
        for count, dim in enumerate(sorted(dims, reverse=True)):
            at_end = dim == min(dims)
            own = scale if (at_end if kind in (MAX, MIN) else not count) else 1.0
            swapped = self._swap_dims(now, dim) if dim < rank - 2 else now
            if swapped.allocation != now.allocation and now is not x:
                c.free(now)
            axis = "W" if dim == rank - 1 else "H"
            own = own / swapped.spec.shape[max(dim, rank - 2)] if kind == MEAN else own
            dtype = (DataType.BFLOAT16 if at_end else DataType.FLOAT32) if chains else None
            reduced = self._reduce(swapped, axis, own, dtype, kind)
            if swapped.allocation != x.allocation:
                c.free(swapped)
            now = reduced
            if dim < rank - 2:
                now = c.replace(now, self._swap_dims(now, dim))
        return now

    def _swap_dims(self, x: PlannedTensor, dim: int) -> PlannedTensor:
        """A dim and the height in each other's place."""
        memory = _moved_memory(self.call, self.config, x.spec, _swap(x.spec.shape, dim))
        return transpose(self.c, x, dim, self.rank - 2, memory, self.pad_value)

    def _reduce(self, x: PlannedTensor, axis: str, scale: float, dtype: DataType | None, kind: str) -> PlannedTensor:
        """The reduce program; both axes of several tiles take two of them."""
        c, spec = self.c, x.spec
        tiled = tilize(c, x, spec.memory_config, self.pad_value)
        own = dtype or spec.dtype
        several = prod(tiled.spec.padded_shape) > 1024
        integers = spec.dtype is DataType.INT32
        if axis == "HW" and (several or integers or (self.exact_float and kind in (MEAN, MAX)) or scale < 0):
            wide = kind == SUM and (
                (dtype is DataType.BFLOAT16 and spec.dtype is DataType.FLOAT32) or spec.dtype is DataType.BFLOAT16
            )
            by_width = self._one(tiled, "W", DataType.FLOAT32 if wide else own, kind)
            made = self._one(by_width, "H", own, kind)
            c.free(by_width)
        else:
            made = self._one(tiled, axis, own, kind, divides=axis == "H")
        if tiled is not x:
            c.free(tiled)
        return made

    def _one(self, x: PlannedTensor, axis: str, dtype: DataType, kind: str, *, divides: bool = False) -> PlannedTensor:
        shape = list(x.spec.shape) if len(x.spec.shape) > 1 else [1, *x.spec.shape]
        if "W" in axis:
            shape[-1] = 1
        if "H" in axis:
            shape[-2] = 1
        four = with_four_dims(shape) if len(shape) < 4 else tuple(shape)
        source = self.c.view(x, tile_spec(with_four_dims(x.spec.shape), x.spec.dtype, x.spec.memory_config))
        made = tile_spec(four, dtype, _reduced_memory(self.config, source.spec, four) or self.fit(four))
        kind = SUM if kind == MEAN and x.spec.dtype is DataType.FLOAT32 else kind  # one program, another number
        parts = count_parts(source.spec, kind, self.cores) if divides else 1
        result = reduce_parts(self.c, source, made, parts, kind, (axis, kind, *self.options))
        return self.c.view(result, made.with_shape(shape[-max(len(x.spec.shape), 1) :]))


def _reduced_memory(config: MemoryConfig, source: TensorSpec, shape: Sequence[int]) -> MemoryConfig | None:
    """The source's cores, where the config names a sharding alone."""
    if not _lacks_shards(config) or source.memory_config.shard_spec is None:
        return None
    return fit_shards(config, tile_spec(shape, source.dtype, interleave(config)), source.memory_config)


def _reduce_rows(
    call: Call, kind: str, dim: int, result: TensorSpec
) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Rows over one dim: a batch changes places with the height; dropping the dim may move values."""
    spec, c, rank = call.specs[0], Composition(), len(call.specs[0].shape)
    config = result.memory_config
    if config.is_sharded():
        return None
    x, over = PlannedTensor(spec), dim
    if dim < rank - 2:
        x, over = _swap_rows(c, x, dim, config), rank - 2
    kept = list(x.spec.shape)
    kept[over] = 1
    rows = TensorSpec(kept, spec.dtype, Layout.ROW_MAJOR, memory_config=config)
    axis = "W" if over == rank - 1 else "H"
    parts = count_parts(x.spec, kind, count_cores(call)) if axis == "H" and kind in (SUM, MEAN) else 1
    made = reduce_parts(c, x, rows, parts, kind, (axis, kind, call["scalar"], "rows"))
    if over != dim:
        c.free(x)
        made = c.replace(made, _swap_rows(c, made, dim, config))
    if tuple(result.shape) == tuple(made.spec.shape):
        return c, [made]
    return c, [c.replace(made, reshape(c, made, result))]


def _swap_rows(c: Composition, x: PlannedTensor, dim: int, config: MemoryConfig) -> PlannedTensor:
    """A dim and the height in each other's place."""
    shape = list(x.spec.shape)
    shape[dim], shape[-2] = shape[-2], shape[dim]
    spec = TensorSpec(shape, x.spec.dtype, Layout.ROW_MAJOR, memory_config=config)
    return c.run("transpose", spec, x, options=(dim - len(shape), -2))


def reduce_stages(kind: str, fit: FitShards) -> StageRule:
    """The stages of sum, mean, max or min."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        spec = call.specs[0]
        rank = len(spec.shape)
        if rank == 0 or not prod(spec.shape) or call["output_layout"] is not None:
            return None
        dims = sorted(dim + rank for dim in normalize_dims(call["dim"], rank))
        if spec.layout is Layout.ROW_MAJOR and results[0].layout is Layout.ROW_MAJOR and len(dims) == 1:
            return _reduce_rows(call, kind, dims[0], results[0])
        if rank > 4:
            return None
        in_rows = spec.layout is not Layout.TILE  # tilized by the first program, if that needs no transpose
        if in_rows and (rank < 2 or results[0].layout is not Layout.TILE or not dims or dims[-1] < rank - 2):
            return None
        reduction = Reduction(call, kind, results[0])
        if call["scalar"] is not None and call["scalar"] < 0 and kind in (MAX, MIN):
            reduction = Reduction(call, MIN if kind == MAX else MAX, results[0])
        made = reduction.run(PlannedTensor(spec), dims, lambda shape: fit(call, shape, Layout.TILE).memory_config)
        return reduction.c, [made]

    return stages


def spread_stages(fit: FitShards) -> StageRule:
    """The stages of var and std: one pass over height and width, dims elsewhere permuted to them."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        spec, c = call.specs[0], Composition()
        rank, config = len(spec.shape), call["memory_config"] or spec.memory_config
        if rank > 4:
            return None
        dims = sorted(dim + rank for dim in normalize_dims(call["dim"], rank))
        given = PlannedTensor(spec)
        x = given
        if spec.layout is not Layout.TILE:  # rows are tilized where no dim changes places
            if not (rank > 1 and set(dims) <= {rank - 2, rank - 1}) or prod(spec.shape[dim] for dim in dims) == 1:
                return None
            x = tilize(c, given, spec.memory_config)
        if rank == 0 or prod(spec.shape[dim] for dim in dims) == 1:
            full = c.allocate(tile_spec(spec.shape, spec.dtype, config))
            return c, [c.replace(full, reshape(c, full, results[0]))]
        single = len(dims) == 1
        swap = list(range(rank))
        if single and dims[0] >= rank - 2:
            order = swap
        elif single:
            swap[dims[0]], swap[rank - 2] = rank - 2, dims[0]
            order = swap
        else:
            order = [dim for dim in range(rank) if dim not in dims] + dims
        after = [spec.shape[dim] for dim in order]
        where = _moved_memory(call, config, x.spec, after)
        moved = x if order == list(range(rank)) else permute(c, x, order, where)
        if moved is x and not single and config != spec.memory_config:
            moved = c.run("to_memory_config", tile_spec(spec.shape, spec.dtype, config), x)
        shape = list(moved.spec.shape) if rank > 1 else [1, *spec.shape]
        axis = ("W" if dims[0] == rank - 1 else "H") if single else "HW"
        for dim in [rank - 1 if axis == "W" else rank - 2] if single and rank > 1 else range(-len(dims), 0):
            shape[dim] = 1
        options = (call.name, axis, call["scalar"], call["correction"], key_of(call["compute_kernel_config"]))
        memory = _reduced_memory(config, moved.spec, shape) or fit(call, shape, Layout.TILE).memory_config
        made = c.run("welford", tile_spec(shape, spec.dtype, memory), moved, options=options)
        if single and dims[0] < rank - 2:
            back = permute(
                c, made, swap, _moved_memory(call, config, made.spec, [made.spec.shape[dim] for dim in swap])
            )
            made = c.replace(made, back)
        result = reshape(c, made, results[0])
        c.replace(made, result)
        if moved.allocation != result.allocation:
            c.free(moved)
        if x is not given:
            c.free(x)
        return c, [result]

    return stages


def product_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The stages of prod: partial products of everything, or batches multiplied, to which other dims are permuted."""
    spec, c = call.specs[0], Composition()
    rank, config = len(spec.shape), call["memory_config"] or spec.memory_config
    if not 0 < rank <= 4 or spec.layout is not Layout.TILE or call["dims"] or not prod(spec.shape):
        return None
    filled = fill_padding(c, PlannedTensor(spec), 1.0)
    if call["dim"] is None or rank == 1:
        made = _full_product(c, filled, config)
    else:
        made = _product_over_dim(c, filled, normalize_dim(call["dim"], rank) + 4, config, results[0])
    if made.spec.dtype is not spec.dtype:
        narrow = typecast(c, made, spec.dtype)
        made = c.replace(made, narrow)
    shaped = reshape(c, made, results[0])
    c.replace(made, shaped)
    c.free(filled)
    return c, [shaped]


def _full_product(c: Composition, x: PlannedTensor, config: MemoryConfig) -> PlannedTensor:
    dtype = DataType.FLOAT32 if x.spec.dtype in BLOCK_FLOATS else x.spec.dtype
    partial = c.run("prod_all", tile_spec((1, 1, 32, 32 * PRODUCT_TILES), dtype, config), x)
    made = c.allocate(tile_spec((), dtype, config))
    c.free(partial)
    return made


def _product_over_dim(
    c: Composition, x: PlannedTensor, dim: int, config: MemoryConfig, final: TensorSpec
) -> PlannedTensor:
    extents = with_four_dims(x.spec.shape)
    four = c.view(x, x.spec.with_shape(extents))
    orders = {2: (2, 0, 1, 3), 3: (3, 0, 1, 2)}
    moved = permute(c, four, orders[dim], config) if dim in orders else four
    shape = list(moved.spec.shape)
    shape[1 if dim == 1 else 0] = 1
    made = c.allocate(tile_spec(shape, x.spec.dtype, config))
    c.launch(("prod_nc", moved.spec, made.spec, dim == 1))
    if dim not in orders:
        return made
    required = permute(c, made, (1, 2, 0, 3), config)
    result = required
    if dim == 3:
        result = permute(c, required, (0, 1, 3, 2), config)
    c.free(made)
    if result.allocation != required.allocation:
        c.free(required)
    shaped = reshape(c, result, final)
    c.replace(result, shaped)
    if moved.allocation != four.allocation:
        c.free(moved)
    return shaped
