"""typecast, tilize, untilize and their padded forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, FLOATS, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.chip.formats.storage import round_through, to_lane
from ttmesh.chip.formats.tiles import Tile
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, fit_shards, inherit_memory_config, like_first, make_output_spec
from ttmesh.ops.goldens import quantize as goldens
from ttmesh.ops.stages.movement_stages import tilize_stages, typecast_stages, untilize_stages
from ttmesh.tensor.calls.conversions import to_dtype
from ttmesh.tensor.calls.lane_calls import rounds_result
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.host_shapes import box, pad_values
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.page_extents import element_bytes
from ttmesh.tensor.spec.spec_checks import check_dtype, check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

# -- typecast ------------------------------------------------------------------------------------------------------------


def convert_values(values: torch.Tensor, source: DataType, dtype: DataType) -> torch.Tensor:
    """Convert values as the chip does; the caller rounds them to the format."""
    if dtype in BLOCK_FLOATS and source in FLOATS:
        # rounded to nearest as the host packs, so that the packer truncates nothing
        return round_through(values, lambda exact: to_lane(exact, dtype))
    if dtype in FLOATS:
        return values
    if dtype is DataType.UINT16:
        if source in BLOCK_FLOATS:
            return values.long().clamp(0, 0xFFFF)
        return (torch.floor(values.float() + 0.5) if source in FLOATS else values).long().clamp(0, 0xFFFF)
    if dtype is DataType.UINT32 and source in FLOATS:
        return values.float().long().clamp(min=0)
    return values.float().long() if source in FLOATS and dtype is not DataType.INT32 else values


@rounds_result
def _cast(
    input_tensor: torch.Tensor,
    specs: Sequence[TensorSpec],
    dtype: DataType | None = None,
    output_dtype: DataType | None = None,
) -> torch.Tensor:
    target_dtype = dtype if output_dtype is None else output_dtype
    assert target_dtype is not None, "an overload has one of them"
    return convert_values(input_tensor, specs[0].dtype, target_dtype)


def _check_cast(call: Call) -> None:
    spec, target = call.specs[0], call["dtype"] or call["output_dtype"]
    if spec.layout is Layout.ROW_MAJOR and target in BLOCK_FLOATS and not any(call.outputs):
        check_dtype(target, Layout.ROW_MAJOR, None)
    source = call["input_dtype"]
    wrong = "input dtype and input tensor's dtype provided should match"
    require(
        source is None or source is call.specs[0].dtype,
        wrong,
        f"{call.specs[0].dtype}",
        "Convert it with ttnn.typecast.",
    )
    source_memory, target_memory = call.specs[0].memory_config, call["memory_config"] or call.specs[0].memory_config
    wrong = (
        "Typecast operation requires Input and Output memory layout to match. Input layout: "
        f"TensorMemoryLayout::{source_memory.memory_layout.name}, Output layout: "
        f"TensorMemoryLayout::{target_memory.memory_layout.name}"
    )
    same = source_memory.memory_layout is target_memory.memory_layout
    require(same, wrong, "the input's memory layout", "Move it with ttnn.to_memory_config.")
    shards = spec.memory_config.shard_spec
    if shards is not None and spec.layout is Layout.ROW_MAJOR and spec.memory_config.is_l1():
        size = shards.shape[1] * element_bytes(spec.dtype)
        wrong = (
            f"Typecast operation requires sharded input tensor page size ({size} bytes) to be aligned to L1 (16 bytes)"
        )
        require(
            size % 16 == 0, wrong, "rows of a multiple of 16 bytes", "Move it with ttnn.to_memory_config to DRAM first."
        )
    given = call.outputs[0] if call.outputs else None
    wrong = "If both output dtype and output tensor provided dtype should match"
    require(
        given is None or given.dtype is (call["dtype"] or call["output_dtype"]),
        wrong,
        "equal dtypes",
        "Convert one with ttnn.typecast.",
    )


_TYPECAST = device_operation("ttnn.typecast", out=like_first, check=_check_cast, stages=typecast_stages)(_cast)


@composite("ttnn.typecast", golden=goldens.typecast, direct=True)
def typecast(
    input_tensor: Tensor,
    memory_config: MemoryConfig | None,
    output_tensor: Tensor | None,
    dtype: DataType | None = None,
    input_dtype: DataType | None = None,
    output_dtype: DataType | None = None,
) -> Tensor:
    """The values in another format; a host tensor is converted as from_torch would."""
    target_dtype = dtype if output_dtype is None else output_dtype
    assert target_dtype is not None, "an overload has one of them"
    if input_tensor.device() is None:
        return to_dtype(input_tensor, target_dtype)
    arguments = {
        "input_tensor": input_tensor,
        "dtype": target_dtype,
        "input_dtype": input_dtype,
        "memory_config": memory_config,
        "output_tensor": output_tensor,
    }
    result: Tensor = _TYPECAST(**arguments)
    return result


@composite("ttnn.experimental.typecast", golden=goldens.typecast, direct=True)
def experimental_typecast(
    input_tensor: Tensor, dtype: DataType, memory_config: MemoryConfig | None, optional_output_tensor: Tensor | None
) -> Tensor:
    """The values in another format."""
    wrong = "Only tile layout supports dtype conversion"
    converts = input_tensor.dtype is not dtype
    tiled = input_tensor.layout is Layout.TILE
    require(not converts or tiled, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    result: Tensor = typecast(input_tensor, dtype, memory_config=memory_config, output_tensor=optional_output_tensor)
    return result


# -- tilize ----------------------------------------------------------------------------------------------------------------


def _tiled_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    spec, shape = call.specs[0], inferred[0][0]
    dtype = call["dtype"] or call["output_dtype"] or spec.dtype
    memory = call["memory_config"] or inherit_memory_config(spec, shape)
    tile: Tile | None = call["tile"]
    if memory.is_sharded() and memory.shard_spec is None and memory.nd_shard_spec is None:
        memory = fit_shards(memory, TensorSpec(shape, dtype, Layout.TILE, tile=tile), spec.memory_config)
    output_spec = TensorSpec(shape, dtype, Layout.TILE, tile=tile, memory_config=memory)
    target = call["output_tensor_shape"]
    return [output_spec if target is None else output_spec.with_padding(target, call["pad_value"])]


def _check_row_pages(call: Call) -> None:
    """Rows in width or block shards are read in pages of L1's alignment."""
    spec = call.specs[0]
    shards, kind = spec.memory_config.shard_spec, spec.memory_config.memory_layout
    if shards is None or kind is TensorMemoryLayout.HEIGHT_SHARDED:
        return
    width = shards.shape[1]
    size = width * element_bytes(spec.dtype)
    wrong = (
        f"Input row-major shard width {width} gives page size {size} bytes, which must be aligned to 16 bytes L1 SRAM "
        "buffer alignment requirement"
    )
    require(
        size % 16 == 0, wrong, "rows of a multiple of 16 bytes", "Move it with ttnn.to_memory_config to DRAM first."
    )


