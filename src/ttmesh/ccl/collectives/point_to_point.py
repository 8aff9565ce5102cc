"""point_to_point: one device's part on another."""

from __future__ import annotations

from itertools import pairwise

import torch

from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.plan_traffic import over_host, together
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.distribution.composers import lane_at
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


@collective("ttnn.point_to_point", direct=True)
def point_to_point(
    input_tensor: Tensor,
    sender_coord: MeshCoordinate,
    receiver_coord: MeshCoordinate,
    output_tensor: Tensor | None = None,
    topology: Topology | None = None,
    mode: str | None = None,
) -> Tensor:
    """The sender's part on the receiver; what other devices of the result hold is not defined."""
    mesh = mesh_of("ttnn.point_to_point", [input_tensor])
    # A device that sends to itself copies: that takes no fabric.
    chosen, stays = check_common(mesh, mode, None), sender_coord == receiver_coord
    options = {
        "sender": tuple(sender_coord), "receiver": tuple(receiver_coord), "topology": topology,
        "mode": "local" if stays and chosen == "fabric" else chosen,
    }  # fmt: skip
    outputs = [] if output_tensor is None else [output_tensor]
    if stays and output_tensor is not None and output_tensor.buffer is input_tensor.buffer:
        _point_to_point(Request("ttnn.point_to_point", mesh, (input_tensor,), tuple(outputs), options))
        return output_tensor
    result: Tensor = run("ttnn.point_to_point", _point_to_point, [input_tensor], options, outputs)
    return result


def p2p_compute_intermediate_tensor_spec(
    input_tensor: Tensor, sender_coord: MeshCoordinate, receiver_coord: MeshCoordinate, topology: Topology
) -> TensorSpec:
    """The spec of a staging buffer for point_to_point: nothing is staged here, the input's will do for any pair."""
    return input_tensor.spec


def _point_to_point(request: Request) -> Decision:
    tensor, mesh = request.tensor, request.mesh
    sender, receiver = request["sender"], request["receiver"]
    if tensor.memory_config().is_sharded():
        raise MeshError(
            "Point to point does not yet support sharded configs",
            expected="an interleaved tensor",
            fix="Convert it with to_memory_config() first.",
        )
    for role, coord in (("sender", sender), ("receiver", receiver)):
        if not (len(coord) == mesh.shape.dims() and all(0 <= c < n for c, n in zip(coord, mesh.shape, strict=True))):
            raise MeshError(
                f"Mesh device must contain {role} coordinate device",
                expected=f"a coordinate in {mesh.shape!r}",
                fix=f"Change {role}_coord.",
            )
        if role == "sender" and coord not in tensor.coords():
            raise MeshError(
                f"Tensor not present on coordinate: {MeshCoordinate(coord)!r}",
                expected=f"one of {tensor.coords()}",
                fix="Send from a device that holds the tensor.",
            )
    apart = sum(a != b for a, b in zip(sender, receiver, strict=True))
    if apart > 1 and not request.over_host and not is_2d(get_fabric_config()):
        raise MeshError(
            f"Routing coordinates {MeshCoordinate(sender)!r} and {MeshCoordinate(receiver)!r} invalid for 1D fabric",
            expected="coordinates in one row or column, or a 2D fabric",
            fix="Send in two steps, or configure FABRIC_2D.",
        )
    size = tensor.spec.packed_size_bytes
    chips = [mesh.chip_at(MeshCoordinate(coord)) for coord in (sender, receiver)]
    loads = {}
    if chips[0] != chips[1]:
        route = mesh.traffic.routes.route(*chips)
        hops = dict.fromkeys(pairwise(route), size)
        loads = over_host([chips], up=[size, 0], down=[0, size]) if request.over_host else together([hops])
    axes, part = mesh.shape.dims(), mesh.rank_block

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (lane_at(lanes, sender).reshape(*[1] * axes, *lanes.shape[axes:]),)

    def sent(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert part is not None, "asked for only then"
        own = lane_at(lanes, part.to_local(sender)) if part.has_chip(sender) else torch.empty_like(lanes[(0,) * axes])
        return (part.send_lane(own, sender, receiver).reshape(*[1] * axes, *own.shape),)

    return Decision(
        (request.result_spec(tensor.shape),),
        compute,
        loads,
        tensor.tensor_topology(),
        changed=frozenset({receiver}),
        over_ranks=None if part is None or part.find_common_axis(sender, receiver) is None else sent,
    )
