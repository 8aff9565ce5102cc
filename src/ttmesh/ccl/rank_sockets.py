"""Making a socket between two ranks: who is at which end, and a handshake in which both compare what they were told."""

from __future__ import annotations

import itertools
import json
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from ttmesh.base.errors import MeshError, NotEmulatedError, RankError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.socket_config import Coord, Routes, SocketConfig, SocketEndpoint, allocate_fifo, check_coordinates
from ttmesh.ccl.stream_ends import Incoming, Outgoing
from ttmesh.ccl.streams import Stream
from ttmesh.fabric.config import is_2d
from ttmesh.fabric.engines import bindings, world
from ttmesh.fabric.nodes import FabricNodeId, MeshId
from ttmesh.fabric.transports.protocol import Transport
from ttmesh.mesh.buffer import Buffer
from ttmesh.mesh.fabric_setup import get_fabric_config
from ttmesh.mesh.mesh_device import MeshDevice

log = logging.getLogger("ttmesh.ccl")

Description = dict[str, Any]

FIRST_TAG = 1 << 20  # programs' own messages (distributed_context_send_bytes) have the tags below

_numbers: defaultdict[int, itertools.count[int]] = defaultdict(itertools.count)  # of the sockets with each other rank


@dataclass(frozen=True)
class End:
    """This rank's end of a socket."""

    stream: Stream
    fifo: Buffer | None
    nodes: dict[SocketEndpoint, dict[Coord, FabricNodeId]]


def connect(device: MeshDevice, config: SocketConfig) -> End | None:
    """This rank's end, once the other rank has made the other one; None on ranks that have no part in it."""
    config.check()
    joined = world()
    if joined is None:
        raise MeshError(
            "MeshSocket(device, config) joins two ranks, and this process was started alone",
            expected="`ttmesh launch`, mpirun or torchrun to start several",
            fix="Start it so, or use create_socket_pair() for two meshes of one process.",
        )
    sender, receiver = socket_ranks(config, joined.rank, joined.size)
    if joined.rank not in (sender, receiver):
        log.warning(
            "Creating a null rank-scoped socket on rank %d (sender=%d, receiver=%d).", joined.rank, sender, receiver
        )
        return None
    endpoint = SocketEndpoint.SENDER if joined.rank == sender else SocketEndpoint.RECEIVER
    peer = sender + receiver - joined.rank
    number = next(_numbers[peer])
    name = f"socket #{number} (rank {sender} → rank {receiver})"
    link, tag = joined.for_messages(name, (sender, receiver)), FIRST_TAG + number
    fifo: Buffer | None = None
    refused: MeshError | None = None
    try:
        fifo = _prepared(device, config, endpoint, sender, receiver)
    except MeshError as error:
        refused = error
    own = _description(device, config, sender, receiver)
    own |= {"refused": refused.wrong} if refused else _own_chips(device, config, endpoint)
    other = _swapped(link, peer, tag, own)
    if refused is not None:
        raise refused
    _compare(own, other, name, joined.rank, peer)
    sides = (own, other) if endpoint is SocketEndpoint.SENDER else (other, own)
    starts, ends = ([tuple(place) for place in side["places"]] for side in sides)
    routes = Routes(tuple(zip(starts, ends, strict=True)), tuple(sides[0]["shape"]), tuple(sides[1]["shape"]))
    nudge = device.queues[0].schedule.nudge
    stream: Stream
    if endpoint is SocketEndpoint.SENDER:
        stream = Outgoing(link, peer, tag, name, routes, nudge, config.capacity_bytes)
    else:
        stream = Incoming(link, peer, tag, name, routes, nudge)
    return End(stream, fifo, {end: _nodes(side) for end, side in zip(SocketEndpoint, sides, strict=True)})


def socket_ranks(config: SocketConfig, rank: int, size: int) -> tuple[int, int]:
    """The sending and the receiving rank, by number or by the mesh each is bound to."""
    ids = config.sender_mesh_id, config.receiver_mesh_id
    if (ids[0] is None) != (ids[1] is None):
        raise MeshError(
            "SocketConfig must specify both sender and receiver mesh IDs or neither.",
            expected="two mesh ids, or two ranks",
            fix="Add the other one.",
        )
    if ids[0] is not None and ids[1] is not None and int(ids[0]) != int(ids[1]):
        return _only_rank(int(ids[0])), _only_rank(int(ids[1]))
    sender, receiver = config.sender_rank or 0, config.receiver_rank or 0
    if not (0 <= sender < size and 0 <= receiver < size):
        raise RankError(
            f"Invalid socket sender rank {sender} or receiver rank {receiver} specified.",
            expected=f"ranks from 0 to {size - 1}",
            fix="Correct sender_rank and receiver_rank.",
        )
    if sender == receiver:
        raise RankError(
            f"the socket's sender and receiver are both rank {sender}",
            expected="two ranks",
            fix="Give sender_rank and receiver_rank, or use create_socket_pair() within a rank.",
        )
    return sender, receiver


