"""reduce_to_root: merges the partial attention results of four chips on one of them."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import find_groups
from ttmesh.ccl.planning.plan_traffic import add_loads, count_link_bytes
from ttmesh.ccl.planning.transfer_plan import Transfer, TransferPlan
from ttmesh.tensor.tensor import Tensor

DEVICES = 4
State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # values, running sums, running maxima


@collective("ttnn.reduce_to_root")
def reduce_to_root(
    input_tensor_l: Tensor,
    input_tensor_s: Tensor,
    input_tensor_m: Tensor,
    root_coord: MeshCoordinate,
    scale_fp32: float = 1.0,
    output_tensor_l: Tensor | None = None,
    output_tensor_s: Tensor | None = None,
    output_tensor_m: Tensor | None = None,
    input_mux_cores: list[Any] | None = None,
) -> list[Tensor]:
    """Values, sums and maxima of partial softmaxes, merged along a line of four; only the root's results are defined."""
    tensors = [input_tensor_l, input_tensor_s, input_tensor_m]
    mesh_of("ttnn.reduce_to_root", tensors)
    layouts = [tensor.layout for tensor in tensors]
    require(
        all(layout is Layout.TILE for layout in layouts),
        f"ReduceToRoot requires TILE layout for all three input tensors, got l: {layouts[0]}, s: {layouts[1]}, m: "
        f"{layouts[2]}",
        "TILE_LAYOUT",
        "Convert them with ttnn.to_layout.",
    )
    require(
        all(tensor.memory_config().is_sharded() for tensor in tensors),
        "ReduceToRoot requires all three input tensors to be sharded",
        "sharded tensors",
        "Shard them with ttnn.to_memory_config.",
    )
    require(
        input_mux_cores is None or len(input_mux_cores) == DEVICES,
        f"Input mux cores size must be 4, got {len(input_mux_cores or [])}",
        f"{DEVICES} cores",
        "Pass four cores, or leave input_mux_cores out.",
    )
    options = {"root": tuple(root_coord), "scale": scale_fp32}
    outputs = [output_tensor_l, output_tensor_s, output_tensor_m]
    results: list[Tensor] = run("ttnn.reduce_to_root", _decide, tensors, options, outputs)
    return results


def _decide(request: Request) -> Decision:
    groups, root_coord = find_groups(request, None), request["root"]
    require(
        groups.group_size == DEVICES,
        f"reduce_to_root runs on {DEVICES} devices in a line, got {groups.group_size}",
        f"{DEVICES} devices",
        "Open a mesh, or a submesh, of that length.",
    )
    root = request.tensor.coords().index(root_coord)
    require(
        root in (1, 2),
        "Root device must have both forward and backward neighbors in reduce_to_root op",
        "one of the two inner devices",
        "Choose the second or third device as root_coord.",
    )
    other = DEVICES - 1 - root  # the other inner device merges its outer neighbour's state first
    near_end, far_end = (0, 3) if root == 1 else (3, 0)
    scale = request["scale"]
    width = _find_shard_widths(request)

    def compute(*lanes: torch.Tensor) -> list[torch.Tensor]:
        by_group = [groups.lane_groups.split(tensor).float() for tensor in lanes]
        expanded = [tensor.expand(tensor.shape[0], DEVICES, *tensor.shape[2:]) for tensor in by_group]
        states: list[State] = [(expanded[0][:, i], expanded[1][:, i], expanded[2][:, i]) for i in range(DEVICES)]
        root_state = _merge_states(states[near_end], states[root], scale, width)
        other_state = _merge_states(states[far_end], states[other], scale, width)
        values, sums, maxima = _merge_states(other_state, root_state, scale, width)
        return [
            groups.lane_groups.merge(tensor[:, None])
            for tensor in (values / _expand_factors(sums, width), sums, maxima)
        ]

    plan = TransferPlan(
        DEVICES,
        1,
        ((Transfer(near_end, root, 0, True), Transfer(far_end, other, 0, True)), (Transfer(other, root, 0, True),)),
    )
    routes = request.mesh.traffic.routes
    loads = add_loads(
        [count_link_bytes(plan, t.spec.packed_size_bytes, groups.chip_ids, routes) for t in request.tensors]
    )
    specs = tuple(request.result_spec(t.shape, result=i, source=i) for i, t in enumerate(request.tensors))
    return Decision(
        specs, compute, loads, request.tensor.tensor_topology(), single=False, changed=frozenset({root_coord})
    )


def _find_shard_widths(request: Request) -> tuple[int, int]:
    """The widths of the shards of values and of sums; the first column of a core's sums applies to its values."""
    shards = [tensor.memory_config().shard_spec for tensor in request.tensors[:2]]
    assert shards[0] is not None, "reduce_to_root checks that the values are sharded"
    assert shards[1] is not None, "reduce_to_root checks that the sums are sharded"
    return shards[0].shape[1], shards[1].shape[1]


def _merge_states(a: State, b: State, scale: float, width: tuple[int, int]) -> State:
    maxima = torch.maximum(a[2], b[2])
    scale_a, scale_b = torch.exp((a[2] - maxima) * scale), torch.exp((b[2] - maxima) * scale)
    values = a[0] * _expand_factors(scale_a, width) + b[0] * _expand_factors(scale_b, width)
    return values, a[1] * scale_a + b[1] * scale_b, maxima


def _expand_factors(factors: torch.Tensor, width: tuple[int, int]) -> torch.Tensor:
    """Repeat the first column of every core's factors for each of its value columns."""
    return factors[..., :: width[1]].repeat_interleave(width[0], -1)
