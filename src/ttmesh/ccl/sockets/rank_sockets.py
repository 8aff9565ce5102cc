"""Creation of sockets between ranks: which rank is at which end, and handshakes that compare both configurations."""

from __future__ import annotations

import itertools
import json
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ttmesh.base.errors import MeshError, RankError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.sockets.socket_channels import Channel, Receiving, Sending
from ttmesh.ccl.sockets.socket_config import (
    Coord,
    SocketConfig,
    SocketEndpoint,
    SocketRoutes,
    allocate_fifo,
    check_coordinates,
)
from ttmesh.ccl.sockets.stream_ends import Incoming, Outgoing
from ttmesh.fabric.fabric_config import is_2d
from ttmesh.fabric.messaging.engines import bindings, list_context_ranks, world
from ttmesh.fabric.messaging.transport import Transport
from ttmesh.fabric.nodes import FabricNodeId, MeshId
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config

log = logging.getLogger("ttmesh.ccl")

Description = dict[str, Any]

FIRST_TAG = 1 << 20  # smaller tags are for messages of programs (distributed_context_send_bytes)

_numbers: defaultdict[int, itertools.count[int]] = defaultdict(
    itertools.count
)  # numbers of the sockets, by the other rank


Meshes = dict[SocketEndpoint, MeshDevice]
Nodes = dict[SocketEndpoint, dict[Coord, FabricNodeId]]


@dataclass
class Ends:
    """This rank's ends of a socket: outgoing and incoming streams, one per rank on the other side."""

    end: SocketEndpoint | None = None  # None if this rank has both
    outgoing: list[Sending] = field(default_factory=list)
    incoming: list[Receiving] = field(default_factory=list)
    fifo: Buffer | None = None
    nodes: Nodes = field(default_factory=lambda: {SocketEndpoint.SENDER: {}, SocketEndpoint.RECEIVER: {}})


def connect(device: MeshDevice, config: SocketConfig) -> Ends | None:
    """This rank's ends, after the handshake with the other ranks; None on ranks without an end."""
    config.check()
    transport = world()
    if transport is None:
        raise MeshError(
            "MeshSocket(device, config) connects two ranks, and this process was started alone",
            expected="`ttmesh launch`, mpirun or torchrun to start several",
            fix="Start several ranks, or use create_socket_pair() for two meshes of one process.",
        )
    senders, receivers = socket_ranks(config, list_context_ranks())
    if transport.rank not in (*senders, *receivers):
        log.warning(
            "Creating a null rank-scoped socket on rank %d (sender=%s, receiver=%s).", transport.rank,
            *(",".join(map(str, ranks)) for ranks in (senders, receivers)),
        )  # fmt: skip
        return None
    endpoint = SocketEndpoint.SENDER if transport.rank in senders else SocketEndpoint.RECEIVER
    return replace(shake_hands(transport, config, {endpoint: device}, senders, receivers), end=endpoint)