def _check_tilize(call: Call) -> None:
    spec, tile = call.specs[0], call["tile"] or Tile((32, 32))
    check_shard_tiles(call["memory_config"] or spec.memory_config, Layout.TILE, tile)
    height, width = tile.tile_shape
    shape = tuple(spec.padded_shape)
    rows = shape[-2] if len(shape) > 1 else 1
    columns = shape[-1] if shape else 1
    wrong = f"Input tensor width ({columns}) must be divisible by tile width ({width})"
    require(columns % width == 0, wrong, "whole tiles", "Pad the tensor.")
    wrong = f"Input tensor height ({rows}) must be divisible by tile height ({height})"
    require(rows % height == 0, wrong, "whole tiles", "Pad the tensor.")


def _check_padding(call: Call) -> None:
    _check_bytes(call)
    shape, target = tuple(call.specs[0].shape), tuple(call["output_tensor_shape"])
    shape = shape or (1,) * len(target)  # a scalar fits any shape
    wrong = (
        f"Output tensor shape {list(target)} must be greater than or equal to input shape {list(shape)} in every dim"
    )
    fits = len(target) == len(shape) and all(
        target_extent >= extent for target_extent, extent in zip(target, shape, strict=True)
    )
    require(fits, wrong, "a shape that holds the input", "Give every dim at least the input's length.")
    _check_row_pages(call)


