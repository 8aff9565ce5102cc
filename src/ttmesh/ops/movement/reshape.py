"""reshape, view, squeeze, unsqueeze and expand; views share the input's buffer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, PrintedEnum, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, refit_shards
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.movement.copy_ops import fill_implicit_tile_padding
from ttmesh.ops.movement.repeated_shards import repeat_spec
from ttmesh.ops.movement.reshard import interleaved_to_sharded, sharded_to_interleaved
from ttmesh.ops.stages.movement_stages import reshape_stages
from ttmesh.ops.stages.rows_stages import repeat_stages
from ttmesh.tensor import operators
from ttmesh.tensor.calls.conversions import to_memory_config
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


class TileReshapeMapMode(PrintedEnum):
    """Whether TT-NN caches its map from old to new tiles; it has no effect in ttmesh."""

    CACHE = 0
    RECREATE = 1


def make_view(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """A tensor over the same memory with another spec."""
    mesh = tensor.device()
    if mesh is not None:
        kind = kind_of(spec, tensor.kind.topology, tensor.kind.presence)
        return tensor.make_view(kind)
    axes = tensor.mesh_shape.dims()
    values = spec.view_of(tensor.lanes, tensor.spec, axes)
    if values is None and prod(spec.shape) == prod(tensor.shape):
        values = tensor.lanes.reshape(*tensor.lanes.shape[:axes], *spec.shape)
    if values is None:
        values = spec.from_bytes(tensor.spec.to_bytes(tensor.lanes, axes), axes)
    return tensor.make_host_tensor(spec, values)


def infer_shape(shape: Sequence[int], volume: int) -> tuple[int, ...]:
    """The shape with its -1 filled in."""
    target = tuple(int(extent) for extent in shape)
    if -1 not in target:
        return target
    used = f"({''.join(f'{extent},' for extent in target)})"
    wrong = f"Shape cannot have more than 1 elements that is set to -1! Shape used: {used}"
    require(target.count(-1) == 1, wrong, "at most one -1", "Pass -1 for one dim only.")
    known_volume = prod(extent for extent in target if extent != -1)
    wrong = (
        f"cannot reshape tensor of 0 elements into shape ({','.join(map(str, target))},) because the unspecified "
        "dimension size -1 can be any value and is ambiguous"
    )
    require(known_volume != 0, wrong, "no 0 together with -1", "Pass every dim instead of -1.")
    wrong = f"Invalid arguments to reshape: {volume} elements to {list(target)}"
    require(volume % known_volume == 0, wrong, "equal volumes", "Check the volume of the shape.")
    return tuple(volume // known_volume if extent == -1 else extent for extent in target)


def is_view(spec: TensorSpec, shape: Sequence[int], memory_config: MemoryConfig) -> bool:
    """Whether TT-NN reshapes without a copy: rows keep their length, memory its type, and padding its position."""
    config = spec.memory_config
    rows = spec.shape[-2] if len(spec.shape) > 1 else 1
    new_rows = shape[-2] if len(shape) > 1 else 1
    return (
        (spec.shape[-1] if spec.shape else 1) == (shape[-1] if shape else 1)
        and config.is_sharded() == memory_config.is_sharded()
        and config.is_l1() == memory_config.is_l1()
        and (spec.layout is Layout.ROW_MAJOR or rows == new_rows or (rows % 32 == 0 and new_rows % 32 == 0))
    )


def _reshape_in_place(spec: TensorSpec, shape: Sequence[int], padded: Sequence[int] | None = None) -> TensorSpec | None:
    """The spec with this shape in the same memory, or None if its shards do not fit."""
    try:
        fitted = spec.with_shape(shape)
        return fitted if padded is None else fitted.with_padded_shape(padded)
    except ShapeError:
        return None


def _copy_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    spec, shape = call.specs[0], inferred[0][0]
    config: MemoryConfig = call["memory_config"] or spec.memory_config
    tile = spec.tile if spec.layout is Layout.TILE else None
    if config.is_sharded():
        plain = TensorSpec(shape, spec.dtype, spec.layout, tile=tile)
        source = config if config.shard_spec is not None else spec.memory_config
        wrong = (
            f"ttnn.reshape: sharded output memory_config (layout={config.memory_layout}) was supplied without a shard_spec, "
            "and no input_shard_spec is available (input is likely interleaved). Either provide a shard_spec on "
            "memory_config or omit memory_config to inherit it from the input tensor."
        )
        require(source.shard_spec is not None, wrong, "a shard_spec", "Pass a memory_config with a shard_spec.")
        config = refit_shards(config, plain, source)
    return [TensorSpec(shape, spec.dtype, spec.layout, tile=tile, memory_config=config)]


def _reshape(input_tensor: torch.Tensor, shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    return input_tensor.reshape(*input_tensor.shape[:lane_axes], *shape)


_RESHAPE = device_operation("ttnn.reshape", out=_copy_spec, stages=reshape_stages)(_reshape)


def reshape_tensor(
    tensor: Tensor,
    shape: Sequence[int],
    padded: Sequence[int] | None = None,
    memory_config: MemoryConfig | None = None,
    fill: float | None = None,
) -> Tensor:
    """The tensor in this shape: itself, a view of its buffer, or a copy, as TT-NN decides."""
    spec, volume = tensor.spec, prod(tensor.shape)
    target = infer_shape(shape, volume)
    if tuple(spec.shape) == target and (padded is None or tuple(spec.padded_shape) == tuple(padded)):
        moves = memory_config is not None and tensor.device() is not None and memory_config != spec.memory_config
        return to_memory_config(tensor, memory_config) if moves and memory_config is not None else separate(tensor)
    if volume == 0:
        wrong = "Tensor volume is 0, but shape's volume is not"
        require(prod(target) == 0, wrong, "a shape with a 0", "Keep a 0 in the shape.")
        return make_view(tensor, spec.with_shape(target))
    wrong = "Tensor volume is not 0, but shape volume is 0"
    require(prod(target) != 0, wrong, f"{volume} elements", "Check the volume of the shape.")
    if padded is not None and tuple(padded) == target:
        padded = None
    view_spec = _reshape_in_place(spec, target, padded)
    if tensor.device() is None and view_spec is not None:
        return make_view(tensor, view_spec)
    config = memory_config or spec.memory_config
    if view_spec is not None and is_view(spec, target, config):
        wrong = "MeshBuffer must be large enough to hold the tensor."
        fits = view_spec.packed_size_bytes <= spec.packed_size_bytes
        require(fits, wrong, "no more bytes than the tensor has", "Check the volume of the shape.")
        return make_view(tensor, view_spec)
    if prod(target) != volume:
        extents = target if padded is None else padded
        keeps_tiles = spec.layout is Layout.TILE and fills_tiles(spec, extents) and extents[-1] == spec.padded_shape[-1]
        wrong = "Attempting to reshape between two shapes with different volumes"
        if view_spec is None or not keeps_tiles:
            raise ShapeError(
                f"{wrong}: {list(spec.shape)} and {list(target)}",
                expected="equal volumes",
                fix="Choose a shape of the tensor's volume.",
            )
        return make_view(tensor, view_spec)
    wrong = "Can only work with bfloat16/float32 or int32/uint32 tensors"
    small = tensor.device() is not None and spec.dtype in (DataType.UINT16, DataType.UINT8)
    require(not small, wrong, "a format that is moved on the chip", "Convert it with ttnn.typecast.")
    result: Tensor = _RESHAPE(input_tensor=tensor, shape=target, memory_config=memory_config)
    return _fill_padding(result, None if spec.dtype in BLOCK_FLOATS else fill)  # block floats are filled on the way


def fills_tiles(spec: TensorSpec, shape: Sequence[int]) -> bool:
    """Whether a shape has two dims or more and its matrices fill tiles without padding."""
    height, width = spec.tile.tile_shape
    return len(shape) > 1 and shape[-2] % height == 0 and shape[-1] % width == 0


def _fill_padding(tensor: Tensor, fill: float | None) -> Tensor:
    """Fill the padding of tiles; sharded tensors are made interleaved for that and resharded, as in TT-NN."""
    spec, config = tensor.spec, tensor.memory_config()
    if fill is None or spec.layout is not Layout.TILE or fills_tiles(spec, spec.shape):
        return tensor
    interleaved_config = MemoryConfig(TensorMemoryLayout.INTERLEAVED, config.buffer_type)
    interleaved = sharded_to_interleaved(tensor, interleaved_config) if config.is_sharded() else tensor
    filled: Tensor = fill_implicit_tile_padding(interleaved, fill)
    result: Tensor = interleaved_to_sharded(filled, config) if config.is_sharded() else filled
    return result


@composite("ttnn.reshape", golden=goldens.reshape, direct=True)
def reshape(
    input_tensor: Tensor,
    memory_config: MemoryConfig | None = None,
    shape: Sequence[int] = (),
    logical_shape: Sequence[int] | None = None,
    padded_shape: Sequence[int] | None = None,
    pad_value: float | None = None,
    skip_padding_fill: bool = False,
) -> Tensor:
    """The same values in another shape; a view of the same buffer if rows and tiles do not change."""
    target = shape if logical_shape is None else logical_shape
    if (
        padded_shape is None and not isinstance(target, Shape) and -1 not in target
    ):  # TT-NN makes a Shape of numbers first
        before = list(input_tensor.shape)
        wrong = f"Invalid arguments to reshape: {before} and {list(target)} have different volumes"
        require(
            prod(before) == prod(target), wrong, "equal volumes", "Choose a shape of the tensor's volume, or pass -1."
        )
    return reshape_tensor(input_tensor, target, padded_shape, memory_config, None if skip_padding_fill else pad_value)


@composite("ttnn.reshape_on_device", direct=True)
def reshape_on_device(
    input_tensor: Tensor, W: int, Z: int, Y: int, X: int, memory_config: MemoryConfig | None
) -> Tensor:
    """The tensor with these four dims; one may be -1."""
    spec = input_tensor.spec
    target = infer_shape((W, Z, Y, X), spec.shape.volume())
    require(prod(target) == spec.shape.volume(), "Invalid arguments to reshape", "equal volumes", "Check the dims.")
    moves = len(spec.shape) != 4 or tuple(spec.shape[-2:]) != tuple(target[-2:])
    wrong = f"Input tensor dtype must be BFLOAT16 or FLOAT32 but got DataType::{spec.dtype.name}"
    taken = spec.layout is Layout.ROW_MAJOR or not moves or spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32)
    require(taken, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast, or use ttnn.reshape.")
    held, needed = prod(spec.padded_shape), prod(spec.with_shape(target).padded_shape)
    wrong = (
        "Tile reshape requires the input and output to have the same tile-padded physical volume, but got input "
        f"{held} and output {needed}. Reshapes that change the tile padding are not supported."
    )
    fits = spec.layout is Layout.ROW_MAJOR or not moves or held == needed
    require(fits, wrong, "shapes of as many tiles", "Use ttnn.reshape, which may move data.")
    return reshape_tensor(input_tensor, (W, Z, Y, X), None, memory_config)


@composite("ttnn.view", golden=goldens.reshape, direct=True)
def view(input_tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The same buffer in another shape; raises if that would need a copy."""
    spec, volume = input_tensor.spec, prod(input_tensor.shape)
    target = infer_shape(shape, volume)
    if tuple(spec.shape) == target:
        return separate(input_tensor)
    wrong = f"Invalid arguments to reshape: {volume} elements to {list(target)}"
    require(prod(target) == volume, wrong, "equal volumes", "Check the volume of the shape.")
    wrong = "View requires the tensor be stored on device, use reshape instead"
    require(input_tensor.device() is not None, wrong, "a device tensor", "Move it with ttnn.to_device.")
    wrong = (
        f"The last dimension can not change in view, attempting to change last dimension from {spec.shape[-1]} to "
        f"{target[-1]}, use reshape instead"
    )
    require(spec.shape[-1] == target[-1], wrong, "the same last dim", "Use ttnn.reshape, which may move data.")
    rows, new_rows = (dims[-2] if len(dims) > 1 else 1 for dims in (spec.shape, target))
    wrong = f"Invalid second last dims for TILED reshape, from {rows} to {new_rows}, use reshape instead"
    require(
        is_view(spec, target, spec.memory_config),
        wrong,
        "equal second last dims, or multiples of 32",
        "Use ttnn.reshape, which may move data.",
    )
    return make_view(input_tensor, spec.with_shape(target))


