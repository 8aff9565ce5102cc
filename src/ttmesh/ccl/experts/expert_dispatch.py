"""Tokens to the devices of their experts and back: all_to_all_dispatch and all_to_all_combine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import Placed, check_axis, find_groups
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.ccl.planning.rank_exchange import exchange_rows, own_groups
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
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
    """Every device gets the tokens of its experts at their places among all tokens, and everybody's expert indices."""
    tensors = [input_tensor, expert_indices_tensor, expert_mapping_tensor]
    mesh = mesh_of("ttnn.all_to_all_dispatch", tensors)
    check_axis(mesh, cluster_axis)
    require(
        input_tensor.layout is Layout.ROW_MAJOR,
        "Input tensor must be in row major layout",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        expert_indices_tensor.layout is Layout.ROW_MAJOR,
        "Indices tensor must be in row major layout",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        input_tensor.dtype is DataType.BFLOAT16,
        "Input tensor must be bfloat16",
        "bfloat16",
        "Convert it with ttnn.typecast.",
    )
    require(
        expert_indices_tensor.dtype is DataType.UINT16,
        "Indices tensor must be uint16",
        "uint16",
        "Convert it with ttnn.typecast.",
    )
    require(
        output_concat_dim in (1, 2),
        f"Output concat dimension must be 1 or 2, got {output_concat_dim}. Output concat dimension is used to determine "
        "the dimension to concat the output tokens along.",
        "1 or 2",
        "Pass output_concat_dim=1 for the batch or 2 for the sequence.",
    )
    options = {
        "axis": cluster_axis, "dim": output_concat_dim, "memory_config": memory_config or DRAM_MEMORY_CONFIG,
        "topology": topology, "mode": check_common(mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    tokens, metadata = run("ttnn.all_to_all_dispatch", _dispatch, tensors, options, output_tensors or ())
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
    """Every device gets back, for each of its tokens and each expert chosen for it, what that expert made of it."""
    tensors = [input_tensor, expert_metadata_tensor, expert_mapping_tensor]
    mesh = mesh_of("ttnn.all_to_all_combine", tensors)
    check_axis(mesh, cluster_axis)
    require(
        input_tensor.layout is Layout.ROW_MAJOR,
        "Input tensor must be in row major layout",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        expert_metadata_tensor.layout is Layout.ROW_MAJOR,
        "Metadata tensor must be in row major layout",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    require(
        input_tensor.dtype is DataType.BFLOAT16,
        "Input tensor must be bfloat16",
        "bfloat16",
        "Convert it with ttnn.typecast.",
    )
    require(
        expert_metadata_tensor.dtype is DataType.UINT16,
        "Metadata tensor must be uint16",
        "uint16",
        "Convert it with ttnn.typecast.",
    )
    require(
        cluster_axis is not None, "Axis must be specified at the moment", "an axis of the mesh", "Pass cluster_axis."
    )
    require(
        output_shard_dim in (1, 2),
        f"Output shard dimension must be 1 or 2, got {output_shard_dim}. Output shard dimension is used to determine the "
        "dimension to shard the output tokens along.",
        "1 or 2",
        "Pass output_shard_dim=1 for the batch or 2 for the sequence.",
    )
    options = {
        "axis": cluster_axis, "dim": output_shard_dim, "memory_config": memory_config or DRAM_MEMORY_CONFIG,
        "local_reduce": local_reduce, "topology": topology,
        "mode": check_common(mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    outputs = [] if output_tensor is None else [output_tensor]
    result: Tensor = run("ttnn.all_to_all_combine", _combine, tensors, options, outputs)
    return result


def _dispatch(request: Request) -> Decision:
    where, dim = find_groups(request, request["axis"]), request["dim"]
    n, spec, chosen = where.members, request.tensor.spec, request.tensors[1].spec
    batch, _, seq, hidden = spec.shape
    whole = (batch * n, seq) if dim == 1 else (batch, seq * n)
    token_bytes = hidden * 2

    def compute(tokens: torch.Tensor, indices: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        every = _concat_members(members_of(where, tokens)[:, :, :, 0], dim)  # [groups, *whole, hidden]
        experts = _concat_members(members_of(where, indices)[:, :, :, 0], dim)  # [groups, *whole, k]
        if every.is_meta:
            blank = every.new_empty(every.shape[0], n, 1, *every.shape[1:])
            return [where.arrangement.spread(blank), where.arrangement.spread(experts[:, None, None])]
        wanted = _find_owners(where, experts, mapping)
        placed_tokens = every[:, None] * wanted[..., None]
        _count(where, wanted, dim, token_bytes)
        return [
            where.arrangement.spread(placed_tokens[:, :, None]),
            where.arrangement.spread(experts[:, None, None]),
        ]

    part, across = request.mesh.rank_block, where.across

    def over_ranks(tokens: torch.Tensor, indices: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        """The same from one rank's tokens: choices go to every rank, a token to those whose chips have an expert for it."""
        assert part is not None, "asked for only then"
        assert across is not None, "asked for only then"
        axis, mine = across[0], own_groups(part, across[0])
        experts = _concat_members(members_of(where, part.gather_along(indices))[:, :, :, 0], dim)
        own = where.arrangement.gather(tokens)
        groups, here, ranks = part.block_shape[1 - axis], part.block_shape[axis], part.grid[axis]
        own = own.expand(groups, here, *own.shape[2:])[:, :, :, 0]  # [groups, members here, batch, seq, hidden]
        if own.is_meta:
            blank = own.new_empty(groups, here, 1, *whole, hidden)
            return [where.arrangement.spread(blank), where.arrangement.spread(experts[mine, None, None])]
        wanted = _find_owners(where, experts, mapping)
        _count(where, wanted, dim, token_bytes)
        by_origin = _by_origin(wanted[mine], dim, n).reshape(groups, ranks, here, ranks, here, batch, seq)
        need = by_origin.any(4).permute(1, 3, 0, 2, 4, 5)  # [from rank, to rank, groups, members there, batch, seq]
        counts = need.flatten(2).sum(-1).tolist()
        me = part.start[axis] // here
        rows = own.new_zeros(ranks, max(map(max, counts)), hidden)
        for to in range(ranks):
            rows[to, : counts[me][to]] = own[need[me, to]]
        got = exchange_rows(part, axis, rows)
        every = own.new_zeros(ranks, *own.shape)
        for sender in range(ranks):
            every[sender][need[sender, me]] = got[sender, : counts[sender][me]]
        joined = _concat_members(every.movedim(0, 1).flatten(1, 2), dim)
        placed_tokens = joined[:, None] * wanted[mine].narrow(1, part.start[axis], here)[..., None]
        return [
            where.arrangement.spread(placed_tokens[:, :, None]),
            where.arrangement.spread(experts[mine, None, None]),
        ]

    specs = (
        request.result_spec((1, *whole, hidden)),
        request.result_spec((1, *whole, chosen.shape[-1]), result=1, source=1),
    )
    return Decision(
        specs, compute, {}, request.tensor.tensor_topology(), single=False,
        over_ranks=None if across is None else over_ranks,
    )  # fmt: skip


def _combine(request: Request) -> Decision:
    where, dim = find_groups(request, request["axis"]), request["dim"]
    n, spec = where.members, request.tensor.spec
    _, batch, seq, hidden = spec.shape
    k = request.tensors[1].spec.shape[-1]
    extent = batch if dim == 1 else seq
    require(
        extent % n == 0,
        f"{'Batch' if dim == 1 else 'Sequence length'} {extent} must be divisible by axis group {n}",
        f"a multiple of {n}",
        "Pad it with ttnn.pad.",
    )
    shape = (k, batch // n, seq, hidden) if dim == 1 else (k, batch, seq // n, hidden)
    devices = torch.tensor(where.arrangement.groups)
    b, s = torch.arange(batch)[:, None, None], torch.arange(seq)[:, None]

    def find_experts(metadata: torch.Tensor, mapping: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of every token's choices: the member that has the expert, whether there is one, and the expert's place there."""
        experts = members_of(where, metadata)[:, 0, 0].long()  # [groups, batch, seq, k]
        device = _owners(mapping)[experts]
        match = device[..., None] == devices[:, None, None, None]  # [..., k, n]
        member, here = match.int().argmax(-1), match.any(-1)
        if not request["local_reduce"]:
            return member, here, _local_places(mapping)[experts]
        return member, here & _first_on_device(experts, device), torch.zeros_like(experts)

    def compute(contributions: torch.Tensor, metadata: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        members = members_of(where, contributions)  # [groups, n, experts here, batch, seq, hidden]
        groups = members.shape[0]
        if members.is_meta:
            return [where.arrangement.spread(members.new_empty(groups, n, *shape))]
        member, here, slot = find_experts(metadata, mapping)
        group = torch.arange(groups)[:, None, None, None]
        back = members[group, member, slot, b, s] * here[..., None]  # [groups, batch, seq, k, hidden]
        back = back.movedim(3, 1)  # [groups, k, batch, seq, hidden]
        parts = split_dim(back, dim - 4, n).movedim(dim + 1, 1)
        _count_back(where, member, here, dim, n, hidden * 2)
        return [where.arrangement.spread(parts)]

    part, across = request.mesh.rank_block, where.across

    def over_ranks(contributions: torch.Tensor, metadata: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        """The same from one rank's contributions: each rank gets those for its tokens, k of them, not all experts'."""
        assert part is not None, "asked for only then"
        assert across is not None, "asked for only then"
        axis, mine = across[0], own_groups(part, across[0])
        own = where.arrangement.gather(contributions)
        groups, count = part.block_shape[1 - axis], part.block_shape[axis]
        own = own.expand(groups, count, *own.shape[2:])
        if own.is_meta:
            return [where.arrangement.spread(own.new_empty(groups, count, *shape))]
        member, here, slot = find_experts(part.gather_along(metadata), mapping)
        _count_back(where, member, here, dim, n, hidden * 2)
        place = member[mine] - part.start[axis]
        ours = here[mine] & (place >= 0) & (place < count)
        group = torch.arange(groups)[:, None, None, None]
        back = own[group, place.clamp(0, count - 1), slot[mine], b, s].masked_fill(~ours[..., None], 0)
        parts = split_dim(back.movedim(3, 1), dim - 4, n).movedim(dim + 1, 1)  # [groups, targets, k, ...]
        rows = parts.reshape(groups, part.grid[axis], count, *parts.shape[2:]).movedim(1, 0).contiguous()
        # Of what comes from the ranks, one has the value and the others zeros.
        return [where.arrangement.spread(exchange_rows(part, axis, rows).sum(0))]

    filled = 1 if request.outputs else 2  # TT-NN fills an output of its own with zeros first
    return Decision(
        (request.result_spec(shape),), compute, {}, request.tensor.tensor_topology(), programs=filled,
        over_ranks=None if across is None else over_ranks,
    )  # fmt: skip


def _find_owners(where: Placed, experts: torch.Tensor, mapping: torch.Tensor) -> torch.Tensor:
    """[groups, n, *whole]: which chips have an expert for which token."""
    owner = _owners(mapping)[experts.long()]  # [groups, *whole, k]: linear device ids
    devices = torch.tensor(where.arrangement.groups)
    return (owner[:, None] == devices[: experts.shape[0], :, None, None, None]).any(-1)


def _by_origin(wanted: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    """[groups, n, *whole] → [groups, origin, target, batch, seq]."""
    return split_dim(wanted, dim - 3, n).movedim(dim + 1, 1)


def members_of(where: Placed, lanes: torch.Tensor) -> torch.Tensor:
    """[groups, members, *local], every member there."""
    members = where.arrangement.gather(lanes)
    return members.expand(len(where.lines), where.members, *members.shape[2:])


def _concat_members(members: torch.Tensor, dim: int) -> torch.Tensor:
    """[groups, n, batch, seq, ...] joined along batch (dim 1) or seq (dim 2)."""
    return members.flatten(1, 2) if dim == 1 else members.movedim(1, 2).flatten(2, 3)


def _owners(mapping: torch.Tensor) -> torch.Tensor:
    """The linear device id of every expert, from the one-hot mapping that all devices hold."""
    return _one_hot(mapping).argmax(-1)


def _local_places(mapping: torch.Tensor) -> torch.Tensor:
    """The number of every expert among those of its device."""
    table = _one_hot(mapping).long()
    return (table.cumsum(0) - 1).gather(1, table.argmax(-1, keepdim=True))[:, 0]


def _one_hot(mapping: torch.Tensor) -> torch.Tensor:
    return mapping.reshape(-1, *mapping.shape[-2:])[0]  # [experts, devices]; the same on every lane


def _first_on_device(experts: torch.Tensor, device: torch.Tensor) -> torch.Tensor:
    """Which of a token's choices has the lowest expert of its device: where a locally reduced sum is put."""
    rank = experts * experts.shape[-1] + torch.arange(experts.shape[-1])
    earlier = (device[..., None, :] == device[..., :, None]) & (rank[..., None, :] < rank[..., :, None])
    return ~earlier.any(-1)


def _count(where: Placed, wanted: torch.Tensor, dim: int, token_bytes: int) -> None:
    """Each token goes once to every device that has an expert for it."""
    send_counts(where, _by_origin(wanted, dim, where.members).flatten(3).sum(-1).tolist(), token_bytes)


def _count_back(where: Placed, member: torch.Tensor, here: torch.Tensor, dim: int, n: int, token_bytes: int) -> None:
    """Each contribution goes from its expert's device to the token's."""
    extent = member.shape[dim]
    target = (torch.arange(extent) // (extent // n)).reshape([-1 if i == dim else 1 for i in range(member.dim())])
    pairs = (member * n + target)[here] + (torch.arange(member.shape[0]) * n * n).reshape(-1, 1, 1, 1).expand_as(
        member
    )[here]
    counts = torch.bincount(pairs, minlength=member.shape[0] * n * n).reshape(-1, n, n)
    send_counts(where, counts.tolist(), token_bytes)


def send_counts(where: Placed, counts: list[list[list[int]]], token_bytes: int) -> None:
    """Count so many tokens from each origin to each target of every group, along their routes."""
    traffic = where.request.mesh.traffic
    loads: Loads = {}
    for chips, table in zip(where.lines, counts, strict=False):
        for origin, row in enumerate(table):
            for target, tokens in enumerate(row):
                route = traffic.routes.route(chips[origin], chips[target])
                for hop in pairwise(route):
                    loads[hop] = loads.get(hop, 0) + tokens * token_bytes
    traffic.counters.add(loads)
