"""reduce_to_root: partial attention results of four chips merged on one of them."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import find_groups
from ttmesh.ccl.planning.plan_traffic import over_links, together
from ttmesh.ccl.planning.transfer_plan import Transfer, TransferPlan
from ttmesh.tensor.tensor import Tensor

MEMBERS = 4
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
    """Values, sums and maxima of softmax parts merged along a line of four; only the root's results are defined."""
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
        input_mux_cores is None or len(input_mux_cores) == MEMBERS,
        f"Input mux cores size must be 4, got {len(input_mux_cores or [])}",
        f"{MEMBERS} cores",
        "Name as many cores, or leave input_mux_cores out.",
    )
    options = {"root": tuple(root_coord), "scale": scale_fp32}
    outputs = [output_tensor_l, output_tensor_s, output_tensor_m]
    results: list[Tensor] = run("ttnn.reduce_to_root", _reduce_to_root, tensors, options, outputs)
    return results


def _reduce_to_root(request: Request) -> Decision:
    where, root_coord = find_groups(request, None), request["root"]
    require(
        where.members == MEMBERS,
        f"reduce_to_root runs on {MEMBERS} devices in a line, got {where.members}",
        f"{MEMBERS} devices",
        "Open a mesh, or a submesh, of that length.",
    )
    root = request.tensor.coords().index(root_coord)
    require(
        root in (1, 2),
        "Root device must have both forward and backward neighbors in reduce_to_root op",
        "one of the two inner devices",
        "Choose the second or third device as root_coord.",
    )
    other = MEMBERS - 1 - root  # the inner device on the far side collects first
    near, far = (0, 3) if root == 1 else (3, 0)
    scale = request["scale"]
    width = _columns_per_sum(request)

    def compute(*lanes: torch.Tensor) -> list[torch.Tensor]:
        members = [where.arrangement.gather(part).float() for part in lanes]
        every = [part.expand(part.shape[0], MEMBERS, *part.shape[2:]) for part in members]
        states: list[State] = [(every[0][:, i], every[1][:, i], every[2][:, i]) for i in range(MEMBERS)]
        here = _merge_states(states[near], states[root], scale, width)
        there = _merge_states(states[far], states[other], scale, width)
        values, sums, maxima = _merge_states(there, here, scale, width)
        return [where.arrangement.spread(part[:, None]) for part in (values / _wide(sums, width), sums, maxima)]

    plan = TransferPlan(
        MEMBERS, 1, ((Transfer(near, root, 0, True), Transfer(far, other, 0, True)), (Transfer(other, root, 0, True),))
    )
    routes = request.mesh.traffic.routes
    loads = together([over_links(plan, t.spec.packed_size_bytes, where.lines, routes) for t in request.tensors])
    specs = tuple(request.result_spec(t.shape, result=i, source=i) for i, t in enumerate(request.tensors))
    return Decision(
        specs, compute, loads, request.tensor.tensor_topology(), single=False, changed=frozenset({root_coord})
    )


def _columns_per_sum(request: Request) -> tuple[int, int]:
    """How wide the shards of values and of sums are: the first column of a core's sums serves its values."""
    shards = [tensor.memory_config().shard_spec for tensor in request.tensors[:2]]
    assert shards[0] is not None, "checked: the values are sharded"
    assert shards[1] is not None, "checked: the sums are sharded"
    return shards[0].shape[1], shards[1].shape[1]


def _merge_states(a: State, b: State, scale: float, width: tuple[int, int]) -> State:
    maxima = torch.maximum(a[2], b[2])
    grow_a, grow_b = torch.exp((a[2] - maxima) * scale), torch.exp((b[2] - maxima) * scale)
    values = a[0] * _wide(grow_a, width) + b[0] * _wide(grow_b, width)
    return values, a[1] * grow_a + b[1] * grow_b, maxima


def _wide(factors: torch.Tensor, width: tuple[int, int]) -> torch.Tensor:
    """The first column of every core's factors for each of its value columns."""
    return factors[..., :: width[1]].repeat_interleave(width[0], -1)
