"""Sockets: tensors stream from one mesh to another through a FIFO that holds the sender back when it is full."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType, PrintedEnum
from ttmesh.base.errors import MeshError, NotEmulatedError, QueueError
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.ccl.collective import collective, require_fabric
from ttmesh.ccl.traffic import Loads
from ttmesh.mesh.buffer import Buffer
from ttmesh.mesh.command_queue import Cells, Command
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.mesh.sub_devices import SubDeviceId
from ttmesh.tensor.movement import merged
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Coord = tuple[int, ...]


class SocketEndpoint(PrintedEnum):
    """Which end of a connection a socket is."""

    SENDER = 0
    RECEIVER = 1


@dataclass(frozen=True)
class MeshCoreCoord:
    """A core of one chip of a mesh."""

    device_coord: MeshCoordinate
    core_coord: CoreCoord


@dataclass(frozen=True)
class SocketConnection:
    """The cores at both ends of one stream."""

    sender_core: MeshCoreCoord
    receiver_core: MeshCoreCoord


@dataclass
class SocketMemoryConfig:
    """Where the receiver's FIFO lies and how large it is, per connection. Sub-devices do not change what is emulated."""

    socket_storage_type: BufferType
    fifo_size: int
    sender_sub_device: SubDeviceId | None = None
    receiver_sub_device: SubDeviceId | None = None
    per_core_allocation: bool = False


class SocketConfig:
    """The connections of a socket and their memory; ranks or mesh ids where the ends are in different processes."""

    def __init__(
        self,
        connections: Sequence[SocketConnection],
        memory_config: SocketMemoryConfig,
        sender_rank: int | None = None,
        receiver_rank: int | None = None,
        *,
        sender_mesh_id: object = None,
        receiver_mesh_id: object = None,
    ) -> None:
        self.connections = list(connections)
        self.memory_config = memory_config
        self.sender_rank, self.receiver_rank = sender_rank, receiver_rank
        self.sender_mesh_id, self.receiver_mesh_id = sender_mesh_id, receiver_mesh_id


class MeshSocket:
    """One end of a socket; made in pairs by `create_socket_pair`."""

    def __init__(self, device: MeshDevice, config: SocketConfig) -> None:
        raise NotEmulatedError(
            "MeshSocket(device, config) joins two processes",
            expected="both ends in one process, made by create_socket_pair()",
            fix="Use create_socket_pair(), or send bytes with distributed_context_send_bytes().",
        )

    _device: MeshDevice
    _config: SocketConfig
    _endpoint: SocketEndpoint
    _channel: Channel
    _buffer: Buffer | None

    @staticmethod
    def _made(
        device: MeshDevice, config: SocketConfig, endpoint: SocketEndpoint, channel: Channel, buffer: Buffer | None
    ) -> MeshSocket:
        socket = object.__new__(MeshSocket)
        socket._device, socket._config, socket._endpoint = device, config, endpoint
        socket._channel, socket._buffer = channel, buffer
        return socket

    def get_mesh_device(self) -> MeshDevice:
        """The mesh at this end."""
        return self._device

    def get_socket_config(self) -> SocketConfig:
        """Connections and memory."""
        return self._config

    get_config = get_socket_config

    def get_socket_endpoint_type(self) -> SocketEndpoint:
        """SENDER or RECEIVER."""
        return self._endpoint

    def get_active_cores(self) -> list[MeshCoreCoord]:
        """The cores at this end."""
        ends = self._config.connections
        return [c.sender_core if self._endpoint is SocketEndpoint.SENDER else c.receiver_core for c in ends]


@dataclass
class Message:
    """A tensor on its way: the lanes once they were read, else the cells to read them from."""

    spec: TensorSpec
    size_bytes: int
    cells: Cells = ()
    taken: bool = False


@dataclass
class Channel:
    """What both ends of a socket share. Whichever end comes second finds the other one waiting."""

    receiver: MeshDevice
    capacity_bytes: int  # per sending chip
    routes: dict[Coord, Coord]  # sender coordinate → receiver coordinate
    name: str
    used_bytes: int = 0
    arrived: deque[tuple[Message, torch.Tensor]] = field(default_factory=deque)
    offered: Message | None = None  # a sender that does not fit and stands at the head of its queue
    wanted: bool = False  # a receiver that found nothing and stands at the head of its queue
    lock: threading.Lock = field(default_factory=threading.Lock)

    def may_send(self, message: Message) -> bool:
        """Whether there is room, somebody takes it at once, or already took it."""
        with self.lock:
            if message.taken or self.wanted or self.used_bytes + message.size_bytes <= self.capacity_bytes:
                return True
            self.offered = message
            return False

    def may_receive(self) -> bool:
        """Whether something arrived or is offered."""
        with self.lock:
            self.wanted = not self.arrived and self.offered is None
            return not self.wanted

    def put(self, message: Message, cells: Cells) -> None:
        """Send, unless the receiver already took it."""
        with self.lock:
            if message.taken:
                message.taken = False  # a trace sends the same message again
                return
            self.arrived.append((message, cells[0].read(message.spec)))
            self.used_bytes += message.size_bytes
            self.wanted, self.offered = False, None

    def take(self) -> tuple[TensorSpec, torch.Tensor]:
        """The oldest message."""
        with self.lock:
            if self.arrived:
                message, lanes = self.arrived.popleft()
                self.used_bytes -= message.size_bytes
                return message.spec, lanes
            if self.offered is None:
                raise QueueError(
                    f"nothing was sent through the socket {self.name}",
                    expected="a send for every receive of a trace",
                    fix="Replay the sender's trace first.",
                )
            message, self.offered = self.offered, None
            message.taken = True
            return message.spec, message.cells[0].read(message.spec)