def pair_ranks(meshes: Meshes) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ranks that hold the two meshes; None if this process holds both alone."""
    transport = world()
    if transport is None or all(mesh.rank_block is None for mesh in meshes.values()):
        return None
    sender, receiver = (
        (transport.rank,) if mesh.rank_block is None else mesh.rank_block.ranks for mesh in meshes.values()
    )
    return sender, receiver


def shake_hands(
    transport: Transport, config: SocketConfig, meshes: Meshes, senders: Sequence[int], receivers: Sequence[int]
) -> Ends:
    """Shake hands with every rank at the other end, in the same order on all ranks, and connect the chips."""
    ends, own_error = Ends(), None
    one_each = len(senders) == len(receivers) == 1
    mesh_ids = {bindings()[rank].mesh_id for rank in (*senders, *receivers)}
    try:
        ends.fifo = _prepare_end(config, meshes, mesh_ids, all_here=one_each and len(meshes) == 1)
    except MeshError as error:
        own_error = error
    for sender, receiver in sorted(itertools.product(senders, receivers)):
        if transport.rank not in (sender, receiver):
            continue
        if sender == receiver:
            if own_error is None:
                _connect_own_chips(ends, config, meshes)
            continue
        endpoint = SocketEndpoint.SENDER if transport.rank == sender else SocketEndpoint.RECEIVER
        peer = sender + receiver - transport.rank
        number = next(_numbers[peer])
        name = f"socket #{number} (rank {sender} → rank {receiver})"
        link, tag = transport.for_messages(name, (sender, receiver)), FIRST_TAG + number
        device = meshes[endpoint]
        description = _describe_end(device, config, sender, receiver)
        description |= {"refused": own_error.wrong} if own_error else _describe_own_chips(device, config, endpoint)
        peer_description = _exchange_descriptions(link, peer, tag, description)
        if own_error is not None:
            continue
        _check_agreement(description, peer_description, name, transport.rank, peer)
        sides = (
            (description, peer_description) if endpoint is SocketEndpoint.SENDER else (peer_description, description)
        )
        for end, side in zip(SocketEndpoint, sides, strict=True):
            ends.nodes[end] |= _read_nodes(side)
        pairs = _joint_pairs(config, *sides)
        if not pairs:
            link.close()
            continue
        routes = SocketRoutes(pairs, tuple(sides[0]["shape"]), tuple(sides[1]["shape"]))
        nudge = device.queues[0].schedule.nudge
        if endpoint is SocketEndpoint.SENDER:
            ends.outgoing.append(Outgoing(link, peer, tag, name, routes, nudge, config.capacity_bytes))
        else:
            ends.incoming.append(Incoming(link, peer, tag, name, routes, nudge))
    if own_error is not None:
        raise own_error
    return ends


def _connect_own_chips(ends: Ends, config: SocketConfig, meshes: Meshes) -> None:
    """Connect chips of this rank at both ends by a channel within the process."""
    sides = [_describe_own_chips(mesh, config, end) for end, mesh in meshes.items()]
    for end, side in zip(SocketEndpoint, sides, strict=True):
        ends.nodes[end] |= _read_nodes(side)
    pairs = _joint_pairs(config, *sides)
    if pairs:
        sender, receiver = meshes.values()
        routes = SocketRoutes(pairs, sender.lane_shape, receiver.lane_shape)
        channel = Channel(f"{sender!r} → {receiver!r}", routes, config.capacity_bytes)
        ends.outgoing.append(channel)
        ends.incoming.append(channel)


def _joint_pairs(config: SocketConfig, sender: Description, receiver: Description) -> tuple[tuple[Coord, Coord], ...]:
    """The connected chips that these two sides hold, as positions of their lanes."""
    starts, ends = (
        {tuple(coord): tuple(position) for coord, position in side["places"]} for side in (sender, receiver)
    )
    return tuple((starts[a], ends[b]) for a, b in config.pairs() if a in starts and b in ends)


def socket_ranks(config: SocketConfig, ranks: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sending and the receiving ranks of the world, by their number in this context or by the mesh they are bound to."""
    ids = config.sender_mesh_id, config.receiver_mesh_id
    if (ids[0] is None) != (ids[1] is None):
        raise MeshError(
            "SocketConfig must specify both sender and receiver mesh IDs or neither.",
            expected="two mesh ids, or two ranks",
            fix="Pass both mesh ids, or neither.",
        )
    if ids[0] is not None and ids[1] is not None and int(ids[0]) != int(ids[1]):
        return _find_bound_ranks(int(ids[0]), ranks), _find_bound_ranks(int(ids[1]), ranks)
    size = len(ranks)
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
    return (ranks[sender],), (ranks[receiver],)


def _find_bound_ranks(mesh_id: int, ranks: Sequence[int]) -> tuple[int, ...]:
    bound = tuple(rank for rank in ranks if bindings()[rank].mesh_id == mesh_id)
    if not bound:
        raise RankError(
            f"no rank is bound to mesh {mesh_id}",
            expected=f"one of the meshes {sorted({bindings()[rank].mesh_id for rank in ranks})}",
            fix="Correct the mesh ids of the socket or of the rank bindings.",
        )
    return bound


