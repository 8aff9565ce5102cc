"""moe_expert_token_remap and moe_routing_remap: the slice of a routing table that concerns one chip."""

from __future__ import annotations

from math import prod

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import find_groups
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
    """Scores of each chip's experts for the tokens that chose them, and which blocks of tokens use an expert."""
    tensors = [topk_tensor, expert_mapping_tensor, expert_metadata_tensor]
    mesh_of("ttnn.moe_expert_token_remap", tensors)
    tokens = prod(expert_metadata_tensor.shape[1:3])
    _check_token_tensors(topk_tensor, expert_mapping_tensor, expert_metadata_tensor)
    require(
        reduction_size > 0,
        f"reduction_size must be positive, got {reduction_size}",
        "1 or more",
        "Change reduction_size.",
    )
    require(
        tokens % reduction_size == 0,
        f"batch * seq ({tokens}) must be divisible by reduction_size ({reduction_size}); the writer emits one reduced page "
        "for as many metadata pages",
        f"a divisor of {tokens}",
        "Change reduction_size.",
    )
    options = {"size": reduction_size, "memory_config": memory_config or DRAM_MEMORY_CONFIG, "mode": "local"}
    outputs = [optional_output_mapping_tensor, optional_output_reduced_tensor]
    results: list[Tensor] = run("ttnn.moe_expert_token_remap", _decide_token_remap, tensors, options, outputs)
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
    _check_weights(routing_weights_tensor, non_zero_weight_size, expert_parallel_size)
    require(
        cluster_axis in (0, 1),
        "Invalid cluster axis, should be 0 (rows), or 1 (cols)",
        "0 or 1",
        "Choose an axis of the mesh.",
    )
    if expert_parallel_size != mesh.shape[cluster_axis]:
        raise ShapeError(
            f"expert parallel size ({expert_parallel_size}) should be the same as size of cluster axis {cluster_axis} "
            f"({mesh.shape[cluster_axis]})",
            expected=f"{mesh.shape[cluster_axis]}, one group of experts per device of the axis",
            fix="Change expert_parallel_size or cluster_axis.",
        )
    options = {
        "axis": cluster_axis, "weights_per_chip": non_zero_weight_size // expert_parallel_size,
        "memory_config": memory_config, "mode": "local",
    }  # fmt: skip
    outputs = [optional_output_tensor] if optional_output_tensor is not None else []
    result: Tensor = run("ttnn.moe_routing_remap", _decide_routing_remap, [routing_weights_tensor], options, outputs)
    return result


def _check_token_tensors(topk: Tensor, mapping: Tensor, metadata: Tensor) -> None:
    """Raise for layouts and formats that moe_expert_token_remap does not take, in TT-NN's order."""
    rows, numbers = "must be in row major layout", "must be uint16"
    for holds, wrong, expected in (
        (topk.layout is Layout.ROW_MAJOR, f"topk tensor {rows}", "ROW_MAJOR_LAYOUT"),
        (metadata.layout is Layout.ROW_MAJOR, f"Metadata tensor {rows}", "ROW_MAJOR_LAYOUT"),
        (metadata.dtype is DataType.UINT16, f"Metadata tensor {numbers}", "uint16"),
        (mapping.dtype is DataType.UINT16, f"Mapping tensor {numbers}", "uint16"),
        (mapping.layout is Layout.ROW_MAJOR, f"Mapping tensor {rows}", "ROW_MAJOR_LAYOUT"),
    ):
        require(holds, wrong, expected, "Convert it with ttnn.to_layout or ttnn.typecast.")


