"""Group norm over [batch, 1, rows, channels]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.errors import ShapeError
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import normalization as goldens
from ttmesh.ops.norm.group_norm_grids import find_dram_grid, virtual_columns
from ttmesh.ops.norm.group_norm_rules import check_group_norm
from ttmesh.ops.stages.conversion_stages import tilized_input_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32

GRID = (8, 8)  # of a Wormhole: what TT-NN chooses from where no grid is given
SUMMED_AT_ONCE = 256 * 256  # elements that a core adds up at once where TT-NN chooses the number of blocks


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    layout = call["output_layout"]
    config = call["memory_config"]
    if config is None and call.specs[0].memory_config.interleaved:
        config = DRAM_MEMORY_CONFIG
    layout = call.specs[0].layout if layout is None else layout
    if call["inplace"]:
        return [call.specs[0]]
    return [make_output_spec(call, inferred[0][0], layout=layout, memory_config=config)]


def _unpad_parameter(parameter: Lanes, channels: int, cores: int, lane_axes: int) -> Lanes:
    """Undo TT-NN's layout of a weight or bias: channels split over `cores`, each slice padded to full tiles."""
    flat = parameter.flatten(lane_axes)
    if flat.shape[-1] == channels:
        return flat
    return torch.unflatten(flat, -1, (cores, -1))[..., : channels // cores].flatten(-2)


def count_channel_slices(call_spec: TensorSpec, core_grid: Any, groups: int, padded: int) -> int:
    """Over how many cores the channels of a parameter of this padded length are split."""
    channels = call_spec.shape[-1]
    if padded == channels:
        return 1
    shard = call_spec.memory_config.shard_spec
    if shard is not None:
        return channels // shard.shape[1]
    if core_grid is not None:
        return virtual_columns(core_grid.x, groups, channels)
    for cores in range(1, channels + 1):
        if channels % cores == 0 and cores * -(-(channels // cores) // TILE) * TILE == padded:
            return cores
    raise ShapeError(
        f"a group_norm parameter of {padded} values does not fit {channels} channels",
        expected="a parameter made by create_group_norm_weight_bias_rm",
        fix="Make it with that function.",
    )


@op(
    "ttnn.group_norm",
    golden=goldens.group_norm,
    out=_spec,
    check=check_group_norm,
    stages=tilized_input_stages,
    writes="input_tensor",
    writes_if=lambda arguments: bool(arguments["inplace"]),
)
def group_norm(
    input_tensor: Lanes,
    num_groups: int,
    epsilon: float,
    weight: Lanes | None,
    bias: Lanes | None,
    core_grid: Any,
    num_out_blocks: int | None,
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Groups of channels of every sample normalized to mean 0 and variance 1, then weight and bias."""
    x = input_tensor.float()
    rows, channels = x.shape[-2:]

    def average_groups(per_channel: Lanes) -> Lanes:
        """Replace every channel's value by the mean over its group."""
        grouped = torch.unflatten(per_channel, -1, (num_groups, -1))
        return grouped.mean(-1, keepdim=True).expand(grouped.shape).flatten(-2)

    if fpu.is_emulated(x):
        height = _rows_of_a_sum(specs[0], core_grid, num_groups, num_out_blocks)
        out = _normalize_on_fpu(x, num_groups, epsilon, height)
    else:
        # Rows are summed before channels: torch reduces full rows five times faster than groups of columns.
        centred = x - average_groups(x.mean(-2, keepdim=True))
        var = average_groups((centred * centred).sum(-2, keepdim=True) / rows)
        out = centred * torch.rsqrt(var + epsilon)
    for parameter, scale in ((weight, True), (bias, False)):
        if parameter is not None:
            cores = count_channel_slices(specs[0], core_grid, num_groups, parameter.flatten(lane_axes).shape[-1])
            row = _unpad_parameter(parameter, channels, cores, lane_axes).float()[..., None, None, None, :]
            out = fpu.multiply(out, row) if scale else fpu.add(fpu.keep(out), row)
    return out


def _rows_of_a_sum(spec: TensorSpec, core_grid: Any, groups: int, blocks: int | None) -> int:
    """How many rows of a sample are added at once: those of one core, in so many blocks in DRAM."""
    samples, channels = spec.shape[0], spec.shape[-1]
    rows, shards = spec.physical_shape[0] // samples, spec.memory_config.shard_spec
    if shards is not None:
        return _divide_tiles(rows, max(1, -(-spec.physical_shape[0] // shards.shape[0]) // samples))
    if core_grid is None:
        core_grid, blocks = find_dram_grid(*GRID, channels, groups, spec.physical_shape[0], samples), -1
        if core_grid is None:
            return rows
    columns: int = virtual_columns(core_grid.x, groups, channels) or core_grid.x
    cores: int = core_grid.x // columns * core_grid.y
    height = _divide_tiles(rows, max(1, cores // samples))  # several samples share the rows of cores
    if blocks == -1:
        blocks = _choose_blocks(rows * channels, columns * cores)
    return max(height // TILE // (blocks or 1), 1) * TILE


def _divide_tiles(rows: int, cores: int) -> int:
    return -(-rows // TILE // cores) * TILE


def _choose_blocks(volume: int, cores: int) -> int:
    """TT-NN's choice of num_out_blocks: about 64 tiles in each, a power of two up to 256."""
    wanted = volume // (SUMMED_AT_ONCE * cores)
    return next(blocks for blocks in (1 << i for i in range(9)) if blocks >= wanted or blocks == 256)


def _normalize_on_fpu(x: Lanes, groups: int, epsilon: float, height: int) -> Lanes:
    """The steps of TT-NN's kernel on [.., groups, rows, channels of a group]."""
    grouped = torch.unflatten(x, -1, (groups, -1)).movedim(-2, -3)
    centred = fpu.subtract(grouped, _average_on_cores(grouped, height))
    variance = _average_on_cores(fpu.multiply(centred, centred), height)
    out = fpu.keep(fpu.multiply(centred, fpu.keep(torch.rsqrt(variance + epsilon))))
    return out.movedim(-3, -2).flatten(-2)


def _average_on_cores(values: Lanes, height: int) -> Lanes:
    """The mean of each group: the averages of `height` rows each, by the cores that hold them, are averaged.

    One long sum in a 16-bit destination would lose what is added last.
    """
    rows = values.shape[-2]
    if height >= rows:
        return fpu.keep(fpu.mean(values, (-2, -1), keepdim=True))
    whole = F.pad(values, (0, 0, 0, -rows % height))  # the last block may be shorter
    averages = fpu.keep(fpu.mean(torch.unflatten(whole, -2, (-1, height)), (-2, -1)))
    return fpu.keep(fpu.total(averages.unsqueeze(-2), (-1,), keepdim=True, scaler=height / rows))
