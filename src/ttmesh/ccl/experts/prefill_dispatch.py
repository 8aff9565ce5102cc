"""deepseek_prefill.dispatch sends a prefill's tokens to their experts' buffers, combine sends the results back."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.placement import Shard
from ttmesh.ccl.experts.expert_dispatch import count_token_bytes, expand_groups
from ttmesh.ccl.experts.prefill_checks import (
    check_combine,
    check_dispatch,
    check_fabric_axis,
    check_links_and_axis,
    check_sender_cores,
)
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, common_options, mesh_of, run
from ttmesh.ccl.planning.group_plan import axis_closes, find_groups
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

DISPATCH, COMBINE = "ttnn.experimental.deepseek_prefill.dispatch", "ttnn.experimental.deepseek_prefill.combine"
FIELDS = 3  # of a token's metadata: its device, its position there, and which of its experts this is


@collective(DISPATCH)
def dispatch(
    input_tensor: Tensor,
    indices_tensor: Tensor,
    expert_offsets_tensor: Tensor,
    expert_dispatch_table_tensor: Tensor,
    dispatch_group_size: int,
    experts_per_chip: int,
    num_routed_experts: int,
    num_experts_per_tok: int,
    metadata_len: int,
    max_dispatch_buffer_token_size: int,
    padding_config: Tensor | None = None,
    scales_tensor: Tensor | None = None,
    memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
    cluster_axis: int | None = None,
    num_links: int = 1,
    topology: Topology | None = None,
    use_l1_small_for_semaphores: bool = False,
    fp8_output: bool = False,
    fp8_scaled_input: bool = False,
    num_workers_per_sender: int = 2,
) -> list[Tensor]:
    """Every device gets the tokens of its experts, at the offsets given for them, and where each token came from."""
    tensors = [input_tensor, indices_tensor, expert_offsets_tensor, expert_dispatch_table_tensor]
    mesh = mesh_of(DISPATCH, tensors)
    check_links_and_axis(cluster_axis, num_links, topology or Topology.Linear)
    options = {
        "axis": cluster_axis or 0, "given_axis": cluster_axis, "metadata_len": metadata_len,
        "capacity": max_dispatch_buffer_token_size, "memory_config": memory_config or input_tensor.memory_config(),
        "topology": _find_topology(mesh, topology), "workers": num_workers_per_sender,
        "small": use_l1_small_for_semaphores, "has_padding": padding_config is not None, "fp8_output": fp8_output,
        "fp8_scaled_input": fp8_scaled_input,
        "numbers": (dispatch_group_size, experts_per_chip, num_routed_experts, num_experts_per_tok),
        **common_options(DISPATCH, mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    check_dispatch(mesh, tensors, padding_config, scales_tensor, options)
    check_fabric_axis("dispatch", cluster_axis)
    check_sender_cores(mesh, num_links, num_workers_per_sender)
    optional = [tensor for tensor in (padding_config, scales_tensor) if tensor is not None]
    result: list[Tensor] = run(DISPATCH, _decide_dispatch, [*tensors, *optional], options)
    return result


def _find_topology(mesh: MeshDevice, topology: Topology | None) -> Topology:
    """What the program is made for: a ring only where links join the ends of the axis."""
    return topology if topology is Topology.Ring and axis_closes(mesh, 0) else Topology.Linear


def _decide_dispatch(request: Request) -> Decision:
    groups, spec = find_groups(request, request["axis"]), request.tensor.spec
    n, capacity, width = groups.group_size, request["capacity"], request["metadata_len"]
    hidden = spec.shape[-1]
    dtype = DataType.FP8_E4M3 if request["fp8_output"] else DataType.BFLOAT16
    token_bytes = hidden * (1 if request["fp8_output"] else 2) + width * 4

    def compute(
        tokens: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor, *optional: torch.Tensor
    ) -> list[torch.Tensor]:
        padding = optional[0] if request["has_padding"] else None
        scales = optional[-1] if request["fp8_scaled_input"] else None
        rows = expand_groups(groups, tokens).flatten(2, -2)  # [groups, n, tokens, hidden]
        count, k = rows.shape[2], indices.shape[-1]
        experts = expand_groups(groups, indices).flatten(2, -2).long()[:, :, :count]  # [groups, n, tokens, k]
        starts = expand_groups(groups, offsets).flatten(2).long()
        owners = expand_groups(groups, table).flatten(2).long()
        owner = torch.take_along_dim(owners, experts.flatten(2).clamp(max=owners.shape[-1] - 1), 2)
        start = torch.take_along_dim(starts, experts.flatten(2).clamp(max=starts.shape[-1] - 1), 2)
        is_real = torch.ones(1, dtype=torch.bool, device=rows.device)
        if padding is not None:
            is_real = _find_real(expand_groups(groups, padding), count).repeat_interleave(k, -1)
        place = start + _rank_equal(torch.where(is_real, experts.flatten(2), -1))
        kept = is_real & (owner >= 0) & (owner < n) & (place < capacity)
        group, chip, choice = kept.nonzero(as_tuple=True)
        target = (group, owner[kept], place[kept])
        buffer = rows.new_zeros(rows.shape[0], n, capacity, hidden)
        buffer[target] = rows[group, chip, choice // k]
        metadata = torch.zeros(rows.shape[0], n, capacity, width, dtype=torch.int32, device=rows.device)
        devices = groups.lane_groups.device_ids(rows.device)
        fields = torch.stack([devices[group, chip], choice // k, choice % k], -1).int()
        tail = torch.zeros(len(group), width - FIELDS, dtype=torch.int32, device=rows.device)
        if scales is not None:
            factors = expand_groups(groups, scales).flatten(2, -2).float()
            tail = factors[group, chip, choice // k].contiguous().view(torch.int32)
        metadata[target] = torch.cat([fields, tail], -1)
        count_token_bytes(groups, _count_pairs(group, chip, owner[kept], rows.shape[0], n), token_bytes)
        return [groups.lane_groups.merge(x[:, :, None, None]) for x in (buffer, metadata)]

    memory = request["memory_config"]
    specs = (
        TensorSpec((1, 1, capacity, hidden), dtype, Layout.ROW_MAJOR, memory_config=memory),
        TensorSpec((1, 1, capacity, width), DataType.INT32, Layout.ROW_MAJOR, memory_config=memory),
    )
    given = request.tensor.tensor_topology()
    shape = given.distribution_shape()
    topology = TensorTopology(shape, [Shard(i) for i in range(shape.dims())], given.mesh_coords())
    return Decision(specs, compute, {}, topology, single=False, exchange_axes=groups.exchange_axes)


def _find_real(padding: torch.Tensor, count: int) -> torch.Tensor:
    """Which tokens are not padding, [groups, n, tokens]: the first of them, or with side 1 the last."""
    number, side = padding.flatten(2)[..., 0, None].long(), padding.flatten(2)[..., 1, None].long()
    position = torch.arange(count, device=padding.device)
    return torch.where(side == 0, position < number, position >= count - number)


def _rank_equal(values: torch.Tensor) -> torch.Tensor:
    """How many equal values come before each along the last dim."""
    ordered, order = torch.sort(values, dim=-1, stable=True)
    first = torch.searchsorted(ordered.contiguous(), ordered.contiguous())
    rank = torch.arange(values.shape[-1], device=values.device) - first
    return torch.empty_like(rank).scatter_(-1, order, rank)


def _count_pairs(
    group: torch.Tensor, origin: torch.Tensor, target: torch.Tensor, groups: int, n: int
) -> list[list[list[int]]]:
    """How many tokens go from each origin to each target of every group."""
    pairs = torch.bincount((group * n + origin) * n + target, minlength=groups * n * n)
    counts: list[list[list[int]]] = pairs.reshape(groups, n, n).tolist()
    return counts


@collective(COMBINE)
def combine(
    dispatched_buffer: Tensor,
    dispatched_metadata: Tensor,
    expert_token_counts: Tensor,
    expert_region_offsets: Tensor,
    dispatch_group_size: int,
    experts_per_chip: int,
    num_experts_per_tok: int,
    seq_len_per_chip: int,
    memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
    cluster_axis: int | None = None,
    num_links: int = 1,
    topology: Topology | None = None,
    use_l1_small_for_semaphores: bool = False,
    init_zeros: bool = True,
    use_fp8_combine: bool = False,
) -> Tensor:
    """Every device gets, for each of its tokens and each of the token's experts in its group, that expert's result."""
    tensors = [dispatched_buffer, dispatched_metadata, expert_token_counts, expert_region_offsets]
    mesh = mesh_of(COMBINE, tensors)
    check_links_and_axis(cluster_axis, num_links, topology or Topology.Linear)
    options = {
        "axis": cluster_axis or 0, "given_axis": cluster_axis, "experts": experts_per_chip, "k": num_experts_per_tok,
        "tokens": seq_len_per_chip, "memory_config": memory_config or dispatched_buffer.memory_config(),
        "topology": _find_topology(mesh, topology), "small": use_l1_small_for_semaphores, "init_zeros": init_zeros,
        "fp8_output": use_fp8_combine, "size": dispatch_group_size,
        **common_options(COMBINE, mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    check_combine(mesh, tensors, options)
    check_fabric_axis("combine", cluster_axis)
    result: Tensor = run(COMBINE, _decide_combine, tensors, options)
    return result


def _decide_combine(request: Request) -> Decision:
    groups, hidden = find_groups(request, request["axis"]), request.tensor.spec.shape[-1]
    rows_of_mesh, columns = request.mesh.shape.to_tuple()
    n, k, count, per_chip = groups.group_size, request["k"], request["tokens"], request["experts"]
    dtype = DataType.FP8_E4M3 if request["fp8_output"] else DataType.BFLOAT16
    token_bytes = hidden * (1 if request["fp8_output"] else 2)

    def compute(
        buffer: torch.Tensor, metadata: torch.Tensor, counts: torch.Tensor, regions: torch.Tensor
    ) -> list[torch.Tensor]:
        rows = expand_groups(groups, buffer).flatten(2, -2)
        origins = expand_groups(groups, metadata).flatten(2, -2).long()
        totals, starts = (expand_groups(groups, x).flatten(2).long() for x in (counts, regions))
        result = rows.new_zeros(rows.shape[0], n, count, k, hidden)
        devices = groups.lane_groups.device_ids(rows.device)
        position = torch.full((rows_of_mesh * columns,), -1, device=rows.device, dtype=torch.int64)
        position[devices] = torch.arange(n, device=rows.device)
        sent = torch.zeros(rows.shape[0], n, n, dtype=torch.long, device=rows.device)
        for g in range(rows.shape[0]):
            for chip in range(n):
                row, column = divmod(int(devices[g, chip]), columns)
                first = (column * rows_of_mesh + row) * per_chip  # experts are numbered group by group
                for expert in range(first, first + per_chip):
                    begin = int(starts[g, chip, expert])
                    end = min(begin + int(totals[g, chip, expert]), rows.shape[2])
                    fields, values = origins[g, chip, begin:end], rows[g, chip, begin:end]
                    places = position[fields[:, 0]]
                    here = places >= 0
                    fields, values, places = fields[here], values[here], places[here]
                    result[g, places, fields[:, 1], fields[:, 2]] = values
                    sent[g, chip] += torch.bincount(places, minlength=n)
        count_token_bytes(groups, sent.tolist(), token_bytes)
        return [groups.lane_groups.merge(result[:, :, None, None])]

    spec = TensorSpec((1, 1, count, k, hidden), dtype, Layout.ROW_MAJOR, memory_config=request["memory_config"])
    return Decision((spec,), compute, {}, request.tensor.tensor_topology(), exchange_axes=groups.exchange_axes)