def create_socket_pair(
    sender_mesh_device: MeshDevice, receiver_mesh_device: MeshDevice, socket_config: SocketConfig
) -> tuple[MeshSocket, MeshSocket]:
    """Both ends of a socket; the receiver's FIFO is allocated on its mesh."""
    if not socket_config.connections:
        raise MeshError("Socket connection config cannot be empty.", expected="one connection or more", fix="Add one.")
    routes: dict[Coord, Coord] = {}
    for connection in socket_config.connections:
        start, end = tuple(connection.sender_core.device_coord), tuple(connection.receiver_core.device_coord)
        sender_mesh_device.get_device_id(MeshCoordinate(start))
        receiver_mesh_device.get_device_id(MeshCoordinate(end))
        routes[start] = end
    memory = socket_config.memory_config
    streams = len(socket_config.connections) // len(routes)
    name = f"{sender_mesh_device!r} → {receiver_mesh_device!r}"
    channel = Channel(receiver_mesh_device, memory.fifo_size * max(streams, 1), routes, name)
    kind = memory.socket_storage_type
    banks = receiver_mesh_device.heap.map.banks[kind]
    size = -(-memory.fifo_size // banks.alignment) * banks.alignment
    fifo = receiver_mesh_device.heap.allocate(kind, size * max(streams, 1), size, size, max(streams, 1), "socket fifo")
    sender = MeshSocket._made(sender_mesh_device, socket_config, SocketEndpoint.SENDER, channel, None)
    return sender, MeshSocket._made(receiver_mesh_device, socket_config, SocketEndpoint.RECEIVER, channel, fifo)


def _send(name: str, tensor: Tensor, socket: MeshSocket) -> None:
    mesh = _checked(name, tensor, socket, SocketEndpoint.SENDER)
    channel, cell = socket._channel, tensor.buffer.cell
    message = Message(tensor.spec, tensor.spec.packed_size_bytes, (cell,))
    loads = _loads(socket, message.size_bytes)
    counters = mesh.traffic.counters

    def body(reads: Cells, writes: Cells) -> None:
        channel.put(message, reads)
        counters.add(loads)

    mesh.launch(
        Command(
            name, body, (cell,), (), programs=1, ready=lambda: channel.may_send(message),
            waits_for=f"a receive, or room in the FIFO of {channel.name}", offers=True,
        )
    )  # fmt: skip


def _receive(name: str, tensor: Tensor, socket: MeshSocket) -> None:
    mesh = _checked(name, tensor, socket, SocketEndpoint.RECEIVER)
    channel, shape = socket._channel, mesh.shape.to_tuple()
    whole = len(channel.routes) == mesh.get_num_devices() and all(a == b for a, b in channel.routes.items())

    def body(reads: Cells, writes: Cells) -> None:
        spec, lanes = channel.take()
        axes = len(next(iter(channel.routes)))
        if whole or all(n == 1 for n in lanes.shape[:axes]):
            moved = lanes
        else:
            moved = lanes.new_zeros(*shape, *lanes.shape[axes:])
            for start, end in channel.routes.items():
                moved[end] = lanes[tuple(min(at, n - 1) for at, n in zip(start, lanes.shape, strict=False))]
        if not whole and len(channel.routes) != mesh.get_num_devices():
            moved = merged(writes[0].read(spec), moved, frozenset(channel.routes.values()), shape)
        writes[0].write(moved, spec)

    mesh.launch(
        Command(
            name, body, (), (tensor.buffer.cell,), programs=1, ready=channel.may_receive,
            waits_for=f"a send through {channel.name}", offers=True,
        )
    )  # fmt: skip


def _checked(name: str, tensor: Tensor, socket: MeshSocket, end: SocketEndpoint) -> MeshDevice:
    short = name.rpartition(".")[2]
    mesh = tensor.device()
    if mesh is None:
        raise MeshError(f"{short} op requires a device", expected="a device tensor", fix="Move it with to_device().")
    require_fabric(name)
    if socket.get_socket_endpoint_type() is not end:
        raise MeshError(
            f"{short} op requires a {end.name} socket",
            expected=f"the {end.name.lower()}'s end",
            fix="Swap the sockets of the pair.",
        )
    config = socket.get_socket_config().memory_config
    if config.fifo_size < tensor.spec.page_size_bytes:
        raise MeshError(
            f"{short} op requires a fifo size of at least {tensor.spec.page_size_bytes} bytes, got {config.fifo_size}",
            expected="room for one page",
            fix="Enlarge fifo_size.",
        )
    if name.endswith("direct_async") and config.socket_storage_type is not BufferType.L1:
        raise MeshError(
            f"{short} requires an L1 socket storage type", expected="BufferType.L1", fix="Change the socket's memory."
        )
    ends = socket._channel.routes.keys() if end is SocketEndpoint.SENDER else socket._channel.routes.values()
    if not set(ends) & set(tensor.coords()):
        raise MeshError(
            f"{end.name.capitalize()} socket coordinates do not intersect with tensor coordinates.",
            expected=f"some of {sorted(ends)}",
            fix="Connect devices that hold the tensor.",
        )
    return mesh


def _loads(socket: MeshSocket, size_bytes: int) -> Loads:
    """What one message puts on each link; the receiver's mesh may be another submesh of the same system."""
    sender, loads = socket._device, Loads()
    receiver = socket._channel.receiver
    for start, end in socket._channel.routes.items():
        chips = sender.get_device_id(MeshCoordinate(start)), receiver.get_device_id(MeshCoordinate(end))
        route = sender.traffic.routes.route(*chips)
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
