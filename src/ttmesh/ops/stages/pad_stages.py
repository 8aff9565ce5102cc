"""Stages of ttnn.pad: which memory a padded tensor takes, through which programs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.stages.movement_stages import fill_padding, move_to, typecast, with_four_dims
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Padding = Sequence[tuple[int, int]]
L1_ALIGNMENT = 16


def pad_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """TT-NN's composition; where padding in tiles is enough, its result is the tensor itself, here a copy."""
    c = Composition()
    made = pad_tensor(c, PlannedTensor(call.specs[0]), call["padding"], call["value"], call["memory_config"])
    return c, [c.allocate(results[0]) if made.allocation is None else c.view(made, results[0])]


def padded_spec(spec: TensorSpec, padding: Padding, value: float, config: MemoryConfig | None) -> TensorSpec:
    """The spec of a padded tensor; raises TT-NN's refusal where shards of it do not fit."""
    return pad_tensor(Composition(), PlannedTensor(spec), padding, value, config).spec


def pad_tensor(
    c: Composition, x: PlannedTensor, padding: Padding, value: float, config: MemoryConfig | None
) -> PlannedTensor:
    """A padded tensor; raises TT-NN's refusal where its shards do not fit."""
    now, left = x, list(padding)
    if len(x.spec.shape) > 4:
        now = _pad_leading(c, x, left, value)
        if not any(map(any, left)):
            return now if config is None else c.replace(now, move_to(c, now, config))
    tiles = x.spec.layout is Layout.TILE
    made = _pad_tiles(c, now, left, value, config) if tiles else _pad_rows(c, now, left, value, config)
    if now is not x:
        c.replace(now, made)
    return made


def _pad_leading(c: Composition, x: PlannedTensor, padding: list[tuple[int, int]], value: float) -> PlannedTensor:
    """Dims before the last four, one program each; what is done leaves the list."""
    now, rank = x, len(x.spec.shape)
    for dim in range(rank - 3):
        shape = now.spec.shape
        if not any(padding[dim]) or (dim == rank - 4 and prod(shape[: rank - 3]) == shape[dim]):
            continue
        four = (prod(shape[:dim]), prod(shape[dim : rank - 2]), *shape[-2:])
        inner = prod(shape[dim + 1 : rank - 2])
        before, after = padding[dim]
        wide = [(0, 0), (before * inner, after * inner), (0, 0), (0, 0)]
        made = pad_tensor(c, c.view(now, now.spec.with_shape(four)), wide, value, None)
        grown = [n + sum(padding[dim]) if i == dim else n for i, n in enumerate(shape)]
        now, padding[dim] = c.replace(now, c.view(made, made.spec.with_shape(grown))), (0, 0)
    return now


def _pad_rows(
    c: Composition, x: PlannedTensor, padding: Padding, value: float, config: MemoryConfig | None
) -> PlannedTensor:
    made = _pad_whole(c, x, padding, value, config)
    shape = [before + n + after for n, (before, after) in zip(x.spec.shape, padding, strict=True)]
    return c.view(made, made.spec.with_shape(shape))


def _pad_tiles(
    c: Composition, x: PlannedTensor, padding: Padding, value: float, config: MemoryConfig | None
) -> PlannedTensor:
    """The padding of tiles is filled in place; only new tiles take a program and memory."""
    held, spec = x.spec.memory_config, x.spec
    wanted = spec.with_memory_config(MemoryConfig()).with_shape(
        [n + after for n, (_, after) in zip(spec.shape, padding, strict=True)]
    )
    filled = fill_padding(c, x, value, config)
    stays = wanted.shape[:-2] == spec.shape[:-2] and wanted.padded_shape[-2:] == spec.padded_shape[-2:]
    if len(spec.shape) == 1 or stays:
        large = prod(wanted.padded_shape) <= prod(spec.padded_shape)
        wrong = "MeshBuffer must be large enough to hold the tensor."
        require(large, wrong, "one row of tiles", "Give the tensor two dims with ttnn.unsqueeze first.")
        made = c.view(filled, wanted.with_memory_config(filled.spec.memory_config))
    else:
        whole = [(0, after - before) for before, after in zip(spec.padded_shape, wanted.padded_shape, strict=True)]
        padded = _pad_whole(c, filled, whole, value, config)
        made = c.view(padded, wanted.with_memory_config(padded.spec.memory_config))
        if filled.allocation != x.allocation:
            c.replace(filled, made)
    asked = held if config is None else config
    if (made.spec.memory_config.shard_spec is None) == (asked.shard_spec is None):
        return made
    return c.replace(made, move_to(c, made, config or _height_shards(wanted.shape, held)))