def _identity(input_tensor: torch.Tensor) -> torch.Tensor:
    return input_tensor


def _check_bytes(call: Call) -> None:
    wrong = "Can only tilize bfloat16/float32 or int32/uint32/uint16 or fp8_e4m3 tensors"
    rows = call.specs[0].layout is Layout.ROW_MAJOR
    taken = not rows or call.specs[0].dtype is not DataType.UINT8
    require(taken, wrong, "a format that is padded", "Convert it with ttnn.typecast.")


def _check_zeros(call: Call) -> None:
    _check_bytes(call)
    _check_row_pages(call)


_LANE = frozenset({"input_tensor"})
_TILIZE = device_operation("ttnn.tilize", out=_tiled_spec, check=_check_tilize, stages=tilize_stages)(_identity)
_TILIZE_PADDED = device_operation("ttnn.tilize_with_val_padding", out=_tiled_spec, check=_check_padding)(_identity)
_TILIZE_ZEROS = device_operation("ttnn.tilize_with_zero_padding", out=_tiled_spec, check=_check_zeros)(_identity)


@composite("ttnn.tilize", golden=goldens.identity, direct=True)
def tilize(
    input_tensor: Tensor,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
    tile: Tile | None,
    use_multicore: bool,
) -> Tensor:
    """The tensor in tiles; its height and width must fill them."""
    rows = input_tensor.layout is Layout.ROW_MAJOR
    wrong = "Multicore must be enabled for sharded input"
    one_core = rows and not use_multicore and input_tensor.memory_config().is_sharded()
    require(not one_core, wrong, "use_multicore=True", "Leave use_multicore out.")
    arguments = {"input_tensor": input_tensor, "memory_config": memory_config, "dtype": dtype, "tile": tile}
    result: Tensor = _TILIZE(**arguments)
    return result


@composite("ttnn.tilize_with_val_padding", golden=goldens.tilize_with_val_padding, direct=True)
def tilize_with_val_padding(
    input_tensor: Tensor,
    output_tensor_shape: Sequence[int],
    pad_value: float,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
) -> Tensor:
    """The tensor in tiles, its memory padded to this shape; the logical shape stays."""
    if input_tensor.layout is Layout.TILE:
        return separate(input_tensor)
    wrong = f"To be tilizable output tensor shape Shape({list(output_tensor_shape)}) must be divisible by tile size (32, 32)"
    require(len(output_tensor_shape) > 1, wrong, "two dims or more", "Reshape it to two dims.")
    arguments = {
        "input_tensor": input_tensor,
        "output_tensor_shape": tuple(output_tensor_shape),
        "pad_value": pad_value,
        "memory_config": memory_config,
        "dtype": dtype,
    }
    result: Tensor = _TILIZE_PADDED(**arguments)
    return result


@composite("ttnn.tilize_with_zero_padding", golden=goldens.identity, direct=True)
def tilize_with_zero_padding(
    input_tensor: Tensor, memory_config: MemoryConfig | None, output_dtype: DataType | None
) -> Tensor:
    """The tensor in tiles, padded with zeros to fill them; the logical shape stays."""
    if input_tensor.layout is Layout.TILE:
        return separate(input_tensor)
    arguments = {"input_tensor": input_tensor, "memory_config": memory_config, "output_dtype": output_dtype}
    result: Tensor = _TILIZE_ZEROS(**arguments)
    return result


# -- untilize --------------------------------------------------------------------------------------------------------------