def _only_rank(mesh_id: int) -> int:
    found = [rank for rank, binding in enumerate(bindings()) if binding.mesh_id == mesh_id]
    if not found:
        raise RankError(
            f"no rank is bound to mesh {mesh_id}",
            expected=f"one of the meshes {sorted({b.mesh_id for b in bindings()})}",
            fix="Correct the mesh ids of the socket or of the rank bindings.",
        )
    if len(found) > 1:
        raise NotEmulatedError(
            f"mesh {mesh_id} is presented by the ranks {found} together, and a socket by mesh ids would join them all",
            expected="meshes of one rank each",
            fix="Give sender_rank and receiver_rank.",
        )
    return found[0]


def _prepared(
    device: MeshDevice, config: SocketConfig, endpoint: SocketEndpoint, sender: int, receiver: int
) -> Buffer | None:
    """Everything this side can check alone, and its memory."""
    device.check_open()
    fabric, meshes = get_fabric_config(), [bindings()[rank].mesh_id for rank in (sender, receiver)]
    if fabric.name == "DISABLED":
        raise MeshError(
            "Can only create multi-device sockets with fabric enabled.",
            expected="set_fabric_config(FabricConfig.FABRIC_2D) before the mesh is opened",
            fix="Configure the fabric on every rank.",
        )
    if meshes[0] != meshes[1] and not is_2d(fabric):
        raise MeshError(
            f"1D Fabric requires sender and receiver to be on the same mesh (they are on meshes {meshes[0]} and "
            f"{meshes[1]})",
            expected="FABRIC_2D between meshes",
            fix="Call set_fabric_config(FabricConfig.FABRIC_2D) before the mesh is opened.",
        )
    sends = endpoint is SocketEndpoint.SENDER
    check_coordinates(device, (start if sends else end for start, end in config.pairs()))
    # The ranks of one mesh allocate in lock step, so that there the sender keeps the room free as well.
    return None if sends and device.part is None else allocate_fifo(device, config)


def _description(device: MeshDevice, config: SocketConfig, sender: int, receiver: int) -> Description:
    """What both ends must agree on, named as TT-Metal's handshake names it, and this end's shape."""
    memory = config.memory_config
    by_mesh = config.sender_mesh_id is not None
    ends = [
        [[*core.device_coord, core.core_coord.x, core.core_coord.y] for core in (c.sender_core, c.receiver_core)]
        for c in config.connections
    ]
    return {
        "shape": device.lane_shape,
        "agreed": {
            "sender rank": sender,
            "receiver rank": receiver,
            "number of socket connections": len(ends),
            "sender core": [start for start, _ in ends],
            "receiver core": [end for _, end in ends],
            "socket storage type": memory.socket_storage_type.name,
            "socket FIFO size": memory.fifo_size,
            "sender sub-device": str(memory.sender_sub_device),
            "receiver sub-device": str(memory.receiver_sub_device),
            "socket per-core allocation flag": memory.per_core_allocation,
            "sender mesh ID": config.sender_mesh_id if by_mesh else bindings()[sender].mesh_id,
            "receiver mesh ID": config.receiver_mesh_id if by_mesh else bindings()[receiver].mesh_id,
            "backend's values": device.backend.device.type != "meta",
        },
    }


def _own_chips(device: MeshDevice, config: SocketConfig, endpoint: SocketEndpoint) -> Description:
    """The connected chips of this end: where their lanes are in this process, and what the fabric calls them."""
    coords = [pair[endpoint.value] for pair in config.pairs()]
    part = device.part
    nodes = {coord: device.get_fabric_node_id(MeshCoordinate(coord)) for coord in coords}
    return {
        "places": coords if part is None else [part.locally(coord) for coord in coords],
        "chips": [(coord, int(node.mesh_id), node.chip_id) for coord, node in nodes.items()],
    }


def _nodes(side: Description) -> dict[Coord, FabricNodeId]:
    return {tuple(coord): FabricNodeId(MeshId(mesh), chip) for coord, mesh, chip in side["chips"]}


def _swapped(link: Transport, peer: int, tag: int, own: Description) -> Description:
    """The other side's description for ours; the lower rank speaks first."""
    operation = "MeshSocket: handshake"
    text = json.dumps(own).encode()
    sizes = torch.tensor([len(text)]), torch.empty(1, dtype=torch.int64)

    def speak() -> None:
        link.send(sizes[0], peer, tag=tag, operation=operation)
        link.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), peer, tag=tag, operation=operation)

    if link.rank < peer:
        speak()
    link.recv(sizes[1], peer, tag=tag, operation=operation)
    said = link.recv(torch.empty(int(sizes[1]), dtype=torch.uint8), peer, tag=tag, operation=operation)
    if link.rank > peer:
        speak()
    described: Description = json.loads(bytes(said.tolist()))
    return described


def _compare(own: Description, other: Description, name: str, rank: int, peer: int) -> None:
    if "refused" in other:
        raise MeshError(
            f"rank {peer} could not make its end of {name}: {other['refused']}",
            expected="both ends",
            fix=f"Look at the output of rank {peer}.",
        )
    ours, theirs = own["agreed"], other["agreed"]
    for field, value in ours.items():
        if theirs.get(field) != value:
            raise MeshError(
                f"Mismatch in {field} during handshake. Rank {rank} has {value}, rank {peer} has {theirs.get(field)} "
                f"for {name}",
                expected="the same SocketConfig on both ranks",
                fix="Create sockets with the same arguments and in the same order on both.",
            )