def _pad_whole(
    c: Composition, x: PlannedTensor, padding: Padding, value: float, config: MemoryConfig | None
) -> PlannedTensor:
    """Padding by whole tiles or by rows, in four dims; bfloat8_b is padded as bfloat16."""
    spec = x.spec
    if spec.dtype is DataType.BFLOAT8_B and spec.layout is Layout.TILE:
        wide = typecast(c, x, DataType.BFLOAT16)
        padded = _pad_whole(c, wide, padding, value, config)
        made = typecast(c, padded, DataType.BFLOAT8_B)
        c.free(padded)
        c.free(wide)
        return made
    rank = len(spec.shape)
    if rank > 4:
        four, ends = (prod(spec.shape[: rank - 3]), *spec.shape[-3:]), list(padding[-4:])
    else:
        four, ends = with_four_dims(spec.shape), [*[(0, 0)] * (4 - rank), *padding]
    source = c.view(x, spec.with_shape(four))
    held = source.spec.padded_shape if spec.layout is Layout.TILE else four
    shape = tuple(before + n + after for n, (before, after) in zip(held, ends, strict=True))
    return _pad_four(c, source, shape, tuple(before for before, _ in ends), value, config)


def _pad_four(
    c: Composition,
    x: PlannedTensor,
    shape: tuple[int, ...],
    start: tuple[int, ...],
    value: float,
    config: MemoryConfig | None,
) -> PlannedTensor:
    """One program; height shards that get wider and higher take two."""
    own = tuple(x.spec.shape)
    if own == shape:
        return x
    held, asked = x.spec.memory_config, config or x.spec.memory_config
    by_height = held.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED and asked.shard_spec is not None
    if by_height and own[3] != shape[3]:
        wide = (*own[:3], shape[3])
        asked = _height_shards(wide, held)
        if prod(own[:3]) != prod(shape[:3]):
            first = _pad_four(c, x, wide, (0, 0, 0, start[3]), value, asked)
            made = _pad_four(c, first, shape, start, value, config or _height_shards(shape, held))
            c.free(first)
            return made
    made_spec = TensorSpec(shape, x.spec.dtype, x.spec.layout, memory_config=asked)
    _check_program(x.spec, shape, start, asked)
    return c.run("pad", made_spec, x, options=(start, value))


def _check_program(spec: TensorSpec, shape: Sequence[int], start: Sequence[int], asked: MemoryConfig) -> None:
    """What the program refuses."""
    fits = all(n + first <= most for n, first, most in zip(spec.shape, start, shape, strict=True))
    wrong = "Output size cannot fit input with offset"
    require(fits, wrong, f"a shape that holds {list(spec.shape)}", "Choose a larger shape, or a smaller start.")
    tiles = spec.layout is Layout.TILE
    taken = ("FLOAT32", "BFLOAT16", "INT32", "UINT32", "UINT16")
    wrong = f"Cannot pad {'tilized' if tiles else 'RM'} tensor with specified format"
    require(spec.dtype.name in taken, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    for side, config in (("Input", spec.memory_config), ("Output", asked)):
        if config.shard_spec is None or (tiles and side == "Input"):
            continue
        width = config.shard_spec.shape[1]
        size = width * element_bytes(spec.dtype)
        if size % L1_ALIGNMENT:
            raise ShapeError(
                f"{side} row-major shard width {width} gives page size {size} bytes, which must be aligned to "
                f"{L1_ALIGNMENT} bytes",
                expected=f"rows of a multiple of {L1_ALIGNMENT} bytes",
                fix="Choose another width, or interleaved memory.",
            )


def _height_shards(shape: Sequence[int], held: MemoryConfig) -> MemoryConfig:
    """The rows of a shape divided over the cores that hold the tensor."""
    assert held.shard_spec is not None, "asked of sharded tensors only"
    cores = held.shard_spec.grid
    shards = ShardSpec(cores, [div_up(prod(shape[:-1]), cores.num_cores()), shape[-1]])
    return MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, held.buffer_type, shards)
