"""Norms over a dim that is sharded over chips: the statistics are summed over them."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.errors import require
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.ccl.planning.plan_traffic import count_link_bytes
from ttmesh.ccl.planning.reduction_terms import reduce_group
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

STATISTICS_BYTES = 2048  # one tile of bfloat16 statistics per tile row is sent to every chip


@collective("ttnn.fused_rms_minimal")
def fused_rms_minimal(
    input_tensor: Tensor,
    cluster_axis: int,
    persistent_output_tensor: Tensor | None = None,
    num_links: int | None = None,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
    dtype: Any = None,
    memory_config: MemoryConfig | None = None,
    residual_input_tensor: Tensor | None = None,
    epsilon: float = 1e-12,
    weight: Tensor | None = None,
    stats: Tensor | None = None,
) -> Tensor:
    """RMS norm over the last dim of all chips' shards; with a residual, of the sum, which replaces the residual."""
    name = "ttnn.fused_rms_minimal"
    tensors = [t for t in (input_tensor, residual_input_tensor, weight) if t is not None]
    mesh = mesh_of(name, tensors)
    require(
        stats is not None,
        "fused_rms_minimal requires a pre-allocated stats tensor; passing stats=None is not supported. It backs an internal "
        "circular buffer",
        "a tensor for the statistics",
        "Allocate it and pass stats=.",
    )
    check_axis(mesh, cluster_axis)
    require(
        (memory_config or input_tensor.memory_config()).is_sharded(),
        "fused_rms_minimal requires a sharded output memory config (width-sharded in L1); an interleaved output memory "
        "config is not supported",
        "a config of shards by width",
        "Pass memory_config, or shard the input.",
    )
    options = {
        "axis": cluster_axis, "epsilon": epsilon, "residual": residual_input_tensor is not None,
        "weight": weight is not None, "memory_config": memory_config, "dtype": dtype,
        "topology": topology or Topology.Linear, "mode": check_common(mesh, None, num_links, subdevice_id),
    }  # fmt: skip
    outputs = [persistent_output_tensor, *([residual_input_tensor] if residual_input_tensor is not None else [])]
    results: list[Tensor] = run(name, _decide, tensors, options, outputs)
    return results[0]


def _decide(request: Request) -> Decision:
    groups, shape = find_groups(request, request["axis"]), request.tensor.shape
    n, epsilon, axes = groups.group_size, request["epsilon"], request.mesh.shape.dims()

    def compute(lanes: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        remaining = list(others)
        values = lanes.float()
        if request["residual"]:
            values = values + remaining.pop(0).float()
        squares = groups.lane_groups.split(values.square().sum(-1, keepdim=True))
        total = groups.lane_groups.merge(reduce_group(squares, n, "sum"))
        normed = values * torch.rsqrt(total / (n * shape[-1]) + epsilon)
        if remaining:
            scale = remaining[0].float()
            normed = normed * scale.reshape(*scale.shape[:axes], *[1] * (len(shape) - 1), shape[-1])
        return [normed, values] if request["residual"] else [normed]

    specs = [request.result_spec(shape)]
    if request["residual"]:
        specs.append(request.result_spec(shape, result=1, source=1))
    rows = -(-request.tensor.padded_shape[-2] // 32)
    size = STATISTICS_BYTES * rows * n
    plan = groups.plan("all_gather", size)
    loads = count_link_bytes(plan, size, groups.chip_ids, request.mesh.traffic.routes)
    return Decision(tuple(specs), compute, loads, request.tensor.tensor_topology(), single=False)
