"""Masks, parameters and core grids in the layouts that group norm's programs expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.mappers import ShardTensor2dMesh
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up, round_up
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import from_torch, to_device

TILE = 32


def find_closest_largest_divisor(num: int, start_divisor: int) -> int:
    """The largest divisor of a number up to a bound."""
    return next(divisor for divisor in range(start_divisor, 0, -1) if num % divisor == 0)


def virtual_columns(grid_x: int, groups: int, channels: int) -> int:
    """Over how many columns of cores channels are split in DRAM; 0 when no number fits."""
    for columns in range(min(grid_x, groups), 0, -1):
        if (channels // columns) % TILE == 0 and channels % columns == 0 and groups % columns == 0:
            return columns
    return 0


def dram_group_norm_virtual_columns(core_grid: Any, num_channels: int, num_groups: int) -> int:
    """`virtual_columns` of a core grid; there must be one."""
    columns = virtual_columns(core_grid.x, num_groups, num_channels)
    assert columns > 0, (
        f"dram_group_norm_virtual_columns: could not find a valid num_virtual_cols for grid_x={core_grid.x}, "
        f"num_channels={num_channels}, num_groups={num_groups}"
    )
    return columns


def find_max_tile_span(W: int, group_size: int, tile_width: int) -> int:
    """How many tiles a group of columns touches at most, if groups of one size follow each other in a width."""
    starts = range(0, W, group_size)
    return max(((start + group_size - 1) // tile_width - start // tile_width + 1 for start in starts), default=0)


def _make_tensor(values: torch.Tensor, **options: Any) -> Tensor:
    tensor = from_torch(values, **options)
    assert tensor is not None, "this process holds a block of the mesh"
    return tensor


def _make_mask(
    num_channel: int, num_groups: int, cores: int, tile_width: int, tile_height: int, rows_in_last_tile: int
) -> torch.Tensor:
    if cores <= 0:
        raise MeshError("num_cores_across_channel must be > 0", expected="at least 1", fix="Pass the grid's columns.")
    for name, value in (("num_channel", num_channel), ("num_groups", num_groups)):
        if value % cores:
            raise MeshError(
                f"{name} ({value}) must be divisible by num_cores_across_channel ({cores})",
                expected=f"a multiple of {cores}",
                fix="Use fewer cores.",
            )
    size, per_core = num_channel // num_groups, num_groups // cores
    starts = [(g % per_core) * size for g in range(num_groups)]
    tiles_per_group = find_max_tile_span(num_channel // cores, size, tile_width)
    mask = torch.zeros(1, num_groups, tile_height, tiles_per_group * tile_width, dtype=torch.float32, device="cpu")
    for group, start in enumerate(starts):
        offset = start % tile_width
        mask[:, group, :, offset : offset + size] = 1
    if not rows_in_last_tile:
        return mask
    last_mask = mask.clone()
    last_mask[:, :, rows_in_last_tile:] = 0
    return torch.cat([mask, last_mask], dim=1)


def create_group_norm_input_mask(
    num_channel: int,
    num_groups: int,
    num_cores_across_channel: int,
    data_type: DataType = DataType.BFLOAT16,
    tile_height: int = TILE,
    tile_width: int = TILE,
    rows_in_last_tile: int = 0,
) -> Tensor:
    """A host tensor with ones at a group's channels within its tiles."""
    mask = _make_mask(num_channel, num_groups, num_cores_across_channel, tile_width, tile_height, rows_in_last_tile)
    return _make_tensor(mask, dtype=data_type, layout=Layout.TILE)


def create_group_norm_input_negative_mask(
    num_channel: int,
    num_groups: int,
    num_cores_across_channel: int,
    data_type: DataType = DataType.BFLOAT16,
    tile_height: int = TILE,
    tile_width: int = TILE,
) -> Tensor:
    """The opposite of `create_group_norm_input_mask`."""
    mask = 1 - _make_mask(num_channel, num_groups, num_cores_across_channel, tile_width, tile_height, 0)
    return _make_tensor(mask, dtype=data_type, layout=Layout.TILE)


