"""Neighbours' edges: neighbor_pad_async and slice_reshard_async."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.errors import MeshError
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import Placed, check_axis, find_groups, normal_dim
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.plan_traffic import Loads, over_links, together
from ttmesh.ccl.planning.transfer_plan import Transfer, TransferPlan
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

MODES = ("zeros", "replicate")


@collective("ttnn.experimental.neighbor_pad_async")
def neighbor_pad_async(
    input_tensor: Tensor,
    dim: Sequence[int],
    padding_left: Sequence[int],
    padding_right: Sequence[int],
    padding_mode: str,
    cluster_axis: Sequence[int],
    num_links: Sequence[int] | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    persistent_output_buffer: Tensor | None = None,
    logical_h: int = 0,
    t_front_pad: int = 0,
) -> Tensor:
    """Every part with the edges of its neighbours along each dim; outside are zeros or copies of the edge."""
    name = "ttnn.experimental.neighbor_pad_async"
    mesh = mesh_of(name, [input_tensor])
    if padding_mode not in MODES:
        raise MeshError(f"padding_mode {padding_mode!r}", expected=f"one of {list(MODES)}", fix="Choose one of them.")
    if logical_h or t_front_pad:
        raise MeshError(
            f"neighbor_pad_async with logical_h={logical_h}, t_front_pad={t_front_pad} is not emulated",
            expected="0 for both",
            fix="Mask and pad the tensor with other operations.",
        )
    result = input_tensor
    for step, (at, left, right, axis) in enumerate(zip(dim, padding_left, padding_right, cluster_axis, strict=True)):
        check_axis(mesh, axis)
        last = step == len(dim) - 1
        options = {
            "axis": axis, "dim": normal_dim(input_tensor, at, f"dim {at} is not a dim of the input"), "left": left,
            "right": right, "padding_mode": padding_mode, "memory_config": memory_config, "topology": topology,
            "mode": check_common(mesh, None, num_links[step] if num_links else None),
        }  # fmt: skip
        output = [persistent_output_buffer] if last and persistent_output_buffer is not None else []
        result = run(name, _neighbor_pad, [result], options, output)
    return result


@collective("ttnn.experimental.slice_reshard_async")
def slice_reshard_async(
    input_tensor: Tensor,
    dim: int,
    output_dim_offset: int,
    output_dim_shape: int,
    cluster_axis: int,
    num_links: int = 1,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
) -> Tensor:
    """A slice of the whole tensor along a dim, cut again into equal parts; beyond its end are zeros."""
    name = "ttnn.experimental.slice_reshard_async"
    mesh = mesh_of(name, [input_tensor])
    check_axis(mesh, cluster_axis)
    options = {
        "axis": cluster_axis, "dim": normal_dim(input_tensor, dim, f"dim {dim} is not a dim of the input"),
        "offset": output_dim_offset, "length": output_dim_shape, "memory_config": memory_config, "topology": topology,
        "mode": check_common(mesh, None, num_links),
    }  # fmt: skip
    result: Tensor = run(name, _slice_reshard, [input_tensor], options)
    return result


def _neighbor_pad(request: Request) -> Decision:
    where, dim, spec = find_groups(request, request["axis"]), request["dim"], request.tensor.spec
    left, right = request["left"], request["right"]
    shape = [*spec.shape]
    extent = shape[dim]
    shape[dim] += left + right
    zeros = request["padding_mode"] == "zeros"

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (with_edges(where, lanes, dim, left, right, zeros=zeros),)

    loads = edge_loads(where, spec.packed_size_bytes // extent, left, right)
    return Decision((request.result_spec(shape),), compute, loads, request.tensor.tensor_topology())


def with_edges(where: Placed, lanes: torch.Tensor, dim: int, left: int, right: int, *, zeros: bool) -> torch.Tensor:
    """Every member's part between its neighbours' edges along a dim; outside are zeros or copies of its own edge."""
    members = where.arrangement.gather(lanes)
    every = members.expand(members.shape[0], where.members, *members.shape[2:])
    at, extent = dim + 2, members.shape[dim + 2]
    before = torch.roll(every.narrow(at, extent - left, left), 1, 1) if left else every.narrow(at, 0, 0)
    after = torch.roll(every.narrow(at, 0, right), -1, 1)
    if left:
        before[:, 0] = 0 if zeros else every[:, 0].narrow(at - 1, 0, 1)
    if right:
        after[:, -1] = 0 if zeros else every[:, -1].narrow(at - 1, extent - 1, 1)
    return where.arrangement.spread(torch.cat([before, every, after], at))


def edge_loads(where: Placed, row_bytes: int, left: int, right: int) -> Loads:
    """What the edges take on the links: `left` rows go forward, `right` rows backward."""
    n, routes = where.members, where.request.mesh.traffic.routes
    forward = TransferPlan(n, 1, (tuple(Transfer(i, i + 1, 0) for i in range(n - 1)),))
    backward = TransferPlan(n, 1, (tuple(Transfer(i + 1, i, 0) for i in range(n - 1)),))
    loads = together(
        [over_links(plan, rows * row_bytes, where.lines, routes) for plan, rows in ((forward, left), (backward, right))]
    )
    return {hop: size for hop, size in loads.items() if size}


def _slice_reshard(request: Request) -> Decision:
    where, dim, spec = find_groups(request, request["axis"]), request["dim"], request.tensor.spec
    n, offset, length = where.members, request["offset"], request["length"]
    extent = spec.shape[dim]
    if length % n:
        raise MeshError(
            f"output_dim_shape {length} over {n} devices", expected=f"a multiple of {n}", fix="Change output_dim_shape."
        )
    part = length // n
    shape = [*spec.shape]
    shape[dim] = part

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        members = where.arrangement.gather(lanes)
        every = members.expand(members.shape[0], n, *members.shape[2:])
        at = dim + 1
        whole = every.movedim(1, at).flatten(at, at + 1)  # [groups, *local with the whole dim]
        cut = whole.narrow(at, offset, min(length, n * extent - offset))
        missing = length - cut.shape[at]
        if missing:
            fill = list(cut.shape)
            fill[at] = missing
            cut = torch.cat([cut, cut.new_zeros(fill)], at)
        return (where.arrangement.spread(split_dim(cut, dim - len(shape), n).movedim(dim - len(shape) - 1, 1)),)

    row = spec.packed_size_bytes // extent
    moved: dict[tuple[int, int], int] = {}
    for i in range(length):
        source = (offset + i) // extent
        if source < n and source != i // part:
            moved[source, i // part] = moved.get((source, i // part), 0) + row
    loads: dict[tuple[int, int], int] = {}
    for (source, target), size in moved.items():
        plan = TransferPlan(n, 1, ((Transfer(source, target, 0),),))
        for hop, share in over_links(plan, size, where.lines, request.mesh.traffic.routes).items():
            loads[hop] = loads.get(hop, 0) + share
    return Decision((request.result_spec(shape),), compute, loads, request.tensor.tensor_topology())
