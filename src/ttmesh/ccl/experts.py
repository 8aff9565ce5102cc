"""Tokens to the devices of their experts and back: all_to_all_dispatch and all_to_all_combine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ccl.arrangement import split_dim
from ttmesh.ccl.collective import Decision, Request, check_common, collective, mesh_of, require, run
from ttmesh.ccl.placed import Placed, check_axis, placed
from ttmesh.ccl.traffic import Loads
from ttmesh.fabric.config import Topology
from ttmesh.mesh.sub_devices import SubDeviceId
from ttmesh.tensor.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
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
    require(input_tensor.layout is Layout.ROW_MAJOR, "Input tensor must be in row major layout")
    require(expert_indices_tensor.layout is Layout.ROW_MAJOR, "Indices tensor must be in row major layout")
    require(input_tensor.dtype is DataType.BFLOAT16, "Input tensor must be bfloat16")
    require(expert_indices_tensor.dtype is DataType.UINT16, "Indices tensor must be uint16")
    require(
        output_concat_dim in (1, 2),
        f"Output concat dimension must be 1 or 2, got {output_concat_dim}. Output concat dimension is used to determine "
        "the dimension to concat the output tokens along.",
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
    require(input_tensor.layout is Layout.ROW_MAJOR, "Input tensor must be in row major layout")
    require(expert_metadata_tensor.layout is Layout.ROW_MAJOR, "Metadata tensor must be in row major layout")
    require(input_tensor.dtype is DataType.BFLOAT16, "Input tensor must be bfloat16")
    require(expert_metadata_tensor.dtype is DataType.UINT16, "Metadata tensor must be uint16")
    require(cluster_axis is not None, "Axis must be specified at the moment")
    require(
        output_shard_dim in (1, 2),
        f"Output shard dimension must be 1 or 2, got {output_shard_dim}. Output shard dimension is used to determine the "
        "dimension to shard the output tokens along.",
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
    where, dim = placed(request, request["axis"]), request["dim"]
    n, spec, chosen = where.members, request.tensor.spec, request.tensors[1].spec
    batch, _, seq, hidden = spec.shape
    whole = (batch * n, seq) if dim == 1 else (batch, seq * n)
    token_bytes = hidden * 2

    def compute(tokens: torch.Tensor, indices: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        every = _joined(members_of(where, tokens)[:, :, :, 0], dim)  # [groups, *whole, hidden]
        experts = _joined(members_of(where, indices)[:, :, :, 0], dim)  # [groups, *whole, k]
        if every.is_meta:
            blank = every.new_empty(every.shape[0], n, 1, *every.shape[1:])
            return [where.arrangement.spread(blank), where.arrangement.spread(experts[:, None, None])]
        owner = _owners(mapping)[experts.long()]  # [groups, *whole, k]: linear device ids
        devices = torch.tensor(where.arrangement.groups)
        wanted = (owner[:, None] == devices[: every.shape[0], :, None, None, None]).any(-1)  # [groups, n, *whole]
        placed_tokens = every[:, None] * wanted[..., None]
        _count(where, wanted, dim, token_bytes)
        return [
            where.arrangement.spread(placed_tokens[:, :, None]),
            where.arrangement.spread(experts[:, None, None]),
        ]

    specs = (
        request.result_spec((1, *whole, hidden)),
        request.result_spec((1, *whole, chosen.shape[-1]), result=1, source=1),
    )
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)


def _combine(request: Request) -> Decision:
    where, dim = placed(request, request["axis"]), request["dim"]
    n, spec = where.members, request.tensor.spec
    _, batch, seq, hidden = spec.shape
    k = request.tensors[1].spec.shape[-1]
    extent = batch if dim == 1 else seq
    require(
        extent % n == 0, f"{'Batch' if dim == 1 else 'Sequence length'} {extent} must be divisible by axis group {n}"
    )
    shape = (k, batch // n, seq, hidden) if dim == 1 else (k, batch, seq // n, hidden)
    devices = torch.tensor(where.arrangement.groups)

    def compute(contributions: torch.Tensor, metadata: torch.Tensor, mapping: torch.Tensor) -> list[torch.Tensor]:
        members = members_of(where, contributions)  # [groups, n, experts here, batch, seq, hidden]
        groups = members.shape[0]
        if members.is_meta:
            return [where.arrangement.spread(members.new_empty(groups, n, *shape))]
        experts = members_of(where, metadata)[:groups, 0, 0].long()  # [groups, batch, seq, k]
        owner, local = _owners(mapping), _local_places(mapping)
        device = owner[experts]
        match = device[..., None] == devices[:groups, None, None, None]  # [..., k, n]
        member, here = match.int().argmax(-1), match.any(-1)
        slot = torch.zeros_like(experts) if request["local_reduce"] else local[experts]
        if request["local_reduce"]:
            here = here & _first_on_device(experts, device)
        group = torch.arange(groups)[:, None, None, None]
        b, s = torch.arange(batch)[:, None, None], torch.arange(seq)[:, None]
        back = members[group, member, slot, b, s] * here[..., None]  # [groups, batch, seq, k, hidden]
        back = back.movedim(3, 1)  # [groups, k, batch, seq, hidden]
        parts = split_dim(back, dim - 4, n).movedim(dim + 1, 1)
        _count_back(where, member, here, dim, n, hidden * 2)
        return [where.arrangement.spread(parts)]

    filled = 1 if request.outputs else 2  # TT-NN fills an output of its own with zeros first
    return Decision((request.result_spec(shape),), compute, {}, request.tensor.tensor_topology(), programs=filled)


def members_of(where: Placed, lanes: torch.Tensor) -> torch.Tensor:
    """[groups, members, *local], every member there."""
    members = where.arrangement.gather(lanes)
    return members.expand(len(where.lines), where.members, *members.shape[2:])


def _joined(members: torch.Tensor, dim: int) -> torch.Tensor:
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
    n = where.members
    by_origin = split_dim(wanted, dim - 3, n).movedim(dim + 1, 1)
    send_counts(where, by_origin.flatten(3).sum(-1).tolist(), token_bytes)  # [groups, origin, target]


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