def _prepare_end(config: SocketConfig, meshes: Meshes, mesh_ids: set[int], *, all_here: bool) -> Buffer | None:
    """Check what this side can check alone, and allocate its FIFO; `all_here`: chips of other ranks are an error."""
    for device in meshes.values():
        device.check_open()
    fabric = get_fabric_config()
    if fabric.name == "DISABLED":
        raise MeshError(
            "Can only create multi-device sockets with fabric enabled.",
            expected="set_fabric_config(FabricConfig.FABRIC_2D) before the mesh is opened",
            fix="Configure the fabric on every rank.",
        )
    if len(mesh_ids) > 1 and not is_2d(fabric):
        raise MeshError(
            f"1D Fabric requires sender and receiver to be on the same mesh (they are on meshes {sorted(mesh_ids)})",
            expected="FABRIC_2D between meshes",
            fix="Call set_fabric_config(FabricConfig.FABRIC_2D) before the mesh is opened.",
        )
    for endpoint, device in meshes.items():
        coords = [pair[endpoint.value] for pair in config.pairs()]
        check_coordinates(device, coords)
        if all_here and device.rank_block is not None:
            for coord in coords:
                device.rank_block.to_local(coord)
    receiver = meshes.get(SocketEndpoint.RECEIVER)
    if (
        receiver is None and len(mesh_ids) == 1
    ):  # ranks of one mesh make the same allocations, so the sender allocates the FIFO too
        receiver = meshes[SocketEndpoint.SENDER]
    return None if receiver is None else allocate_fifo(receiver, config)


def _describe_end(device: MeshDevice, config: SocketConfig, sender: int, receiver: int) -> Description:
    """What both ends must agree on, with the names of TT-Metal's handshake, and this end's shape."""
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


def _describe_own_chips(device: MeshDevice, config: SocketConfig, endpoint: SocketEndpoint) -> Description:
    """The connected chips of this end on this rank: the positions of their lanes, and their fabric node ids."""
    rank_block = device.rank_block
    coords = dict.fromkeys(pair[endpoint.value] for pair in config.pairs())
    local_coords = [coord for coord in coords if rank_block is None or rank_block.has_chip(coord)]
    nodes = {coord: device.get_fabric_node_id(MeshCoordinate(coord)) for coord in local_coords}
    return {
        "places": [(coord, coord if rank_block is None else rank_block.to_local(coord)) for coord in local_coords],
        "chips": [(coord, int(node.mesh_id), node.chip_id) for coord, node in nodes.items()],
    }


def _read_nodes(side: Description) -> dict[Coord, FabricNodeId]:
    return {tuple(coord): FabricNodeId(MeshId(mesh), chip) for coord, mesh, chip in side["chips"]}


def _exchange_descriptions(link: Transport, peer: int, tag: int, description: Description) -> Description:
    """Exchange descriptions with the other side; the lower rank sends first."""
    operation = "MeshSocket: handshake"
    text = json.dumps(description).encode()
    sizes = torch.tensor([len(text)], dtype=torch.int64, device="cpu"), torch.empty(1, dtype=torch.int64, device="cpu")

    def send_description() -> None:
        link.send(sizes[0], peer, tag=tag, operation=operation)
        link.send(torch.frombuffer(bytearray(text), dtype=torch.uint8), peer, tag=tag, operation=operation)

    if link.rank < peer:
        send_description()
    link.recv(sizes[1], peer, tag=tag, operation=operation)
    received = link.recv(
        torch.empty(int(sizes[1]), dtype=torch.uint8, device="cpu"), peer, tag=tag, operation=operation
    )
    if link.rank > peer:
        send_description()
    peer_description: Description = json.loads(bytes(received.tolist()))
    return peer_description


def _check_agreement(description: Description, peer_description: Description, name: str, rank: int, peer: int) -> None:
    if "refused" in peer_description:
        raise MeshError(
            f"rank {peer} could not make its end of {name}: {peer_description['refused']}",
            expected="both ends",
            fix=f"Look at the output of rank {peer}.",
        )
    own_values, peer_values = description["agreed"], peer_description["agreed"]
    for item, value in own_values.items():
        if peer_values.get(item) != value:
            raise MeshError(
                f"Mismatch in {item} during handshake. Rank {rank} has {value}, rank {peer} has {peer_values.get(item)} "
                f"for {name}",
                expected="the same SocketConfig on both ranks",
                fix="Create sockets with the same arguments and in the same order on both.",
            )
