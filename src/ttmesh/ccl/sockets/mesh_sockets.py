"""Sockets: tensors stream from one mesh to another through a FIFO; the sender waits while it is full."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import pairwise

from ttmesh.base.argument_types import misfit
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.link_notation import HOST
from ttmesh.ccl.planning.collective_call import collective, require_fabric
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.ccl.sockets.rank_sockets import Ends, connect, pair_ranks, shake_hands
from ttmesh.ccl.sockets.rank_streams import RankStream
from ttmesh.ccl.sockets.socket_channels import Channel, Message, Receiving, Sending, SeveralReceivers, SeveralSenders
from ttmesh.ccl.sockets.socket_config import (
    MeshCoreCoord,
    SocketConfig,
    SocketConnection,
    SocketEndpoint,
    SocketRoutes,
    allocate_fifo,
    check_coordinates,
)
from ttmesh.fabric.fabric_config import is_2d
from ttmesh.fabric.messaging.engines import world
from ttmesh.fabric.nodes import FabricNodeId
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.mesh.queue.partial_writes import restrict_to_chips
from ttmesh.tensor.distribution.lane_transfers import on_present
from ttmesh.tensor.tensor import Tensor


class MeshSocket:
    """One end of a socket: `create_socket_pair` makes both ends in one process, or each rank makes its own."""

    def __init__(self, device: MeshDevice, config: SocketConfig) -> None:
        if not isinstance(config, SocketConfig):
            raise misfit("__init__", "device, config", f"config={config!r} is no SocketConfig")
        ends = connect(device, config) or Ends()
        self._set(device, config, None, ends.end, ends)

    @staticmethod
    def _create(
        device: MeshDevice, config: SocketConfig, other: MeshDevice, end: SocketEndpoint, ends: Ends
    ) -> MeshSocket:
        socket = object.__new__(MeshSocket)
        socket._set(device, config, other, end, ends)
        return socket

    def _set(
        self,
        device: MeshDevice,
        config: SocketConfig,
        other: MeshDevice | None,
        end: SocketEndpoint | None,
        ends: Ends,
    ) -> None:
        self._device, self._config, self._other, self._end, self._nodes = device, config, other, end, ends.nodes
        self.checked: dict[
            object, Loads
        ] = {}  # bytes of a message on each link, by the kinds of tensors that were already checked
        outgoing, incoming = ends.outgoing, ends.incoming
        self._sending: Sending | None = None
        self._receiving: Receiving | None = None
        if end is SocketEndpoint.SENDER and outgoing:
            self._sending = outgoing[0] if len(outgoing) == 1 else SeveralReceivers(outgoing)
        if end is SocketEndpoint.RECEIVER and incoming:
            self._receiving = incoming[0] if len(incoming) == 1 else SeveralSenders(incoming)
        self._buffer: Buffer | None = ends.fifo
        streams = outgoing if end is SocketEndpoint.SENDER else incoming
        for stream in streams:
            if isinstance(stream, RankStream):
                weakref.finalize(self, stream.close)

    def sending(self) -> Sending:
        """The stream that sends go into."""
        assert self._sending is not None, "the caller checks that this rank has connected chips"
        return self._sending

    def receiving(self) -> Receiving:
        """The stream that receives take from."""
        assert self._receiving is not None, "the caller checks that this rank has connected chips"
        return self._receiving

    def get_mesh_device(self) -> MeshDevice:
        """The mesh at this end."""
        return self._device

    def get_socket_config(self) -> SocketConfig:
        """Connections and memory."""
        return self._config

    get_config = get_socket_config

    def get_connection_config(self) -> list[SocketConnection]:
        """The connections."""
        return list(self._config.connections)

    def get_socket_endpoint_type(self) -> SocketEndpoint:
        """SENDER or RECEIVER; raises on a rank that has no end of the socket."""
        if self._end is None:
            raise MeshError(
                "this rank has no end of the socket",
                expected=f"rank {self._config.sender_rank} or {self._config.receiver_rank}",
                fix="Use the socket on its two ranks only.",
            )
        return self._end

    def get_active_cores(self) -> list[MeshCoreCoord]:
        """The cores at this end."""
        ends = self._config.connections
        return [c.sender_core if self._end is SocketEndpoint.SENDER else c.receiver_core for c in ends]

    def get_fabric_node_id(self, endpoint: SocketEndpoint, coord: MeshCoordinate) -> FabricNodeId:
        """The fabric node id of a connected chip at either end."""
        node_id = self._nodes.get(endpoint, {}).get(tuple(coord))
        if node_id is None:
            raise MeshError(
                f"{coord!r} is not connected at the {endpoint.name.lower()}'s end",
                expected=f"one of {sorted(self._nodes.get(endpoint, {}))}",
                fix="Pass a coordinate of one of the connections.",
            )
        return node_id


def create_socket_pair(
    sender_mesh_device: MeshDevice, receiver_mesh_device: MeshDevice, socket_config: SocketConfig
) -> tuple[MeshSocket, MeshSocket]:
    """Both ends of a socket; the receiver's FIFO is allocated on its mesh. All ranks that hold the meshes must call it."""
    if not isinstance(socket_config, SocketConfig):
        kind = type(socket_config).__name__
        raise misfit(
            "create_socket_pair", "sender_mesh_device, receiver_mesh_device, socket_config",
            f"socket_config={socket_config!r} is a {kind}; pass a SocketConfig",
        )  # fmt: skip
    socket_config.check()
    sender, receiver = sender_mesh_device, receiver_mesh_device
    meshes = {SocketEndpoint.SENDER: sender, SocketEndpoint.RECEIVER: receiver}
    rank_pairs, transport = pair_ranks(meshes), world()
    if rank_pairs is not None and transport is not None:
        ends = shake_hands(transport, socket_config, meshes, *rank_pairs)
    else:
        ends = _connect_locally(meshes, socket_config)
    create = MeshSocket._create
    return (
        create(sender, socket_config, receiver, SocketEndpoint.SENDER, replace(ends, fifo=None)),
        create(receiver, socket_config, sender, SocketEndpoint.RECEIVER, ends),
    )


