"""offset_cumsum and moe_padding_config: where a device's tokens go in the buffers of a prefill's experts."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.base.placement import Replicate, Shard
from ttmesh.ccl.collectives.reduce_gather import gather
from ttmesh.ccl.planning.collective_call import collective, mesh_of
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.block_cyclic_cache import find_start_rows
from ttmesh.ops.attention.sequence_shards import find_sequence_ranks
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import mixture_of_experts as goldens
from ttmesh.ops.movement.reshape import reshape_tensor
from ttmesh.tensor.calls.conversions import to_layout
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

OFFSETS = "ttnn.experimental.deepseek_prefill.offset_cumsum"
PADDING = "ttnn.experimental.deepseek_prefill.moe_padding_config"
TILE = 32


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        TensorSpec(shape, DataType.UINT32, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG) for shape, _ in inferred
    ]


def _own_topology(call: Call) -> TensorTopology:
    """Different on every device."""
    given = call["counts"].tensor_topology()
    shape = given.distribution_shape()
    return TensorTopology(shape, [Shard(i) for i in range(shape.dims())], given.mesh_coords())


def _shared_topology(call: Call) -> TensorTopology:
    """The same along the axis of the devices that exchange tokens."""
    given, axis = call["counts"].tensor_topology(), call["axis"]
    shape = given.distribution_shape()
    placements = [Replicate() if i == axis else Shard(i) for i in range(shape.dims())]
    return TensorTopology(shape, placements, given.mesh_coords())


def _check_offsets(call: Call) -> None:
    spec, per_chip = call["counts"].spec, call["experts_per_chip"]
    require_dtype(spec, DataType.UINT32, "Only UINT32 is supported for inputs!")
    experts = spec.shape[-1]
    require(
        per_chip > 0 and experts % per_chip == 0,
        f"n_routed_experts ({experts}) must be divisible by experts_per_chip ({per_chip})",
        f"a divisor of {experts}",
        "Change experts_per_chip.",
    )
    axis, dims = call["axis"], call["counts"].tensor_topology().distribution_shape().dims()
    require(
        axis < dims,
        f"cluster_axis ({axis}) is out of range for a {dims}-dimensional distribution",
        "a tensor that is distributed over both axes",
        "Distribute it with ttnn.ShardTensor2dMesh.",
    )


def _sum_regions(counts: Lanes, experts_per_chip: int) -> tuple[Lanes, Lanes, Lanes]:
    """Offsets of every device's tokens [.., devices, experts], totals and the starts of regions [.., 1, experts]."""
    totals = counts.sum(-2, keepdim=True)
    padded = torch.unflatten(-(-totals // TILE) * TILE, -1, (-1, experts_per_chip))
    regions = (padded.cumsum(-1) - padded).flatten(-2)
    return counts.cumsum(-2) - counts + regions, totals, regions


def _identify_offsets(call: Call) -> tuple[Hashable, ...]:
    return ((call.name, call.specs, call["experts_per_chip"], call["axis"]),)


@device_operation(OFFSETS, out=_spec, check=_check_offsets, topology=_own_topology, programs=_identify_offsets)
def _find_offsets(
    counts: Lanes,
    experts_per_chip: int,
    axis: int,
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> tuple[Lanes, Lanes, Lanes]:
    offsets, totals, regions = _sum_regions(counts.long(), experts_per_chip)
    rank = find_sequence_ranks(mesh_shape, axis, rank_block, counts.device)
    expanded = offsets.expand(*rank.shape, *offsets.shape[lane_axes:])
    own = torch.take_along_dim(expanded, rank[..., None, None], -2)
    return own, totals, regions


@device_operation(OFFSETS, out=_spec, topology=_shared_topology, programs=no_programs)
def _find_all_offsets(counts: Lanes, experts_per_chip: int) -> Lanes:
    return _sum_regions(counts.long(), experts_per_chip)[0]


@collective(OFFSETS, golden=goldens.offset_cumsum)
def offset_cumsum(
    input_tensor: Tensor,
    cluster_axis: int,
    num_links: int,
    experts_per_chip: int,
    memory_config: MemoryConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where each device's tokens of every expert begin, the experts' totals and regions, and the first for all devices."""
    mesh = mesh_of(OFFSETS, [input_tensor])
    if not 0 <= cluster_axis < mesh.shape.dims():
        raise ShapeError(
            f"ShapeBase[] index out of range. {cluster_axis} not in [-4, {mesh.shape.dims()})",
            expected="an axis of the mesh",
            fix="Change cluster_axis.",
        )
    rows = reshape_tensor(input_tensor, (1, input_tensor.shape[-1]))
    gathered = gather(
        "ttnn.all_gather", rows, 0, cluster_axis=cluster_axis, memory_config=memory_config, num_links=num_links or None
    )
    counts = to_layout(gathered, Layout.ROW_MAJOR)
    own: Sequence[Tensor] = _find_offsets(
        counts=counts, experts_per_chip=experts_per_chip, axis=cluster_axis, mesh_shape=tuple(mesh.shape),
        rank_block=mesh.rank_block,
    )  # fmt: skip
    shared: Tensor = _find_all_offsets(counts=counts, experts_per_chip=experts_per_chip, axis=cluster_axis)
    return own[0], own[1], own[2], shared


def _check_padding(call: Call) -> None:
    axis, tokens, side, config = call["cluster_axis"], call["tokens_per_chip"], call["pad_side"], call["config"].spec
    require(axis in (0, 1), f"cluster_axis ({axis}) must be 0 or 1", "0 or 1", "Change cluster_axis.")
    require(tokens > 0, "tokens_per_chip must be positive", "1 or more", "Pass the tokens of one device.")
    wrong = f"pad_side ({side}) must be 0 (right) or 1 (left)"
    require(side in (0, 1), wrong, "0 or 1", "Change pad_side.")
    require_dtype(config, DataType.UINT32, "config must be UINT32")
    require_layout(config, Layout.ROW_MAJOR, "config must be ROW_MAJOR")
    width = config.shape[-1]
    wrong = f"config last dim ({width}) must hold at least [local_real_tokens, pad_side]"
    require(width >= 2, wrong, "2 numbers", "Allocate two numbers per device.")
    wrong = "config must not be L1-sharded (it is a per-device DRAM row)"
    require(not config.memory_config.is_sharded(), wrong, "DRAM", "Move it with ttnn.to_memory_config.")
    for name in ("actual_start", "actual_end"):
        spec = call[name].spec
        require_dtype(spec, DataType.UINT32, f"metadata tensor {name} must be UINT32")
        require_layout(spec, Layout.ROW_MAJOR, f"metadata tensor {name} must be ROW_MAJOR")
        count = spec.shape.volume()
        wrong = f"metadata tensor {name} must be a single element (got {count})"
        require(count == 1, wrong, "one number", "Slice it with ttnn.slice.")
        wrong = f"metadata tensor {name} must not be sharded"
        require(not spec.memory_config.is_sharded(), wrong, "DRAM", "Move it with ttnn.to_memory_config.")

    places = [call[name].spec.memory_config.buffer_type for name in ("actual_start", "actual_end")]
    require(
        places[0] is places[1],
        "moe_padding_config does not currently support actual_start and actual_end having different memory configs, because "
        f"one TensorAccessor serves both reads (got buffer types BufferType::{places[0].name} and "
        f"BufferType::{places[1].name})",
        "both in one memory",
        "Move one with ttnn.to_memory_config.",
    )


def _identify_padding(call: Call) -> tuple[Hashable, ...]:
    return ((call.name, call.specs[0], *(call[name] for name in ("tokens_per_chip", "pad_side", "cluster_axis"))),)


@device_operation(PADDING, out=like_written, check=_check_padding, programs=_identify_padding, writes="config")
def _write_padding(
    config: Lanes,
    actual_start: Lanes,
    actual_end: Lanes,
    tokens_per_chip: int,
    pad_side: int,
    cluster_axis: int,
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> Lanes:
    rank = find_sequence_ranks(mesh_shape, cluster_axis, rank_block, config.device)
    start, end = (tensor.flatten(lane_axes)[..., 0].long() for tensor in (actual_start, actual_end))
    devices = mesh_shape[cluster_axis]
    first = find_start_rows(start, tokens_per_chip, rank, devices)
    row = first[..., None] + torch.arange(tokens_per_chip, device=config.device)
    position = (row // tokens_per_chip * devices + rank[..., None]) * tokens_per_chip + row % tokens_per_chip
    count = (position < end[..., None]).sum(-1)
    result = torch.zeros(*rank.shape, *config.shape[lane_axes:], dtype=torch.long, device=config.device)
    flat = result.flatten(lane_axes)
    flat[..., 0], flat[..., 1] = count, pad_side
    return flat.reshape(result.shape)


@composite(PADDING)
def moe_padding_config(
    config: Tensor, actual_start: Tensor, actual_end: Tensor, tokens_per_chip: int, pad_side: int, cluster_axis: int
) -> Tensor:
    """Each device's number of real tokens in a chunk that may start anywhere, and the side of the others, in place."""
    mesh = mesh_of(PADDING, [config, actual_start, actual_end])
    result: Tensor = _write_padding(
        config=config, actual_start=actual_start, actual_end=actual_end, tokens_per_chip=tokens_per_chip,
        pad_side=pad_side, cluster_axis=cluster_axis, mesh_shape=tuple(mesh.shape), rank_block=mesh.rank_block,
    )  # fmt: skip
    return result