@composite("ttnn.experimental.view", golden=goldens.reshape, direct=True)
def experimental_view(
    input_tensor: Tensor, shape: Sequence[int] = (), N: int = 0, C: int = 0, H: int = 0, W: int = 0
) -> Tensor:
    """The same buffer in another shape, without view's checks of padding."""
    target = infer_shape(shape if len(shape) else (N, C, H, W), prod(input_tensor.shape))
    wrong = "Invalid arguments to reshape"
    require(prod(target) == prod(input_tensor.shape), wrong, "equal volumes", "Check the volume of the shape.")
    after = _view_spec(input_tensor.spec, target)
    wrong = "MeshBuffer must be large enough to hold the tensor."
    fits = prod(after.padded_shape) <= prod(input_tensor.spec.padded_shape)
    require(fits, wrong, "no more tiles than the tensor has", "Use ttnn.reshape, which may move data.")
    return make_view(input_tensor, after)


def _view_spec(spec: TensorSpec, shape: Sequence[int]) -> TensorSpec:
    """The spec with this shape over the same bytes; rows of another length change the height of shards."""
    config, width = spec.memory_config, shape[-1] if len(shape) else 1
    shards = config.shard_spec
    if shards is None or spec.layout is Layout.TILE or shards.shape[1] == width:
        return spec.with_shape(shape)
    shard_spec = ShardSpec(shards.grid, (prod(shards.shape) // width, width), shards.orientation)
    memory = MemoryConfig(config.memory_layout, config.buffer_type, shard_spec)
    return TensorSpec(shape, spec.dtype, spec.layout, memory_config=memory)


# -- dims of length 1 ----------------------------------------------------------------------------------------------------


@composite("ttnn.squeeze", golden=goldens.squeeze, direct=True)
def squeeze(input_tensor: Tensor, dim: int | Sequence[int] | None) -> Tensor:
    """Remove these dims of length 1, or all of them."""
    shape = list(input_tensor.shape)
    rank = len(shape)
    dims = list(range(rank)) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    dims = sorted((position + rank if position < 0 else position for position in dims), reverse=True)
    if rank == 0:
        wrong = f"Dimension out of range (expected to be of [-1, 0], but got {dims[0] if dims else 0})"
        require(all(position in (-1, 0) for position in dims), wrong, "dim 0", "Use dim 0 or -1.")
        return separate(input_tensor)
    for i, position in enumerate(dims):
        wrong = f"dim {position} appears multiple times in the list of dims"
        require(i == 0 or position != dims[i - 1], wrong, "each dim once", "Name every dim once.")
        wrong = f"Dimension out of range (expected to be in range of [{-rank},{rank - 1}], but got {position})"
        require(0 <= position < rank, wrong, "a dim of the tensor", "Check the rank.")
        if shape[position] == 1:
            del shape[position]
    return reshape_tensor(input_tensor, shape)


@composite("ttnn.unsqueeze", golden=goldens.unsqueeze, direct=True)
def unsqueeze(input_tensor: Tensor, dim: int) -> Tensor:
    """Insert a dim of length 1 at this position."""
    shape = list(input_tensor.shape)
    rank = len(shape)
    wrong = f"Dimension out of range (expected to be in range of [{-rank - 1},{rank}], but got {dim})"
    require(-rank - 1 <= dim <= rank, wrong, f"a dim in [{-rank - 1}, {rank}]", "Pass a dim in that range.")
    shape.insert(dim if dim >= 0 else rank + 1 + dim, 1)
    return reshape_tensor(input_tensor, shape)


@composite("ttnn.unsqueeze_to_4D", golden=goldens.unsqueeze_to_4d, direct=True)
def unsqueeze_to_4D(tensor: Tensor) -> Tensor:
    """Prepend dims of length 1 until there are four."""
    rank = len(tensor.shape)
    if rank > 4:
        raise MeshError(
            f"Tensor rank is greater than 4: {list(tensor.shape)}",
            expected="at most four dims",
            fix="Reshape it to four dims.",
        )
    return reshape_tensor(tensor, (*[1] * (4 - rank), *tensor.shape))


# -- expand --------------------------------------------------------------------------------------------------------------


def _expand_shape(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    missing = len(target) - len(shape)
    wrong = "Output rank must be >= input rank for expand"
    require(missing >= 0, wrong, f"at least {len(shape)} dims", "Pass every dim, -1 for those that stay.")
    wrong = "Only size 1 dimensions can be expanded in the output shape"
    current = (*[1] * missing, *shape)
    expanded = tuple(old if new == -1 else new for old, new in zip(current, target, strict=True))
    require(
        all(old in (1, new) for old, new in zip(current, expanded, strict=True)),
        wrong,
        f"a shape that {shape} expands to",
        "Only dims of length 1 can grow.",
    )
    return expanded


def _expand_alias(call: Call) -> Sequence[int] | None:
    """A view if only dims of length 1 are added in front."""
    local = tuple(call.specs[0].shape)
    full = tuple(_expand_shape(local, tuple(call["output_shape"])))
    require(bool(full), "repeat does not support rank 0 tensors", "dims", "Reshape it to [1] first.")
    return full if prod(full) == prod(local) else None


@op("ttnn.expand", golden=goldens.expand, out=repeat_spec, stages=repeat_stages, alias=_expand_alias)
def expand(input_tensor: torch.Tensor, output_shape: Sequence[int], lane_axes: int) -> torch.Tensor:
    """The values repeated along dims of length 1 until the shape is reached; -1 keeps a dim."""
    local, mesh = input_tensor.shape[lane_axes:], input_tensor.shape[:lane_axes]
    full = _expand_shape(local, tuple(output_shape))
    return input_tensor.reshape(*mesh, *[1] * (len(full) - len(local)), *local).expand(*mesh, *full)


operators.fill(reshape=reshape, squeeze=squeeze, unsqueeze=unsqueeze)
