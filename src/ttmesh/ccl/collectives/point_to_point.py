"""point_to_point: sends one device's shard to another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.dtypes import BLOCK_FLOATS
from ttmesh.base.errors import MeshError, require
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.collectives.collective_semaphores import keep_semaphores
from ttmesh.ccl.collectives.collective_stages import packet_spec
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, print_spec, run
from ttmesh.ccl.planning.plan_traffic import add_loads, count_host_bytes
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.plan_keys import key_of
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
    """The sender's shard on the receiver; the result's values on other devices are undefined."""
    mesh = mesh_of("ttnn.point_to_point", [input_tensor])
    # A device that sends to itself copies, which needs no fabric.
    checked_mode, same_device = check_common(mesh, mode, None), sender_coord == receiver_coord
    options = {
        "sender": tuple(sender_coord), "receiver": tuple(receiver_coord), "topology": topology,
        "mode": "local" if same_device and checked_mode == "fabric" else checked_mode,
    }  # fmt: skip
    outputs = [] if output_tensor is None else [output_tensor]
    if same_device and output_tensor is not None and output_tensor.buffer.root is input_tensor.buffer.root:
        _decide(Request("ttnn.point_to_point", mesh, (input_tensor,), tuple(outputs), options))
        return output_tensor
    result: Tensor = run("ttnn.point_to_point", _decide, [input_tensor], options, outputs)
    return result


@name_wrong_types
def p2p_compute_intermediate_tensor_spec(
    input_tensor: Tensor, sender_coord: MeshCoordinate, receiver_coord: MeshCoordinate, topology: Topology
) -> TensorSpec:
    """The spec of a staging buffer for point_to_point; ttmesh does not use one, so it is the input's."""
    return input_tensor.spec


def _decide(request: Request) -> Decision:
    tensor, mesh = request.tensor, request.mesh
    sender, receiver = request["sender"], request["receiver"]
    _check_packets(request)
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
    for output in request.outputs:
        if output is not None:
            require(
                output.spec == tensor.spec,
                f"Optional sparse output token tensor spec {print_spec(output.spec)} does not match computed output spec "
                f"{print_spec(tensor.spec)}",
                f"{tensor.spec!r}",
                "Allocate it with the input's spec.",
            )
    if tensor.spec.page_size_bytes % 16 and not request.over_host:
        raise MeshError(
            "Tensor page size must be 16 byte aligned",
            expected=f"pages of a multiple of 16 bytes, not {tensor.spec.page_size_bytes}",
            fix="Pad the rows, or use tiles.",
        )
    differing_axes = sum(a != b for a, b in zip(sender, receiver, strict=True))
    if differing_axes > 1 and not request.over_host and not is_2d(get_fabric_config()):
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
        loads = count_host_bytes([chips], up=[size, 0], down=[0, size]) if request.over_host else add_loads([hops])
    axes, rank_block = mesh.shape.dims(), mesh.rank_block

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return (lane_at(lanes, sender).reshape(*[1] * axes, *lanes.shape[axes:]),)

    def compute_on_rank(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert rank_block is not None, "used only if ranks share the axis"
        lane = (
            lane_at(lanes, rank_block.to_local(sender))
            if rank_block.has_chip(sender)
            else torch.empty_like(lanes[(0,) * axes])
        )
        return (rank_block.send_lane(lane, sender, receiver).reshape(*[1] * axes, *lane.shape),)

    return Decision(
        (request.result_spec(tensor.shape),),
        compute,
        loads,
        tensor.tensor_topology(),
        changed=frozenset({receiver}),
        compute_on_rank=None
        if rank_block is None or rank_block.find_common_axis(sender, receiver) is None
        else compute_on_rank,
        stages=_stages(request, request.result_spec(tensor.shape)),
    )


def _check_packets(request: Request) -> None:
    """Raise where no tensor of packets can be made; a device that sends to itself needs none."""
    if request.over_host:
        return
    spec = request.tensor.spec
    if request["sender"] == request["receiver"]:
        spec.with_shape((1, 1))
        return
    if spec.dtype in BLOCK_FLOATS:
        raise MeshError(
            "datum for bfp2, bfp4, bfp8 is invalid",
            expected="a format with a size per element",
            fix="Convert it with ttnn.typecast first.",
        )
    packet_spec(spec)


def _stages(request: Request, spec: TensorSpec) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Room for packets on their way is taken before the result."""
    if request.over_host or spec.memory_config.is_sharded() or request.outputs:
        return None
    c = Composition()
    same_device = request["sender"] == request["receiver"]
    arriving = c.allocate(spec.with_shape((1, 1)) if same_device else packet_spec(spec))
    options = (request["sender"], request["receiver"], key_of(request["topology"]))
    made = c.run("point_to_point", spec, PlannedTensor(request.tensor.spec), options=options)
    if not same_device:
        keep_semaphores(c, request, "point_to_point")
    c.free(arriving)
    return c, [made]