def _connect_locally(meshes: dict[SocketEndpoint, MeshDevice], config: SocketConfig) -> Ends:
    """Make both ends in one process."""
    sender, receiver = meshes.values()
    routes = SocketRoutes(config.pairs(), sender.shape.to_tuple(), receiver.shape.to_tuple())
    coords = {SocketEndpoint.SENDER: routes.starts, SocketEndpoint.RECEIVER: routes.ends}
    for end, mesh in meshes.items():
        check_coordinates(mesh, coords[end])
    channel = Channel(f"{sender!r} → {receiver!r}", routes, config.capacity_bytes)
    fifo = allocate_fifo(receiver, config)
    nodes = {
        end: {coord: mesh.get_fabric_node_id(MeshCoordinate(coord)) for coord in coords[end]}
        for end, mesh in meshes.items()
    }
    return Ends(None, [channel], [channel], fifo, nodes)


def _send(name: str, tensor: Tensor, socket: MeshSocket) -> None:
    mesh, loads = _check_transfer(name, tensor, socket, SocketEndpoint.SENDER)
    _compile(name, mesh, tensor, socket)
    if socket._sending is None:  # the connected chips belong to other ranks
        return
    channel, cell = socket.sending(), tensor.buffer.cell
    message = Message(tensor.spec, tensor.spec.packed_size_bytes, (cell,))
    counters = mesh.traffic.counters

    def body(reads: Cells, writes: Cells) -> None:
        socket.sending().put(message, reads)  # the reference to the socket keeps it alive as long as the command
        counters.add(loads)

    mesh.launch(
        Command(
            name, body, (cell,), (), programs=1, ready=lambda: channel.may_send(message), remote=channel.remote,
            waits_for=f"a receive, or room in the FIFO of {channel.name}", offers=True,
        )
    )  # fmt: skip


def _receive(name: str, tensor: Tensor, socket: MeshSocket) -> None:
    mesh, loads = _check_transfer(name, tensor, socket, SocketEndpoint.RECEIVER)
    _compile(name, mesh, tensor, socket)
    if socket._receiving is None:
        return
    channel, spec, torch_device = socket.receiving(), tensor.spec, mesh.backend.device
    routes, counters = channel.routes, mesh.traffic.counters

    def body(reads: Cells, writes: Cells) -> None:
        sent_spec, lanes = socket.receiving().take(spec)
        writes[0].write(lanes.to(torch_device), sent_spec)
        counters.add(loads)

    receive = body if routes.covers else restrict_to_chips(body, routes.ends, routes.receiver_shape)
    receive = on_present(mesh, receive, tensor.kind.presence)
    mesh.launch(
        Command(
            name, receive, (), (tensor.buffer.cell,), programs=1, ready=channel.may_receive, remote=channel.remote,
            waits_for=f"a send through {channel.name}", offers=True,
        )
    )  # fmt: skip


def _compile(name: str, mesh: MeshDevice, tensor: Tensor, socket: MeshSocket) -> None:
    """Count the device program: one for tensors of a spec through sockets of one configuration."""
    mesh.program_cache.compile(
        name,
        [
            (
                name,
                tensor.kind.spec,
                tensor.kind.presence,
                repr((socket._config.connections, socket._config.memory_config)),
            )
        ],
    )


