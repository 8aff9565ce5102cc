"""interleaved_to_sharded, sharded_to_interleaved, reshard and their partial forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first
from ttmesh.ops.configs.matmul_program_configs import corner
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.ops.stages.movement_stages import require_row_pages, require_shard_rows
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Cores = CoreCoord | CoreGrid | CoreRangeSet | Sequence[int]


def make_shard_config(
    spec: TensorSpec, grid: Cores, shard_shape: Sequence[int], scheme: TensorMemoryLayout, orientation: ShardOrientation
) -> MemoryConfig:
    """An L1 config with shards of this shape, on the given cores or on as many cores of a grid as there are shards."""
    if isinstance(grid, CoreRangeSet):
        return MemoryConfig(scheme, BufferType.L1, ShardSpec(grid, shard_shape, orientation))
    height, width = spec.physical_shape
    shards_down, shards_across = div_up(height, shard_shape[0]), div_up(width, shard_shape[1])
    counts = {
        TensorMemoryLayout.HEIGHT_SHARDED: shards_down,
        TensorMemoryLayout.WIDTH_SHARDED: shards_across,
        TensorMemoryLayout.BLOCK_SHARDED: shards_down * shards_across,
    }
    wrong = "Unsupported sharding scheme"
    require(scheme in counts, wrong, "HEIGHT, WIDTH or BLOCK_SHARDED", "Choose one of these layouts.")
    by_rows = orientation is ShardOrientation.ROW_MAJOR
    cores = num_cores_to_corerangeset(counts[scheme], corner(grid), by_rows)
    return MemoryConfig(scheme, BufferType.L1, ShardSpec(cores, shard_shape, orientation))


def _identity(input_tensor: torch.Tensor) -> torch.Tensor:
    return input_tensor


def _copy_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec of a copy in other memory; pages keep their padding."""
    source, (spec,) = call.specs[0], like_first(call, inferred)
    keeps_padding = source.pad_value == spec.pad_value or spec.layout is not source.layout
    return [spec if keeps_padding else spec.with_padding(spec.padded_shape, source.pad_value)]


def _check_grid(grid: Cores) -> None:
    if isinstance(grid, CoreGrid):
        raise TypeError(
            f"grid={grid!r} is a CoreGrid, and TT-NN has no overload for it; pass a ttnn.CoreCoord(x, y) or a "
            "ttnn.CoreRangeSet"
        )


def _require_input_interleaved(call: Call) -> None:
    layout = call.specs[0].memory_config.memory_layout
    wrong = f"Input tensor memory layout must be INTERLEAVED, but got TensorMemoryLayout::{layout.name}"
    require_interleaved(call.specs[0], wrong)
    require_row_pages(call["memory_config"], call.specs[0])


def _require_input_sharded(call: Call) -> None:
    sharded = call.specs[0].memory_config.is_sharded()
    require(sharded, "input must be sharded", "a sharded tensor", "Use ttnn.interleaved_to_sharded.")


def _check_shard_rows(call: Call) -> None:
    spec = call.specs[0]
    require_shard_rows(spec)
    wrong = "If diff output type, tensor must be TILED"
    same = call["dtype"] in (None, spec.dtype) or spec.layout is Layout.TILE
    require(same, wrong, "TILE layout", "Convert it with ttnn.to_layout.")


def _make_copy_operation(name: str, check: Callable[[Call], None] | None = None) -> DeviceOperation:
    return device_operation(name, out=_copy_spec, check=check)(_identity)


_TO_SHARDED = _make_copy_operation("ttnn.interleaved_to_sharded", _require_input_interleaved)
_TO_INTERLEAVED = _make_copy_operation("ttnn.sharded_to_interleaved", _check_shard_rows)
_RESHARD = _make_copy_operation("ttnn.reshard", _require_input_sharded)


@composite("ttnn.interleaved_to_sharded", golden=goldens.interleaved_to_sharded, direct=True)
def interleaved_to_sharded(
    input_tensor: Tensor,
    output_dtype: DataType | None,
    sharded_memory_config: MemoryConfig | None = None,
    grid: Cores | None = None,
    shard_shape: Sequence[int] = (),
    shard_scheme: TensorMemoryLayout = TensorMemoryLayout.HEIGHT_SHARDED,
    shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
    preallocated_output: Tensor | None = None,
) -> Tensor:
    """The tensor in shards in L1."""
    if sharded_memory_config is None:
        assert grid is not None, "this overload has a grid"
        _check_grid(grid)
        sharded_memory_config = make_shard_config(input_tensor.spec, grid, shard_shape, shard_scheme, shard_orientation)
    wrong = "Output memory config must be sharded"
    sharded = sharded_memory_config.is_sharded()
    require(sharded, wrong, "a sharded memory config", "Use ttnn.to_memory_config for other memory.")
    require(  # an nd spec is accepted if a height, width or block spec gives the same shards
        input_tensor.spec.with_memory_config(sharded_memory_config).memory_config.shard_spec is not None,
        f"interleaved_to_sharded takes no shards of more than two dims: {sharded_memory_config}",
        "HEIGHT, WIDTH or BLOCK_SHARDED memory",
        "Use ttnn.to_memory_config.",
    )
    arguments = {
        "input_tensor": input_tensor,
        "memory_config": sharded_memory_config,
        "dtype": output_dtype,
        "output_tensor": preallocated_output,
    }
    result: Tensor = _TO_SHARDED(**arguments)
    return result


