"""What of a routing table concerns one chip: moe_expert_token_remap and moe_routing_remap."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


@collective("ttnn.moe_expert_token_remap")
def moe_expert_token_remap(
    topk_tensor: Tensor,
    expert_mapping_tensor: Tensor,
    expert_metadata_tensor: Tensor,
    memory_config: MemoryConfig | None = None,
    optional_output_mapping_tensor: Tensor | None = None,
    optional_output_reduced_tensor: Tensor | None = None,
    reduction_size: int = 16,
) -> list[Tensor]:
    """Scores of each chip's own experts where a token chose them, and which runs of tokens use an expert at all."""
    tensors = [topk_tensor, expert_mapping_tensor, expert_metadata_tensor]
    mesh_of("ttnn.moe_expert_token_remap", tensors)
    options = {"size": reduction_size, "memory_config": memory_config or DRAM_MEMORY_CONFIG, "mode": "local"}
    outputs = [optional_output_mapping_tensor, optional_output_reduced_tensor]
    results: list[Tensor] = run("ttnn.moe_expert_token_remap", _token_remap, tensors, options, outputs)
    return results


@collective("ttnn.moe_routing_remap")
def moe_routing_remap(
    routing_weights_tensor: Tensor,
    non_zero_weight_size: int,
    expert_parallel_size: int,
    cluster_axis: int,
    memory_config: MemoryConfig | None = None,
    optional_output_tensor: Tensor | None = None,
) -> Tensor:
    """Chip i of the axis keeps the i-th group of non-zero weights."""
    mesh = mesh_of("ttnn.moe_routing_remap", [routing_weights_tensor])
    check_axis(mesh, cluster_axis)
    for what, number in (
        ("Number of non zero weights", non_zero_weight_size),
        ("expert parallel size", expert_parallel_size),
    ):
        if number == 0:
            raise ShapeError(f"{what} must be non-zero", expected="1 or more", fix="Pass the number of experts.")
    if expert_parallel_size != mesh.shape[cluster_axis]:
        raise ShapeError(
            f"expert parallel size ({expert_parallel_size}) should be the same as size of cluster axis {cluster_axis} "
            f"({mesh.shape[cluster_axis]})",
            expected="one group of experts per device of the axis",
            fix="Change expert_parallel_size or cluster_axis.",
        )
    if non_zero_weight_size % expert_parallel_size:
        raise ShapeError(
            f"Number of non zero weights ({non_zero_weight_size}) must be evenly divisible by expert parallel size "
            f"({expert_parallel_size})",
            expected=f"a multiple of {expert_parallel_size}",
            fix="Choose as many experts for every device.",
        )
    options = {
        "axis": cluster_axis, "each": non_zero_weight_size // expert_parallel_size, "memory_config": memory_config,
        "mode": "local",
    }  # fmt: skip
    outputs = [optional_output_tensor] if optional_output_tensor is not None else []
    result: Tensor = run("ttnn.moe_routing_remap", _routing_remap, [routing_weights_tensor], options, outputs)
    return result


def _token_remap(request: Request) -> Decision:
    _, batch, seq, experts = request.tensor.shape
    devices = request.tensors[1].shape[-1]
    here, mesh, size = experts // devices, request.mesh.shape.to_tuple(), request["size"]
    runs = -(-batch * seq // size)

    def compute(scores: torch.Tensor, mapping: torch.Tensor, metadata: torch.Tensor) -> list[torch.Tensor]:
        table = mapping.reshape(-1, experts, devices)[0]
        axes = len(mesh)
        if scores.is_meta:
            own = scores.new_empty(*mesh, 1, batch, seq, here)
            return [own, own.new_empty(*mesh, 1, 1, runs, here)]
        order = table.argmax(-1).argsort(stable=True).reshape(devices, here)  # each device's experts, ascending
        lead = [max(a, b) for a, b in zip(scores.shape[:axes], metadata.shape[:axes], strict=True)]
        chosen = torch.zeros(*lead, 1, batch, seq, experts, dtype=torch.bool)
        chosen.scatter_(-1, metadata.long().expand(*lead, 1, batch, seq, metadata.shape[-1]), True)
        kept = (scores * chosen).expand(*mesh, 1, batch, seq, experts)
        own = kept.gather(-1, order.reshape(*mesh, 1, 1, 1, here).expand(*mesh, 1, batch, seq, here))
        used = (own != 0).reshape(*mesh, 1, 1, batch * seq, here)
        used = torch.nn.functional.pad(used, (0, 0, 0, runs * size - batch * seq))
        return [own, used.reshape(*mesh, 1, 1, runs, size, here).any(-2).int()]

    reduced = request.outputs[1]
    specs = (
        request.result_spec((1, batch, seq, here)),
        TensorSpec((1, 1, runs, here), DataType.UINT16, Layout.ROW_MAJOR, memory_config=request["memory_config"])
        if reduced is None
        else reduced.spec,
    )
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)


def _routing_remap(request: Request) -> Decision:
    where, each = find_groups(request, request["axis"]), request["each"]

    def compute(weights: torch.Tensor) -> list[torch.Tensor]:
        members = where.arrangement.gather(weights)
        every = members.expand(members.shape[0], where.members, *members.shape[2:])
        group = ((every != 0).int().cumsum(-1) - 1) // each
        own = torch.arange(where.members, device=every.device).reshape(-1, *[1] * (every.dim() - 2))
        return [where.arrangement.spread(every * (group == own))]

    return Decision((request.result_spec(request.tensor.shape),), compute, {}, request.tensor.tensor_topology())