def _row_major_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    input_dtype = call.specs[0].dtype
    dtype = DataType.BFLOAT16 if input_dtype in BLOCK_FLOATS else None
    return [make_output_spec(call, inferred[0][0], dtype=dtype, layout=Layout.ROW_MAJOR)]


def _whole_rows_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Tiles in shards keep their padding in rows."""
    spec, (made,) = call.specs[0], _row_major_spec(call, inferred)
    padded = spec.memory_config.is_sharded() and tuple(spec.padded_shape) != tuple(made.padded_shape)
    return [made.with_padded_shape(spec.padded_shape) if padded and made.memory_config.interleaved else made]


def _check_untilize(call: Call) -> None:
    layout = call.specs[0].layout
    wrong = f"Can only untilize tile major data, got {layout}"
    require(layout is Layout.TILE, wrong, "a tensor in tiles", "Convert it with ttnn.to_layout.")


def _check_whole_untilize(call: Call) -> None:
    _check_untilize(call)
    spec = call.specs[0]
    fits = len(spec.shape) <= 4 or tuple(spec.shape[-2:]) == tuple(spec.padded_shape[-2:])
    wrong = "MeshBuffer must be large enough to hold the tensor."
    require(fits, wrong, "four dims, or whole tiles", "Use ttnn.untilize_with_unpadding, or ttnn.to_layout.")
    if call["sub_core_grids"] is not None and tuple(spec.shape[-2:]) == tuple(spec.padded_shape[-2:]):
        _check_cores_of_untilize(call)


def _check_cores_of_untilize(call: Call) -> None:
    """What TT-NN's program on given cores takes; padding is taken away by another program."""
    spec, fix = call.specs[0], "Leave sub_core_grids out."
    wrong = "Input memory layout must be interleaved when sub_core_grid argument provided"
    require(not spec.memory_config.is_sharded(), wrong, "an interleaved tensor", fix)
    wrong = "sub_core_grid implementation only supported when use_multicore flag argument is set to true"
    require(call["use_multicore"] is not False, wrong, "use_multicore=True", fix)
    height, tile = spec.physical_shape[0], spec.tile.tile_shape[0]
    wrong = (
        f"sub_core_grid untilize only supports tensors one tile row tall, got height {height} with tile height {tile}"
    )
    require(height in (0, tile), wrong, f"{tile} rows, padding included", fix)


@op("ttnn.untilize", golden=goldens.identity, check=_check_whole_untilize, out=_whole_rows_spec, stages=untilize_stages)
def untilize(input_tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in ROW_MAJOR layout; block floats become bfloat16."""
    return input_tensor


def _check_unpadding(call: Call) -> None:
    rank, given = len(call.specs[0].shape), len(call["output_tensor_end"])
    wrong = f"ShapeBase[] index out of range. {given} not in [-4, {given})"
    require(given >= rank, wrong, f"{rank} numbers", "Pass the last index of every dim.")
    wrong = "Only TILE layout is supported for BFLOAT8_B dtype!"
    taken = call.specs[0].dtype is not DataType.BFLOAT4_B
    require(taken, wrong, "bfloat16, float32 or bfloat8_b", "Convert it with ttnn.typecast.")
    _check_untilize(call)


@op("ttnn.untilize_with_unpadding", golden=goldens.untilize_with_unpadding, check=_check_unpadding, out=_row_major_spec)
def untilize_with_unpadding(
    input_tensor: torch.Tensor, output_tensor_end: Sequence[int], specs: Sequence[TensorSpec]
) -> torch.Tensor:
    """The leading corner of the tensor, padding included, up to this end (inclusive), in ROW_MAJOR layout."""
    shape = [end + 1 for end in output_tensor_end]
    rank = len(shape)
    spec = specs[0]
    same_shape = tuple(spec.shape) == tuple(shape)
    padded = input_tensor if same_shape else pad_values(input_tensor, spec.padded_shape, spec.pad_value)
    return box(padded, rank, [0] * rank, shape)