@name_wrong_types
def create_group_norm_weight_bias_rm(input_tensor: torch.Tensor, num_channels: int, num_cores_x: int) -> torch.Tensor:
    """A weight or bias split over cores, each slice padded to whole tiles: [1, 1, tiles, 32]."""
    slices = input_tensor.reshape(num_cores_x, num_channels // num_cores_x)
    return torch.nn.functional.pad(slices, (0, -slices.shape[1] % TILE)).reshape(1, 1, -1, TILE)


def create_group_norm_reciprocals(N: int, C: int, H: int, W: int, num_groups: int, core_grid: Any) -> torch.Tensor:
    """1, 1/2, 1/3, … up to the number of values that Welford's kernel counts on one core, one row per core."""
    columns = dram_group_norm_virtual_columns(core_grid, C, num_groups)
    rows = (core_grid.x // columns) * core_grid.y
    per_group = 1 if rows <= N else rows // N
    count = (C // num_groups) * div_up(H * W, TILE) // per_group
    return (1.0 / torch.arange(1, count + 1, dtype=torch.float32, device="cpu")).repeat(core_grid.x * core_grid.y, 1)


@name_wrong_types
def create_layer_norm_reciprocals(device: MeshDevice, core_range_set: CoreRangeSet, width: int) -> Tensor:
    """1, 1/2, …, 1/width on every core of a set, for layer norm by Welford's method."""
    cores = core_range_set.num_cores()
    values = (1.0 / torch.arange(1, width + 1, dtype=torch.float32, device="cpu")).repeat(cores, 1)
    shards = ShardSpec(core_range_set, (1, width), ShardOrientation.ROW_MAJOR)
    memory_config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, shards)
    return _make_tensor(
        values, dtype=DataType.FLOAT32, layout=Layout.ROW_MAJOR, device=device, memory_config=memory_config
    )


def get_group_norm_cores_across_channel(
    memory_layout: TensorMemoryLayout, core_grid: Any, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR
) -> int:
    """Over how many cores channels are split."""
    if memory_layout is TensorMemoryLayout.BLOCK_SHARDED:
        return int(core_grid.x if orientation is ShardOrientation.ROW_MAJOR else core_grid.y)
    return 1 if memory_layout is TensorMemoryLayout.HEIGHT_SHARDED else int(core_grid.x * core_grid.y)


@name_wrong_types
def determine_expected_group_norm_sharded_config_and_grid_size(
    *,
    device: MeshDevice,
    num_channels: int,
    num_groups: int,
    input_nhw: int,
    is_height_sharded: bool,
    is_row_major: bool = False,
) -> tuple[MemoryConfig, CoreGrid]:
    """Shards and grid for a group norm in L1."""
    grid = device.compute_with_storage_grid_size()
    tiles = div_up(input_nhw, TILE)
    bound = grid.x * grid.y if is_height_sharded else (grid.y if is_row_major else grid.x)
    rows = find_closest_largest_divisor(tiles, min(bound, tiles))
    padded = round_up(input_nhw, rows * TILE)
    if is_height_sharded:
        cores = num_cores_to_corerangeset(rows, grid, row_wise=True)
        shard = ShardSpec(cores, (padded // rows, num_channels), ShardOrientation.ROW_MAJOR)
        used = CoreGrid(x=min(rows, grid.x), y=div_up(rows, grid.x))
        return MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, shard), used
    columns = grid.x if is_row_major else grid.y
    group = num_channels // num_groups
    while columns > 1 and (
        (num_channels // 8) % columns or (num_channels // columns) % group or num_channels // columns < TILE
    ):
        columns -= 1
    x, y = (columns, rows) if is_row_major else (rows, columns)
    orientation = ShardOrientation.ROW_MAJOR if is_row_major else ShardOrientation.COL_MAJOR
    cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1))])
    shard = ShardSpec(cores, (padded // rows, num_channels // columns), orientation)
    return MemoryConfig(TensorMemoryLayout.BLOCK_SHARDED, BufferType.L1, shard), CoreGrid(x=x, y=y)


@name_wrong_types
def determine_expected_group_norm_dram_grid_size(
    *, device: MeshDevice, num_channels: int, num_groups: int, input_nhw: int, num_batches: int = 1
) -> CoreGrid:
    """The largest grid that a group norm in DRAM can use."""
    assert num_channels % num_groups == 0, "num_groups must divide num_channels"
    assert num_channels % TILE == 0, "num_channels must be a multiple of 32"
    grid = device.compute_with_storage_grid_size()
    found = find_dram_grid(grid.x, grid.y, num_channels, num_groups, input_nhw, num_batches)
    if found is None:
        raise MeshError(
            f"Cannot find a valid DRAM group-norm grid for {num_channels} channels, {num_groups} groups and {input_nhw} "
            "rows",
            expected="sizes that divide over some grid",
            fix="Pad the input.",
        )
    return found


def find_dram_grid(max_x: int, max_y: int, channels: int, groups: int, nhw: int, batches: int) -> CoreGrid | None:
    """The largest grid over which a group norm in DRAM divides, or None."""
    tiles = div_up(nhw, TILE)
    for strict in (True, False):  # grids whose columns divide evenly are preferred
        for x in range(max_x, 0, -1):
            columns = virtual_columns(x, groups, channels)
            if not columns or (strict and x % columns):
                continue
            for y in range(max_y, 0, -1):
                rows = (x // columns) * y
                if rows and tiles % rows == 0 and (rows % batches == 0 or rows < batches):
                    return CoreGrid(x=x, y=y)
    return None


@name_wrong_types
def dram_group_norm_params_from_torch(
    torch_params: torch.Tensor | Sequence[torch.Tensor],
    channels_per_device: int,
    groups_per_device: int,
    device: MeshDevice,
    mesh_axis: int | None = None,
    core_grid: Any = None,
    return_mask: bool = True,
    dtype: DataType = DataType.BFLOAT16,
) -> Any:
    """Weights and biases (and the mask) of a group norm in DRAM, sharded along a mesh axis if one is given."""
    assert channels_per_device % TILE == 0 == channels_per_device % groups_per_device, (
        f"channels_per_device {channels_per_device} must be divisible by 32 and groups_per_device {groups_per_device}"
    )
    shape = tuple(device.shape)
    devices = 1 if mesh_axis is None else shape[mesh_axis]
    dims: list[int | None] = [None] * len(shape)
    if mesh_axis is not None:
        dims[mesh_axis] = 0
    grid = core_grid or device.core_grid
    columns = dram_group_norm_virtual_columns(grid, channels_per_device, groups_per_device)
    single = isinstance(torch_params, torch.Tensor)
    param_list = [torch_params] if isinstance(torch_params, torch.Tensor) else list(torch_params)
    params = []
    for values in param_list:
        shards = [create_group_norm_weight_bias_rm(v, channels_per_device, columns) for v in values.chunk(devices)]
        mapper = ShardTensor2dMesh(device, mesh_shape=shape, dims=tuple(dims))
        params.append(from_torch(torch.cat(shards), dtype=dtype, device=device, mesh_mapper=mapper))
    result = params[0] if single else params
    if not return_mask:
        return result
    mask = create_group_norm_input_mask(channels_per_device, groups_per_device, columns, dtype)
    return result, to_device(mask, device)
