"""Norms of diffusion transformers over rows that are sharded over chips, with head split and rotary embedding."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import ChipGroups, check_axis, find_groups
from ttmesh.ccl.planning.plan_traffic import count_link_bytes
from ttmesh.ccl.planning.reduction_terms import reduce_group
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.parameter_tags import Tag
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

RMS, LAYER = "ttnn.experimental.dit_fused_distributed_rmsnorm", "ttnn.experimental.dit_fused_distributed_layernorm"
STATISTICS = {RMS: 1, LAYER: 2}  # float32 numbers per row that every chip sends to every other
TILE = 32
_SIZES = Tag("no effect", "The size of the statistics does not depend on it, in TT-NN either.")
GEOMETRY = dict.fromkeys(["num_heads_per_device", "weight", "transformation_mat", "rope_cos", "rope_sin"], _SIZES)
PACKET_BYTES = 4352  # the largest payload of a packet of FABRIC_1D
FEW_ROWS = 4  # of tiles: below that one worker takes all


@collective(RMS)
def dit_fused_distributed_rmsnorm(
    input_tensor: Tensor,
    cluster_axis: int,
    mesh_device: MeshDevice,
    topology: Topology | None = None,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    per_head_norm: bool = False,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    transformation_mat: Tensor | None = None,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
    dtype: Any = None,
    persistent_output_buffer: Tensor | None = None,
    num_preferred_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """RMS norm over the full rows of a group (or over each head), scaled, split into heads, with rotary embedding."""
    rope = [transformation_mat, rope_cos, rope_sin]
    require(
        len({tensor is None for tensor in rope}) == 1,
        _ROPE,
        "all of the rope arguments or none",
        "Pass the missing ones, or leave all out.",
    )
    return _run_norm(
        RMS, input_tensor, cluster_axis, weight, bias, rope, topology=topology, epsilon=epsilon,
        heads=num_heads_per_device, per_head=per_head_norm, dtype=dtype, memory_config=memory_config,
        mode=check_common(mesh_device, None, num_preferred_links, subdevice_id), statistics=persistent_output_buffer,
    )  # fmt: skip


@collective(LAYER)
def dit_fused_distributed_layernorm(
    input_tensor: Tensor,
    cluster_axis: int,
    mesh_device: MeshDevice,
    topology: Topology | None = None,
    epsilon: float = 1e-5,
    num_heads_per_device: int = 1,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    transformation_mat: Tensor | None = None,
    rope_cos: Tensor | None = None,
    rope_sin: Tensor | None = None,
    dtype: Any = None,
    persistent_output_buffer: Tensor | None = None,
    num_preferred_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
) -> Tensor:
    """Layer norm over the full rows of a group, scaled and split into heads."""
    rope = [transformation_mat, rope_cos, rope_sin]
    require(
        input_tensor.dtype is DataType.BFLOAT16,
        f"LayerNorm currently requires BFLOAT16 input; got {input_tensor.dtype}",
        "bfloat16",
        "Convert it with ttnn.typecast.",
    )
    require(
        all(tensor is None for tensor in rope),
        "LayerNorm does not support fused RoPE yet",
        "no rope arguments",
        "Rotate the result afterwards.",
    )
    return _run_norm(
        LAYER, input_tensor, cluster_axis, weight, bias, rope, topology=topology, epsilon=epsilon,
        heads=num_heads_per_device, per_head=False, dtype=dtype, memory_config=memory_config,
        mode=check_common(mesh_device, None, num_preferred_links, subdevice_id), statistics=persistent_output_buffer,
    )  # fmt: skip


@collective(f"{RMS}_create_stats_buffer", no_effect=GEOMETRY)
def dit_fused_distributed_rmsnorm_create_stats_buffer(
    input_tensor: Tensor, cluster_axis: int, mesh_device: MeshDevice, per_head_norm: bool = False, num_links: int = 1
) -> Tensor | None:
    """A buffer for the statistics of all chips; None if nothing is gathered."""
    return None if per_head_norm else _allocate_statistics(RMS, input_tensor, cluster_axis, mesh_device, num_links)


@collective(f"{LAYER}_create_stats_buffer", no_effect=GEOMETRY)
def dit_fused_distributed_layernorm_create_stats_buffer(
    input_tensor: Tensor, cluster_axis: int, mesh_device: MeshDevice, num_links: int = 1
) -> Tensor | None:
    """A buffer for the statistics of all chips; None if nothing is gathered."""
    return _allocate_statistics(LAYER, input_tensor, cluster_axis, mesh_device, num_links)


def _require_statistics(mesh: MeshDevice, axis: int, buffer: Tensor | None) -> None:
    require(
        mesh.shape[0 if axis == 0 else 1] == 1 or buffer is not None,
        "persistent_output_buffer is required for TP>1 with multiple workers",
        "a buffer for the statistics",
        "Allocate it with the operation's create_stats_buffer.",
    )


def _allocate_statistics(name: str, tensor: Tensor, axis: int, mesh: MeshDevice, links: int) -> Tensor | None:
    """A page per chip, link and round of the workers: as many statistics as fit into a packet, for the rows of a tile."""
    check_axis(mesh, axis)
    group_size = mesh.shape[axis]
    if group_size == 1:
        return None
    rows, packet = _tile_rows(tensor), PACKET_BYTES // (STATISTICS[name] * TILE * 4)
    grid, senders = mesh.compute_with_storage_grid_size(), max(1, links)
    workers = 1 if rows < FEW_ROWS else min(rows, (grid.x * grid.y - senders) // grid.x * grid.x, packet * senders)
    pages = group_size * min(senders, workers) * -(-rows // workers)
    spec = TensorSpec(
        (1, 1, pages, TILE * packet * STATISTICS[name]), DataType.FLOAT32, Layout.ROW_MAJOR,
        memory_config=DRAM_MEMORY_CONFIG,
    )  # fmt: skip
    buffer = footprint_of(spec, mesh.heap.map).allocate(mesh, "statistics")
    everywhere = TensorTopology.replicated_along_axes(mesh.shape)
    return Tensor.on_device(kind_of(spec, everywhere), buffer, mesh)


def _run_norm(
    name: str,
    tensor: Tensor,
    axis: int,
    weight: Tensor | None,
    bias: Tensor | None,
    rope: list[Tensor | None],
    *,
    heads: int,
    per_head: bool,
    statistics: Tensor | None,
    **options: Any,
) -> Tensor:
    tensors = [t for t in (tensor, weight, bias, *rope) if t is not None]
    mesh = mesh_of(name, tensors)
    if not per_head:
        _require_statistics(mesh, axis, statistics)
    check_axis(mesh, axis)
    shape = tensor.shape
    require(
        tensor.layout is Layout.TILE,
        f"Input layout must be TILE, got {tensor.layout}",
        "TILE_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(len(shape) == 4, f"Input rank must be 4, got {len(shape)}", "[1, batch, N, H]", "Reshape it to four dims.")
    require(
        shape[0] == 1,
        f"Input dim0 must be 1 (shape [1, batch, N, H]); got {shape[0]}",
        "[1, batch, N, H]",
        "Reshape it to [1, batch, N, H].",
    )
    require(
        shape[1] == 1 or not per_head,
        f"Batched input (dim1={shape[1]}) does not support per_head_norm",
        "one batch",
        "Call it once per batch, or leave per_head_norm out.",
    )
    require(
        heads >= 1 and shape[3] % heads == 0,
        f"Input H ({shape[3]}) must be divisible by num_heads_per_device ({heads})",
        f"num_heads_per_device that divides {shape[3]}",
        "Choose another number of heads.",
    )
    require(
        not per_head or heads > 1,
        f"per_head_norm requires num_heads_per_device > 1 (got {heads})",
        "2 heads or more",
        "Pass num_heads_per_device, or leave per_head_norm out.",
    )
    require(
        bias is None or weight is not None,
        "bias requires weight to also be provided",
        "weight=",
        "Pass weight too, or leave bias out.",
    )
    for label, term in (("Weight", weight), ("Bias", bias)):
        if term is not None:
            require(
                term.layout is Layout.TILE,
                f"{label} layout must be TILE",
                "TILE_LAYOUT",
                "Convert it with ttnn.to_layout.",
            )
            require(
                term.shape[-2] in (1, shape[2]),
                f"{label} second-to-last logical dim ({term.shape[-2]}) must be 1 (broadcast) or N ({shape[2]}) for "
                "per-token",
                f"1 or {shape[2]} rows",
                "Reshape it to one row, or to one row per token.",
            )
    call_options = {
        "axis": axis,
        "heads": heads,
        "per_head": per_head,
        "weight": weight is not None,
        "bias": bias is not None,
    }
    options["topology"] = options["topology"] or Topology.Ring
    result: Tensor = run(name, _decide, tensors, {**call_options, **options})
    return result


def _decide(request: Request) -> Decision:
    groups, axes = find_groups(request, request["axis"]), request.mesh.shape.dims()
    heads, epsilon, layer = request["heads"], request["epsilon"], request.name == LAYER
    _, batch, rows, width = request.tensor.shape
    head = width // heads
    shape = (1, batch, rows, width) if heads == 1 else (1, heads, batch * rows, head)

    def compute(lanes: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        remaining = list(others)
        values = lanes.float()
        if request["per_head"]:
            head_values = _split_heads(values, heads)
            values = (head_values * torch.rsqrt(head_values.square().mean(-1, keepdim=True) + epsilon)).flatten(-2)
        else:
            if layer:
                values = values - _mean_over_group(groups, values, width)
            values = values * torch.rsqrt(_mean_over_group(groups, values.square(), width) + epsilon)
        if request["weight"]:
            values = values * _align_term(remaining.pop(0), axes)
        if request["bias"]:
            values = values + _align_term(remaining.pop(0), axes)
        if heads > 1:
            values = _split_heads(values, heads).movedim(-2, axes + 1)  # [1, h, b, N, hd]
        if remaining:
            values = _apply_rotary(values, remaining, axes, split=heads > 1)
        return [values.reshape(*values.shape[:axes], *shape)]

    spec = request.result_spec(shape)
    loads = {}
    if not request["per_head"] and groups.group_size > 1:
        size = 4 * STATISTICS[request.name] * _tile_rows(request.tensor) * TILE * groups.group_size
        loads = count_link_bytes(groups.plan("all_gather", size), size, groups.chip_ids, request.mesh.traffic.routes)
    return Decision((spec,), compute, loads, request.tensor.tensor_topology())


def _mean_over_group(groups: ChipGroups, values: torch.Tensor, width: int) -> torch.Tensor:
    """The mean over the full rows of a group."""
    sums = groups.lane_groups.split(values.sum(-1, keepdim=True))
    return groups.lane_groups.merge(reduce_group(sums, groups.group_size, "sum")) / (groups.group_size * width)


def _align_term(term: torch.Tensor, axes: int) -> torch.Tensor:
    """[*mesh, ..., H] with four dims after the mesh dims."""
    local = term.shape[axes:]
    return term.float().reshape(*term.shape[:axes], *[1] * (4 - len(local)), *local)


def _split_heads(values: torch.Tensor, count: int) -> torch.Tensor:
    """Split the last dim into [count, extent / count]."""
    return values.reshape(*values.shape[:-1], count, values.shape[-1] // count)


def _apply_rotary(values: torch.Tensor, rope: list[torch.Tensor], axes: int, *, split: bool) -> torch.Tensor:
    """Rotary embedding: values · cos + rotated · sin, where 32 columns at a time are rotated by the matrix."""
    transformation, cos, sin = (tensor.float() for tensor in rope)
    if split:  # values are [*mesh, 1, heads, batch, N, head], cos and sin [*mesh, batch or 1, heads or 1, N, head]
        cos, sin = (tensor.movedim(axes, axes + 1).unsqueeze(axes) for tensor in (cos, sin))
    else:
        cos, sin = (tensor.movedim(axes, axes + 1) for tensor in (cos, sin))
    matrix = transformation.reshape(-1, TILE, TILE)[0]
    rotated = (_split_heads(values, values.shape[-1] // TILE) @ matrix).flatten(-2)
    return values * cos + rotated * sin


def _tile_rows(tensor: Tensor) -> int:
    padded = tensor.padded_shape
    return padded[1] * (-(-padded[2] // TILE))


_ROPE = "RoPE requires transformation_mat, rope_cos, and rope_sin all to be provided together"