def _check_transfer(name: str, tensor: Tensor, socket: MeshSocket, end: SocketEndpoint) -> tuple[MeshDevice, Loads]:
    short_name = name.rpartition(".")[2]
    mesh = tensor.device()
    if mesh is None:
        raise MeshError(
            f"{short_name} op requires a device", expected="a device tensor", fix="Move it with to_device()."
        )
    key = (name, tensor.kind, get_fabric_config())
    if key in socket.checked:
        return mesh, socket.checked[key]
    require_fabric(name)
    if socket.get_socket_endpoint_type() is not end:
        raise MeshError(
            f"{short_name} op requires a {end.name} socket",
            expected=f"the {end.name.lower()}'s end",
            fix="Swap the sockets of the pair.",
        )
    config = socket.get_socket_config().memory_config
    goes_through_fifo = not name.endswith("direct_async")
    if goes_through_fifo and config.fifo_size < tensor.spec.page_size_bytes:
        raise MeshError(
            f"{short_name} op requires a fifo size of at least {tensor.spec.page_size_bytes} bytes, got {config.fifo_size}",
            expected=f"at least {tensor.spec.page_size_bytes} B, for one page",
            fix="Enlarge fifo_size.",
        )
    if not goes_through_fifo and config.socket_storage_type is not BufferType.L1:
        raise MeshError(
            f"{short_name} requires an L1 socket storage type",
            expected="BufferType.L1",
            fix="Change the socket's memory.",
        )
    if not goes_through_fifo:
        _check_neighbours(socket, mesh)
    endpoint_index = 0 if end is SocketEndpoint.SENDER else 1
    ends = {pair[endpoint_index] for pair in socket.get_socket_config().pairs()}
    if not ends & set(tensor.coords()):
        raise MeshError(
            f"{end.name.capitalize()} socket coordinates do not intersect with tensor coordinates.",
            expected=f"some of {sorted(ends)}",
            fix="Connect devices that hold the tensor.",
        )
    loads = socket.checked[key] = _count_message_bytes(socket, tensor.spec.packed_size_bytes)
    return mesh, loads


def _check_neighbours(socket: MeshSocket, mesh: MeshDevice) -> None:
    """Raise for ends that no link joins: the direct forms write to a neighbour, along a fabric of one dimension."""
    if socket._other is not mesh or is_2d(get_fabric_config()):
        return
    for start, end in socket.get_socket_config().pairs():
        if sum(abs(a - b) for a, b in zip(start, end, strict=True)) > 1:
            numbers = [mesh.get_fabric_node_id(MeshCoordinate(at)).chip_id for at in (start, end)]
            raise MeshError(
                f"Could not find any forwarding direction from src (M0, D{numbers[0]}) to dst (M0, D{numbers[1]})",
                expected="a socket between neighbours",
                fix="Use send_async and recv_async.",
            )


def _count_message_bytes(socket: MeshSocket, size_bytes: int) -> Loads:
    """The bytes of one message on each link; messages to other ranks go through the host."""
    mesh, other, loads = socket._device, socket._other, Loads()
    for start, end in socket.get_socket_config().pairs():
        if socket._end is SocketEndpoint.RECEIVER:
            route = [HOST, mesh.chip_at(MeshCoordinate(end))] if other is None else []
        elif other is None:
            route = [mesh.chip_at(MeshCoordinate(start)), HOST]
        else:
            chips = mesh.chip_at(MeshCoordinate(start)), other.chip_at(MeshCoordinate(end))
            route = list(mesh.traffic.routes.route(*chips))
        for hop in pairwise(route):
            loads[hop] = loads.get(hop, 0) + size_bytes
    return loads


@collective("ttnn.experimental.send_async")
def send_async(input_tensor: Tensor, mesh_socket: MeshSocket) -> list[Tensor]:
    """Stream a tensor into a socket; one larger than the FIFO waits for the receive."""
    _send("ttnn.experimental.send_async", input_tensor, mesh_socket)
    return []


@collective("ttnn.experimental.recv_async")
def recv_async(output_tensor: Tensor, mesh_socket: MeshSocket) -> list[Tensor]:
    """Fill a tensor from a socket."""
    _receive("ttnn.experimental.recv_async", output_tensor, mesh_socket)
    return [output_tensor]


@collective("ttnn.experimental.send_direct_async")
def send_direct_async(input_tensor: Tensor, mesh_socket: MeshSocket) -> list[Tensor]:
    """`send_async` for a FIFO in L1."""
    _send("ttnn.experimental.send_direct_async", input_tensor, mesh_socket)
    return []


@collective("ttnn.experimental.recv_direct_async")
def recv_direct_async(output_tensor: Tensor, mesh_socket: MeshSocket) -> list[Tensor]:
    """`recv_async` for a FIFO in L1."""
    _receive("ttnn.experimental.recv_direct_async", output_tensor, mesh_socket)
    return [output_tensor]