@composite("ttnn.sharded_to_interleaved", golden=goldens.sharded_to_interleaved, direct=True)
def sharded_to_interleaved(
    input_tensor: Tensor, memory_config: MemoryConfig | None, output_dtype: DataType | None
) -> Tensor:
    """The tensor interleaved, in DRAM by default."""
    if input_tensor.memory_config().interleaved:
        return separate(input_tensor)
    arguments = {
        "input_tensor": input_tensor,
        "memory_config": memory_config or DRAM_MEMORY_CONFIG,
        "dtype": output_dtype,
    }
    result: Tensor = _TO_INTERLEAVED(**arguments)
    return result


@composite("ttnn.reshard", golden=goldens.reshard, direct=True)
def reshard(input_tensor: Tensor, output_memory_config: MemoryConfig, output_tensor: Tensor | None) -> Tensor:
    """The tensor in other shards."""
    arguments = {"input_tensor": input_tensor, "memory_config": output_memory_config, "output_tensor": output_tensor}
    result: Tensor = _RESHARD(**arguments)
    return result


# -- slices of the flattened height ------------------------------------------------------------------------------------


def _slice_rows(values: torch.Tensor, num_slices: int, slice_index: int, lane_axes: int) -> torch.Tensor:
    flat = values.reshape(*values.shape[:lane_axes], 1, 1, -1, values.shape[-1])
    height = flat.shape[-2] // num_slices
    return flat.narrow(-2, slice_index * height, height)


_SLICE_TO_SHARDED = device_operation("ttnn.interleaved_to_sharded_partial", out=like_first)(
    lambda input_tensor, num_slices, slice_index, lane_axes: _slice_rows(
        input_tensor, num_slices, slice_index, lane_axes
    )
)


@composite("ttnn.interleaved_to_sharded_partial")
def interleaved_to_sharded_partial(
    input_tensor: Tensor,
    grid: Cores,
    shard_shape: Sequence[int],
    num_slices: int,
    slice_index: int,
    shard_scheme: TensorMemoryLayout,
    shard_orientation: ShardOrientation,
    output_dtype: DataType | None,
) -> Tensor:
    """One of num_slices slices of the flattened height, in shards in L1."""
    require_layout(input_tensor, Layout.TILE, "Currently, only tile layout is supported for partial I->S")
    require_interleaved(input_tensor.spec, "Input tensor must be Interleaved")
    _check_grid(grid)
    height, width = input_tensor.spec.physical_shape
    slice_spec = input_tensor.spec.with_memory_config(DRAM_MEMORY_CONFIG).with_shape(
        (1, 1, height // num_slices, width)
    )
    memory = make_shard_config(slice_spec, grid, shard_shape, shard_scheme, shard_orientation)
    arguments = {
        "input_tensor": input_tensor,
        "num_slices": num_slices,
        "slice_index": slice_index,
        "memory_config": memory,
        "dtype": output_dtype,
    }
    result: Tensor = _SLICE_TO_SHARDED(**arguments)
    return result


def _check_slice_of_shards(call: Call) -> None:
    x, fix = call["input_tensor"].spec, "Shard it with ttnn.to_memory_config."
    require(x.memory_config.is_sharded(), "Input tensor must have a shard spec", "a sharded tensor", fix)
    require_layout(x, Layout.TILE, "Currently, only tile layout is supported for partial S->I")


@op("ttnn.sharded_to_interleaved_partial", writes="cache_tensor", check=_check_slice_of_shards)
def sharded_to_interleaved_partial(
    input_tensor: torch.Tensor, cache_tensor: torch.Tensor, num_slices: int, slice_index: int, lane_axes: int
) -> torch.Tensor:
    """Write a slice of the flattened height into the cache tensor, and return that."""
    values, cache = align_mesh_dims([input_tensor, cache_tensor], lane_axes)
    result = cache.clone(memory_format=torch.contiguous_format)
    rows = _slice_rows(result, num_slices, slice_index, lane_axes)
    rows.copy_(values.reshape(rows.shape))
    return result
