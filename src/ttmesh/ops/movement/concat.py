"""concat, stack, split, chunk, repeat and repeat_interleave."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim, out_of_bounds
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first, make_output_spec
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.movement.permute import transpose
from ttmesh.ops.movement.permuted_shards import permuted_memory
from ttmesh.ops.movement.piece_shards import piece_memory
from ttmesh.ops.movement.repeated_shards import repeat_spec
from ttmesh.ops.movement.reshape import reshape_tensor, unsqueeze
from ttmesh.ops.movement.slice_ops import slice_
from ttmesh.ops.pool.resample import upsample
from ttmesh.ops.stages.concat_stages import concat as join
from ttmesh.ops.stages.rows_stages import repeat_interleave_stages, repeat_stages
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.conversions import to_memory_config
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32


def _check_concat(call: Call) -> None:
    tensors, dim = call["tensors"], call["dim"]
    wrong = "ttnn.concat: expected a non-empty list of Tensors!"
    require(len(tensors) > 0, wrong, "at least one tensor", "Leave the call out for an empty list.")
    wrong = "optional output tensor currently unsupported!"
    require(call["output_tensor"] is None, wrong, "output_tensor=None", "Copy the result with ttnn.copy.")
    first = call.specs[0]
    rank = len(first.shape)
    position = normalize_dim(dim, rank, out_of_bounds(dim, rank))
    wrong = "Input tensor ranks must be equal"
    require(all(len(spec.shape) == rank for spec in call.specs), wrong, f"rank {rank}", "Reshape them to one rank.")
    other_dims = [tuple(n for i, n in enumerate(spec.shape, -rank) if i != position) for spec in call.specs]
    wrong = "All dimensions must be the same size except for the dimension along which the contenation is taking place."
    require(
        all(shape == other_dims[0] for shape in other_dims),
        wrong,
        f"shapes that agree but for dim {dim}, not {' and '.join(str(list(spec.shape)) for spec in call.specs)}",
        "Pad or slice the tensors first.",
    )
    if call.mesh is None:
        dtypes = {spec.dtype for spec in call.specs}
        require(len(dtypes) == 1, "All Tensors should have same dtypes.", "one dtype", "Convert with ttnn.typecast.")


def concat_lanes(tensors: Sequence[torch.Tensor], dim: int, groups: int) -> torch.Tensor:
    """Concatenate along a negative dim; with groups, slices of the tensors alternate."""
    if groups == 1:
        return torch.cat(list(tensors), dim)
    chunks = [tensor.chunk(groups, dim) for tensor in tensors]
    return torch.cat([chunks_of_tensor[i] for i in range(groups) for chunks_of_tensor in chunks], dim)


def _specialise_concat(case: Case) -> Lane | None:
    position, lane_axes = normalize_dim(case["dim"], len(case.specs[0].shape)), case.lane_axes
    if case["groups"] != 1 or len(case.specs) == 1:
        return None

    def cat(tensors: list[torch.Tensor]) -> torch.Tensor:
        dims = tensors[0].shape[:lane_axes]
        aligned = all(tensor.shape[:lane_axes] == dims for tensor in tensors)
        return torch.cat(tensors if aligned else align_mesh_dims(tensors, lane_axes), position)

    return cat


def _concat_alias(call: Call) -> Sequence[int] | None:
    same_memory = (call["memory_config"] or DRAM_MEMORY_CONFIG) == call.specs[0].memory_config
    return call.specs[0].shape if same_memory and len(call.specs) == 1 else None


def _compose(call: Call) -> tuple[Composition, PlannedTensor] | None:
    """TT-NN's composition of several tensors on a device; None for the rest."""
    config = call["memory_config"] or DRAM_MEMORY_CONFIG
    unknown = config.is_sharded() and config.shard_spec is None
    if call.mesh is None or len(call.specs) < 2 or unknown or not math.prod(call.specs[0].shape):
        return None
    c, first = Composition(), call.specs[0]
    dim = normalize_dim(call["dim"], len(first.shape))
    inputs = [PlannedTensor(spec) for spec in call.specs]

    def fit(spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
        return permuted_memory(call, spec, shape, (-2, -1))

    return c, join(c, inputs, dim, config, call["groups"], fit)


def _concat_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """In DRAM, wherever the inputs are, unless memory_config= says otherwise; what is joined in rows has no block floats."""
    composed = _compose(call)
    if composed is not None:
        return [composed[1].spec]
    return [make_output_spec(call, inferred[0][0], memory_config=DRAM_MEMORY_CONFIG)]


def _concat_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The programs of that composition."""
    composed = _compose(call)
    return None if composed is None else (composed[0], [composed[0].view(composed[1], results[0])])


@op(
    "ttnn.concat",
    golden=goldens.concat,
    out=_concat_spec,
    check=_check_concat,
    stages=_concat_stages,
    host=True,
    specialise=_specialise_concat,
    alias=_concat_alias,
)
def concat(tensors: Sequence[torch.Tensor], dim: int, groups: int, lane_axes: int) -> torch.Tensor:
    """Tensors concatenated along a dim; with groups, slices of the tensors alternate."""
    position = normalize_dim(dim, tensors[0].dim() - lane_axes)
    return tensors[0] if len(tensors) == 1 else concat_lanes(align_mesh_dims(tensors, lane_axes), position, groups)


@composite("ttnn.stack", golden=goldens.stack)
def stack(input_tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors concatenated along a new dim."""
    wrong = "Stack expects at least one tensor"
    require(len(input_tensors) > 0, wrong, "one tensor or more", "Leave the call out for an empty list.")
    rank = len(input_tensors[0].shape)
    wrong = f"Dimension out of range (expected to be in range of [{-rank - 1},{rank}], but got {dim})"
    require(-rank - 1 <= dim <= rank, wrong, f"a dim in [{-rank - 1}, {rank}]", "Check the rank.")
    position = dim if dim >= 0 else dim + rank + 1
    result: Tensor = concat([unsqueeze(tensor, position) for tensor in input_tensors], position)
    return result


def _splits_at_once(tensor: Tensor, dim: int, sizes: Sequence[int]) -> bool:
    """Whether one program makes all pieces: equal ones of whole tiles along the last dim, of two rows of tiles or more."""
    mesh, shape, number = tensor.device(), tensor.shape, len(sizes)
    if mesh is None or tensor.layout is not Layout.TILE or len(shape) < 2 or dim != -1 or number < 2:
        return False
    if min(sizes) != max(sizes) or shape[-1] % TILE or shape[-1] // TILE % number or min(shape[-2:]) < 2 * TILE:
        return False
    grid, leading = mesh.compute_with_storage_grid_size(), [1, 1, *shape[:-2]]
    batches, depth = math.prod(leading[:-1]), leading[-1]
    fits = (batches * depth if number == 2 else depth) <= grid.x and number <= grid.y
    return fits and (number == 2 or batches == 1)


@device_operation("ttnn.split", out=like_first)
def _make_pieces(input_tensor: torch.Tensor, number: int) -> list[torch.Tensor]:
    return list(input_tensor.chunk(number, dim=-1))


@composite("ttnn.split", golden=goldens.split)
def split(
    input_tensor: Tensor, split_size: int | Sequence[int], dim: int, memory_config: MemoryConfig | None
) -> list[Tensor]:
    """The tensor split along a dim into slices of this size (the last may be smaller), or of these sizes."""
    shape = list(input_tensor.shape)
    position = normalize_dim(dim, len(shape))
    extent = shape[position]
    if isinstance(split_size, int):
        wrong = f"split_size must be greater than 0, but got: {split_size}"
        require(split_size > 0, wrong, "a size of at least 1", "Choose a split_size of at least 1.")
        sizes = [min(split_size, extent - start) for start in range(0, extent, split_size)]
    else:
        sizes = [int(size) for size in split_size]
        wrong = f"split_size should be greater than 0, instead got: {{{', '.join(map(str, sizes))}}}"
        require(all(size > 0 for size in sizes), wrong, "sizes of at least 1", "Leave empty sizes out.")
        wrong = (
            f"split_sizes must sum exactly to the size of dimension {dim} ({extent}), but sizes {sizes} sum to "
            f"{sum(sizes)}"
        )
        require(sum(sizes) == extent, wrong, f"sizes that add up to {extent}", "Check the sum of the sizes.")
    config, source = memory_config, input_tensor
    if config is None and input_tensor.device() is not None:
        config = piece_memory(input_tensor, position, sizes)
    if _splits_at_once(input_tensor, position, sizes):
        pieces: list[Tensor] = _make_pieces(input_tensor=input_tensor, number=len(sizes), memory_config=config)
        return pieces
    leaves = config is not None and config.buffer_type is BufferType.DRAM and input_tensor.memory_config().is_l1()
    if leaves and input_tensor.device() is not None and len(sizes) > 2:
        source = to_memory_config(input_tensor, DRAM_MEMORY_CONFIG)
    return _slice_pieces(source, position, sizes, config)


def _slice_pieces(tensor: Tensor, dim: int, sizes: Sequence[int], config: MemoryConfig | None) -> list[Tensor]:
    slices, start, shape = [], 0, list(tensor.shape)
    for size in sizes:
        starts, ends = [0] * len(shape), list(shape)
        starts[dim], ends[dim] = start, start + size
        slices.append(slice_(tensor, starts, ends, memory_config=config))
        start += size
    return slices


@composite("ttnn.chunk", golden=goldens.chunk)
def chunk(input_tensor: Tensor, chunks: int, dim: int) -> list[Tensor]:
    """The tensor split along a dim into this many chunks; the last may be smaller."""
    require(
        chunks > 0, "Number of chunks must be greater than zero", "one chunk or more", "Ask for at least one chunk."
    )
    extent = input_tensor.shape[normalize_dim(dim, len(input_tensor.shape))]
    size = -(-extent // chunks)
    sizes = [min(size, extent - start) for start in range(0, extent, size)] if size else []
    return _slice_pieces(input_tensor, dim, sizes, None) if size else [input_tensor]


# -- repeat ----------------------------------------------------------------------------------------------------------


def _repeat(values: torch.Tensor, times: Sequence[int], lane_axes: int) -> torch.Tensor:
    counts = tuple(int(n) for n in times)
    missing = values.dim() - lane_axes - len(counts)
    counts = (*[1] * missing, *counts)
    expanded = values.reshape(
        *values.shape[:lane_axes], *[1] * (len(counts) - values.dim() + lane_axes), *values.shape[lane_axes:]
    )
    return expanded.repeat(*[1] * lane_axes, *counts)


def _check_repeat(call: Call) -> None:
    require(
        len(call.specs[0].shape) > 0 or len(call["repeat_dims"]) > 0,
        "repeat does not support rank 0 tensors",
        "a tensor of rank 1 or more",
        "Reshape it to [1] first.",
    )
    wrong = f"Unknown repeat implementation '{call['implementation']}': expected 'auto', 'native', or 'codegen'"
    require(
        call["implementation"] in ("auto", "native", "codegen"),
        wrong,
        "auto, native or codegen",
        "Leave implementation out.",
    )
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        wrong = "repeat: optional_output_tensor must not alias the input buffer"
        require(
            given.buffer is not call.tensors[0].buffer,
            wrong,
            "a tensor that shares no memory with the inputs",
            "Allocate another tensor for the result.",
        )


def _repeat_programs(call: Call) -> tuple[Hashable, ...]:
    """One program for all values of implementation=."""
    return (("ttnn.repeat", call.tensors[0].kind, tuple(call["repeat_dims"]), call["memory_config"]),)


def _repeat_alias(call: Call) -> Sequence[int] | None:
    """A view if every dim is repeated once."""
    counts, shape = tuple(call["repeat_dims"]), tuple(call.specs[0].shape)
    return (1,) * (len(counts) - len(shape)) + shape if all(count == 1 for count in counts) else None


@op(
    "ttnn.repeat",
    golden=goldens.repeat,
    out=repeat_spec,
    check=_check_repeat,
    programs=_repeat_programs,
    stages=repeat_stages,
    alias=_repeat_alias,
)
def repeat(input_tensor: torch.Tensor, repeat_dims: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The tensor repeated along each dim."""
    return _repeat(input_tensor, repeat_dims, lane_axes)


@device_operation("ttnn.repeat_interleave", stages=repeat_interleave_stages)
def _repeat_each(input_tensor: torch.Tensor, repeats: int, dim: int, lane_axes: int) -> torch.Tensor:
    return torch.repeat_interleave(input_tensor, repeats, normalize_dim(dim, input_tensor.dim() - lane_axes))


def _repeat_shards(tensor: Tensor, repeats: int, dim: int) -> Tensor:
    """Repeat sharded ROW_MAJOR [N, H, W, C] by upsampling, as TT-NN does; the result stays sharded."""
    n, height, width, channels = tensor.shape
    if dim in (1, 2):
        result: Tensor = upsample(tensor, [repeats, 1] if dim == 1 else [1, repeats])
    elif dim == 0:
        upsampled = upsample(reshape_tensor(tensor, (1, n, height * width, channels)), [repeats, 1])
        result = reshape_tensor(upsampled, (n * repeats, height, width, channels))
    else:
        result = transpose(upsample(transpose(tensor, 2, 3), [1, repeats]), 2, 3)
    return result


@composite(
    "ttnn.repeat_interleave",
    golden=goldens.repeat_interleave,
    direct=True,
)
def repeat_interleave(input_tensor: Tensor, repeats: int, dim: int, memory_config: MemoryConfig | None) -> Tensor:
    """Every element repeated along a dim; sharded inputs other than 4D ROW_MAJOR give a result interleaved in DRAM."""
    rank = len(input_tensor.shape)
    same_memory = memory_config is None or memory_config == input_tensor.memory_config()
    if repeats == 1 and rank != 1 and same_memory and input_tensor.device() is not None:
        return separate(input_tensor)
    normalize_dim(dim, rank)
    if not input_tensor.memory_config().is_sharded() or repeats == 1:
        memory = memory_config or input_tensor.memory_config()
        repeated: Tensor = _repeat_each(input_tensor=input_tensor, repeats=repeats, dim=dim, memory_config=memory)
        return repeated
    if input_tensor.layout is Layout.ROW_MAJOR and rank == 4:
        upsampled = _repeat_shards(input_tensor, repeats, dim % rank)
        return upsampled if memory_config is None else to_memory_config(upsampled, memory_config)
    interleaved = to_memory_config(input_tensor, DRAM_MEMORY_CONFIG)
    asked = {"repeats": repeats, "dim": dim, "memory_config": DRAM_MEMORY_CONFIG, "in_rows": True}
    result: Tensor = _repeat_each(input_tensor=interleaved, **asked)
    return result if memory_config is None else to_memory_config(result, memory_config)