def _check_weights(weights: Tensor, non_zero: int, expert_parallel_size: int) -> None:
    """Raise for weights that the chips of an axis cannot share evenly, in TT-NN's order."""
    require(
        weights.layout is Layout.ROW_MAJOR,
        "input tensor expected to be row major",
        "ROW_MAJOR_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )
    shape = tuple(weights.shape)
    require(
        len(shape) == 2 and shape[0] == 1,
        "expected input shape [1,E]",
        "[1, experts]",
        "Reshape it to one row of experts.",
    )
    few = "Choose fewer experts, one or more for every device."
    require(non_zero > 0, "Number of non zero weights must be non-zero", "1 or more", few)
    require(
        non_zero <= shape[1],
        "Number of non Zero weights must be less than or equal to weights",
        f"at most {shape[1]}",
        few,
    )
    require(expert_parallel_size > 0, "expert parallel size must be non-zero", "1 or more", few)
    for text, number in (
        (f"Number of experts ({shape[1]}) must be evenly divisible by cluster ({expert_parallel_size})", shape[1]),
        (
            f"Number of non zero weights ({non_zero}) must be evenly divisible by expert parallel size "
            f"({expert_parallel_size})",
            non_zero,
        ),
    ):
        if number % expert_parallel_size:
            raise ShapeError(
                text,
                expected=f"a multiple of {expert_parallel_size}",
                fix="Choose the same number of experts for every device.",
            )


def _decide_token_remap(request: Request) -> Decision:
    _, batch, seq, experts = request.tensor.shape
    devices = request.tensors[1].shape[-1]
    experts_per_device, mesh, size = experts // devices, request.mesh.shape.to_tuple(), request["size"]
    blocks = -(-batch * seq // size)

    def compute(scores: torch.Tensor, mapping: torch.Tensor, metadata: torch.Tensor) -> list[torch.Tensor]:
        table = mapping.reshape(-1, experts, devices)[0]
        axes = len(mesh)
        if scores.is_meta:
            local_scores = scores.new_empty(*mesh, 1, batch, seq, experts_per_device)
            return [local_scores, local_scores.new_empty(*mesh, 1, 1, blocks, experts_per_device)]
        order = (
            table.argmax(-1).argsort(stable=True).reshape(devices, experts_per_device)
        )  # each device's experts, ascending
        mesh_dims = [max(a, b) for a, b in zip(scores.shape[:axes], metadata.shape[:axes], strict=True)]
        is_chosen = torch.zeros(*mesh_dims, 1, batch, seq, experts, dtype=torch.bool, device=scores.device)
        is_chosen.scatter_(-1, metadata.long().expand(*mesh_dims, 1, batch, seq, metadata.shape[-1]), True)
        chosen_scores = (scores * is_chosen).expand(*mesh, 1, batch, seq, experts)
        local_scores = chosen_scores.gather(
            -1, order.reshape(*mesh, 1, 1, 1, experts_per_device).expand(*mesh, 1, batch, seq, experts_per_device)
        )
        is_used = (local_scores != 0).reshape(*mesh, 1, 1, batch * seq, experts_per_device)
        is_used = torch.nn.functional.pad(is_used, (0, 0, 0, blocks * size - batch * seq))
        return [local_scores, is_used.reshape(*mesh, 1, 1, blocks, size, experts_per_device).any(-2).int()]

    reduced = request.outputs[1]
    specs = (
        request.result_spec((1, batch, seq, experts_per_device)),
        TensorSpec(
            (1, 1, blocks, experts_per_device),
            DataType.UINT16,
            Layout.ROW_MAJOR,
            memory_config=request["memory_config"],
        )
        if reduced is None
        else reduced.spec,
    )
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)


def _decide_routing_remap(request: Request) -> Decision:
    groups, weights_per_chip = find_groups(request, request["axis"]), request["weights_per_chip"]

    def compute(weights: torch.Tensor) -> list[torch.Tensor]:
        group_lanes = groups.lane_groups.split(weights)
        expanded = group_lanes.expand(group_lanes.shape[0], groups.group_size, *group_lanes.shape[2:])
        group = ((expanded != 0).int().cumsum(-1) - 1) // weights_per_chip
        chip_index = torch.arange(groups.group_size, device=expanded.device).reshape(-1, *[1] * (expanded.dim() - 2))
        return [groups.lane_groups.merge(expanded * (group == chip_index))]

    return Decision((request.result_spec(request.tensor.shape),), compute, {}, request.tensor.tensor_topology())
