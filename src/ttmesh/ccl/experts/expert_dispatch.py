"""all_to_all_dispatch sends tokens to the devices of their experts, all_to_all_combine sends the results back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ttmesh.base.errors import require
from ttmesh.ccl.collectives.collective_semaphores import program_stages
from ttmesh.ccl.experts.expert_checks import check_combine, check_dispatch, check_experts, check_room_for_result
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import ChipGroups, check_axis, find_groups
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.ccl.planning.rank_exchange import exchange_rows, find_local_groups
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


@collective("ttnn.all_to_all_dispatch")
def all_to_all_dispatch(
    input_tensor: Tensor,
    expert_indices_tensor: Tensor,
    expert_mapping_tensor: Tensor,
    cluster_axis: int | None = None,
    output_tensors: Sequence[Tensor] | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
    memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
    output_concat_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Every device gets the tokens of its experts, at their positions among all tokens, and all devices' expert indices."""
    tensors = [input_tensor, expert_indices_tensor, expert_mapping_tensor]
    mesh = mesh_of("ttnn.all_to_all_dispatch", tensors)
    check_axis(mesh, cluster_axis, "all_to_all_dispatch")
    kept = memory_config or input_tensor.memory_config()
    check_dispatch(input_tensor, expert_indices_tensor, kept.is_sharded(), output_concat_dim)
    options = {
        "axis": cluster_axis, "dim": output_concat_dim, "memory_config": kept,
        "topology": topology, "mode": check_common(mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    tokens, metadata = run("ttnn.all_to_all_dispatch", _decide_dispatch, tensors, options, output_tensors or ())
    return tokens, metadata


@collective("ttnn.all_to_all_combine")
def all_to_all_combine(
    input_tensor: Tensor,
    expert_metadata_tensor: Tensor,
    expert_mapping_tensor: Tensor,
    local_reduce: bool = False,
    output_shard_dim: int = 1,
    cluster_axis: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
) -> Tensor:
    """Every device gets, for each of its tokens and each of the token's experts, that expert's result."""
    tensors = [input_tensor, expert_metadata_tensor, expert_mapping_tensor]
    mesh = mesh_of("ttnn.all_to_all_combine", tensors)
    check_axis(mesh, cluster_axis, "all_to_all_combine")
    kept = memory_config or input_tensor.memory_config()
    if output_tensor is None:
        shards = mesh.get_num_devices() if cluster_axis is None else mesh.shape[cluster_axis]
        check_room_for_result(expert_metadata_tensor, output_shard_dim, shards)
    check_combine(
        *tensors, local_reduce=local_reduce, axis=cluster_axis, sharded=kept.is_sharded(), dim=output_shard_dim
    )
    options = {
        "axis": cluster_axis, "dim": output_shard_dim, "memory_config": kept,
        "local_reduce": local_reduce, "topology": topology,
        "mode": check_common(mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    outputs = [] if output_tensor is None else [output_tensor]
    result: Tensor = run("ttnn.all_to_all_combine", _decide_combine, tensors, options, outputs)
    return result


def _decide_dispatch(request: Request) -> Decision:
    groups, dim = find_groups(request, request["axis"]), request["dim"]
    n, spec, index_spec = groups.group_size, request.tensor.spec, request.tensors[1].spec
    batch, _, seq, hidden = spec.shape
    full_shape = (batch * n, seq) if dim == 1 else (batch, seq * n)
    token_bytes = hidden * 2

    def compute(tokens: torch.Tensor, indices: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        all_tokens = _concat_group(expand_groups(groups, tokens)[:, :, :, 0], dim)  # [groups, *full_shape, hidden]
        experts = _concat_group(expand_groups(groups, indices)[:, :, :, 0], dim)  # [groups, *full_shape, k]
        if all_tokens.is_meta:
            empty = all_tokens.new_empty(all_tokens.shape[0], n, 1, *all_tokens.shape[1:])
            return [groups.lane_groups.merge(empty), groups.lane_groups.merge(experts[:, None, None])]
        needed = _find_owners(groups, experts, mapping)
        sparse_tokens = all_tokens[:, None] * needed[..., None]
        _count_dispatch(groups, needed, dim, token_bytes)
        return [
            groups.lane_groups.merge(sparse_tokens[:, :, None]),
            groups.lane_groups.merge(experts[:, None, None]),
        ]

    rank_block, exchange_axes = request.mesh.rank_block, groups.exchange_axes

    def compute_on_rank(tokens: torch.Tensor, indices: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        """`compute` from one rank's tokens: every rank gets all expert indices, and the tokens that its experts need."""
        assert rank_block is not None, "used only if ranks share the axis"
        assert exchange_axes is not None, "used only if ranks share the axis"
        axis, local_groups = exchange_axes[0], find_local_groups(rank_block, exchange_axes[0])
        experts = _concat_group(expand_groups(groups, rank_block.gather_along(indices))[:, :, :, 0], dim)
        local_tokens = groups.lane_groups.split(tokens)
        group_count, local_chips, ranks = (
            rank_block.block_shape[1 - axis],
            rank_block.block_shape[axis],
            rank_block.grid[axis],
        )
        local_tokens = local_tokens.expand(group_count, local_chips, *local_tokens.shape[2:])[
            :, :, :, 0
        ]  # [groups, local chips, batch, seq, hidden]
        if local_tokens.is_meta:
            empty = local_tokens.new_empty(group_count, local_chips, 1, *full_shape, hidden)
            return [groups.lane_groups.merge(empty), groups.lane_groups.merge(experts[local_groups, None, None])]
        needed = _find_owners(groups, experts, mapping)
        _count_dispatch(groups, needed, dim, token_bytes)
        needed_by_origin = _split_by_origin(needed[local_groups], dim, n).reshape(
            group_count, ranks, local_chips, ranks, local_chips, batch, seq
        )
        needed_by_rank = needed_by_origin.any(4).permute(
            1, 3, 0, 2, 4, 5
        )  # [from rank, to rank, groups, chips there, batch, seq]
        counts = needed_by_rank.flatten(2).sum(-1).tolist()
        own_position = rank_block.start[axis] // local_chips
        rows = local_tokens.new_zeros(ranks, max(map(max, counts)), hidden)
        for target in range(ranks):
            rows[target, : counts[own_position][target]] = local_tokens[needed_by_rank[own_position, target]]
        received = exchange_rows(rank_block, axis, rows)
        all_tokens = local_tokens.new_zeros(ranks, *local_tokens.shape)
        for sender in range(ranks):
            all_tokens[sender][needed_by_rank[sender, own_position]] = received[sender, : counts[sender][own_position]]
        concatenated = _concat_group(all_tokens.movedim(0, 1).flatten(1, 2), dim)
        sparse_tokens = (
            concatenated[:, None] * needed[local_groups].narrow(1, rank_block.start[axis], local_chips)[..., None]
        )
        return [
            groups.lane_groups.merge(sparse_tokens[:, :, None]),
            groups.lane_groups.merge(experts[local_groups, None, None]),
        ]

    specs = (
        request.result_spec((1, *full_shape, hidden)),
        request.result_spec((1, *full_shape, index_spec.shape[-1]), result=1, source=1),
    )
    return Decision(
        specs, compute, {}, request.tensor.tensor_topology(), single=False,
        stages=None if request.outputs else program_stages(request, "all_to_all_dispatch", specs),
        compute_on_rank=None if exchange_axes is None else compute_on_rank,
    )  # fmt: skip


def _decide_combine(request: Request) -> Decision:
    groups, dim = find_groups(request, request["axis"]), request["dim"]
    n, hidden = groups.group_size, request.tensor.spec.shape[-1]
    _, batch, seq, k = request.tensors[1].spec.shape
    extent = batch if dim == 1 else seq
    require(
        extent % n == 0,
        f"{'Batch' if dim == 1 else 'Sequence length'} {extent} must be divisible by axis group {n}",
        f"a multiple of {n}",
        "Pad it with ttnn.pad.",
    )
    shape = (k, batch // n, seq, hidden) if dim == 1 else (k, batch, seq // n, hidden)

    def find_experts(metadata: torch.Tensor, mapping: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For every token's experts: the chip that has the expert, whether there is one, and the expert's index there."""
        experts = expand_groups(groups, metadata)[:, 0, 0].long()  # [groups, batch, seq, k]
        check_experts("ttnn.all_to_all_combine", experts, mapping.shape[-2])
        device = _find_expert_devices(mapping)[experts]
        devices = groups.lane_groups.device_ids(experts.device)
        match = device[..., None] == devices[:, None, None, None]  # [..., k, n]
        chip, exists = match.int().argmax(-1), match.any(-1)
        if not request["local_reduce"]:
            return chip, exists, _find_local_indices(mapping)[experts]
        return chip, exists & _first_on_device(experts, device), torch.zeros_like(experts)

    def compute(contributions: torch.Tensor, metadata: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        group_lanes = expand_groups(groups, contributions)  # [groups, n, experts here, batch, seq, hidden]
        group_count = group_lanes.shape[0]
        if group_lanes.is_meta:
            return [groups.lane_groups.merge(group_lanes.new_empty(group_count, n, *shape))]
        chip, exists, slot = find_experts(metadata, mapping)
        rows = group_lanes.flatten(2, 4)  # [groups, n, rows, hidden]
        group, row = _index_rows(slot, batch, seq)
        held = exists & (row < rows.shape[2])
        returned = (
            rows[group, chip, row.clamp(max=rows.shape[2] - 1)] * held[..., None]
        )  # [groups, batch, seq, k, hidden]
        returned = returned.movedim(3, 1)  # [groups, k, batch, seq, hidden]
        shards = split_dim(returned, dim - 4, n).movedim(dim + 1, 1)
        _count_combine(groups, chip, exists, dim, n, hidden * 2)
        return [groups.lane_groups.merge(shards)]

    rank_block, exchange_axes = request.mesh.rank_block, groups.exchange_axes

    def compute_on_rank(
        contributions: torch.Tensor, metadata: torch.Tensor, mapping: torch.Tensor
    ) -> list[torch.Tensor]:
        """`compute` from one rank's contributions: each rank gets the k contributions of its tokens, not all experts'."""
        assert rank_block is not None, "used only if ranks share the axis"
        assert exchange_axes is not None, "used only if ranks share the axis"
        axis, local_groups = exchange_axes[0], find_local_groups(rank_block, exchange_axes[0])
        local_lanes = groups.lane_groups.split(contributions)
        group_count, local_chips = rank_block.block_shape[1 - axis], rank_block.block_shape[axis]
        local_lanes = local_lanes.expand(group_count, local_chips, *local_lanes.shape[2:])
        if local_lanes.is_meta:
            return [groups.lane_groups.merge(local_lanes.new_empty(group_count, local_chips, *shape))]
        chip, exists, slot = find_experts(rank_block.gather_along(metadata), mapping)
        _count_combine(groups, chip, exists, dim, n, hidden * 2)
        position = chip[local_groups] - rank_block.start[axis]
        is_local = exists[local_groups] & (position >= 0) & (position < local_chips)
        held_rows = local_lanes.flatten(2, 4)
        group, row = _index_rows(slot[local_groups], batch, seq)
        is_local &= row < held_rows.shape[2]
        returned = held_rows[
            group, position.clamp(0, local_chips - 1), row.clamp(max=held_rows.shape[2] - 1)
        ].masked_fill(~is_local[..., None], 0)
        shards = split_dim(returned.movedim(3, 1), dim - 4, n).movedim(dim + 1, 1)  # [groups, targets, k, ...]
        rows = (
            shards.reshape(group_count, rank_block.grid[axis], local_chips, *shards.shape[2:])
            .movedim(1, 0)
            .contiguous()
        )
        # Exactly one rank sends the value of a token; the others send zeros.
        return [groups.lane_groups.merge(exchange_rows(rank_block, axis, rows).sum(0))]

    program_count = 1 if request.outputs else 2  # TT-NN first fills an output that it allocates with zeros
    return Decision(
        (request.result_spec(shape),), compute, {}, request.tensor.tensor_topology(), programs=program_count,
        compute_on_rank=None if exchange_axes is None else compute_on_rank,
    )  # fmt: skip


def _index_rows(slot: torch.Tensor, batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For the slots [groups, batch, seq, k]: indices of groups that broadcast to them, and the row of each contribution.

    The kernel counts rows by the metadata's batch and sequence; what would lie behind the tensor reads as zeros here.
    """
    group = torch.arange(slot.shape[0], device=slot.device)[:, None, None, None]
    token = torch.arange(batch * seq, device=slot.device).reshape(batch, seq, 1)
    return group, slot * (batch * seq) + token


def _find_owners(groups: ChipGroups, experts: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
    """[groups, n, *full shape]: which chips have an expert of which token."""
    check_experts("ttnn.all_to_all_dispatch", experts, mapping.shape[-2])
    owner = _find_expert_devices(mapping)[experts.long()]  # [groups, *full_shape, k]: linear device ids
    devices = groups.lane_groups.device_ids(owner.device)
    return (owner[:, None] == devices[: experts.shape[0], :, None, None, None]).any(-1)


def _split_by_origin(needed: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    """[groups, n, *full shape] → [groups, origin, target, batch, seq]."""
    return split_dim(needed, dim - 3, n).movedim(dim + 1, 1)


def expand_groups(groups: ChipGroups, lanes: torch.Tensor) -> torch.Tensor:
    """[groups, chips, *local] with a lane for every chip."""
    group_lanes = groups.lane_groups.split(lanes)
    return group_lanes.expand(len(groups.chip_ids), groups.group_size, *group_lanes.shape[2:])


def _concat_group(group_lanes: torch.Tensor, dim: int) -> torch.Tensor:
    """Concatenate [groups, n, batch, seq, ...] along batch (dim 1) or seq (dim 2)."""
    return group_lanes.flatten(1, 2) if dim == 1 else group_lanes.movedim(1, 2).flatten(2, 3)


def _find_expert_devices(mapping: torch.Tensor) -> torch.Tensor:
    """The linear device id of every expert, from the one-hot mapping that all devices hold."""
    return _read_mapping(mapping).argmax(-1)


def _find_local_indices(mapping: torch.Tensor) -> torch.Tensor:
    """The index of every expert among the experts of its device."""
    table = _read_mapping(mapping).long()
    return (table.cumsum(0) - 1).gather(1, table.argmax(-1, keepdim=True))[:, 0]


def _read_mapping(mapping: torch.Tensor) -> torch.Tensor:
    return mapping.reshape(-1, *mapping.shape[-2:])[0]  # [experts, devices]; the same on every lane


def _first_on_device(experts: torch.Tensor, device: torch.Tensor) -> torch.Tensor:
    """Which of a token's experts is the lowest of its device: its slot gets the locally reduced sum."""
    rank = experts * experts.shape[-1] + torch.arange(experts.shape[-1], device=experts.device)
    earlier = (device[..., None, :] == device[..., :, None]) & (rank[..., None, :] < rank[..., :, None])
    return ~earlier.any(-1)


def _count_dispatch(groups: ChipGroups, needed: torch.Tensor, dim: int, token_bytes: int) -> None:
    """Count the traffic of a dispatch: each token is sent once to every device that has one of its experts."""
    count_token_bytes(groups, _split_by_origin(needed, dim, groups.group_size).flatten(3).sum(-1).tolist(), token_bytes)


def _count_combine(
    groups: ChipGroups, chip: torch.Tensor, exists: torch.Tensor, dim: int, n: int, token_bytes: int
) -> None:
    """Count the traffic of a combine: each contribution is sent from its expert's device to the token's."""
    extent = chip.shape[dim]
    target = (torch.arange(extent, device=chip.device) // (extent // n)).reshape(
        [-1 if i == dim else 1 for i in range(chip.dim())]
    )
    group = torch.arange(chip.shape[0], device=chip.device).reshape(-1, 1, 1, 1)
    pairs = ((group * n + chip) * n + target)[exists]
    counts = torch.bincount(pairs, minlength=chip.shape[0] * n * n).reshape(-1, n, n)
    count_token_bytes(groups, counts.tolist(), token_bytes)


def count_token_bytes(groups: ChipGroups, counts: list[list[list[int]]], token_bytes: int) -> None:
    """Count the traffic of these numbers of tokens from each origin to each target of every group, along their routes."""
    traffic = groups.request.mesh.traffic
    loads: Loads = {}
    for chips, table in zip(groups.chip_ids, counts, strict=False):
        for origin, row in enumerate(table):
            for target, tokens in enumerate(row):
                route = traffic.routes.route(chips[origin], chips[target])
                for hop in pairwise(route):
                    loads[hop] = loads.get(hop, 0) + tokens * token_bytes
    traffic.counters.add(loads)
