"""The configuration of a socket: cores, connections, the memory of its FIFO, and the routes of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ttmesh.base.argument_types import refuse_wrong_fields
from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType, PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice

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

    def __repr__(self) -> str:
        return f"MeshCoreCoord(device={self.device_coord!r}, core=({self.core_coord.x},{self.core_coord.y}))"


@refuse_wrong_fields
@dataclass(frozen=True)
class SocketConnection:
    """The cores at both ends of one stream."""

    sender_core: MeshCoreCoord
    receiver_core: MeshCoreCoord


@refuse_wrong_fields
@dataclass
class SocketMemoryConfig:
    """The memory and size of the receiver's FIFO per connection; sub-devices have no effect on the emulation."""

    socket_storage_type: BufferType
    fifo_size: int
    sender_sub_device: SubDeviceId | None = None
    receiver_sub_device: SubDeviceId | None = None
    per_core_allocation: bool = False


class SocketConfig:
    """The connections of a socket and their memory; with ranks or mesh ids if the ends are in different processes."""

    def __init__(
        self,
        connections: Sequence[SocketConnection],
        memory_config: SocketMemoryConfig,
        sender_rank: int | None = None,
        receiver_rank: int | None = None,
        *,
        sender_mesh_id: int | None = None,
        receiver_mesh_id: int | None = None,
    ) -> None:
        self.connections = list(connections)
        self.memory_config = memory_config
        self.sender_rank, self.receiver_rank = sender_rank, receiver_rank
        self.sender_mesh_id, self.receiver_mesh_id = sender_mesh_id, receiver_mesh_id

    def check(self) -> None:
        """Raise TT-Metal's errors for invalid configurations (tt-metal e4f9f0b, distributed/mesh_socket*.cpp)."""
        if not self.connections:
            raise MeshError(
                "Socket connection config cannot be empty.",
                expected="one connection or more",
                fix="Pass a SocketConnection.",
            )
        receivers = [connection.receiver_core for connection in self.connections]
        if len(set(receivers)) != len(receivers):
            raise MeshError(
                "Cannot reuse receiver cores in a single socket.",
                expected="a different receiver core for every connection",
                fix="Give the connections different receiver cores.",
            )
        memory = self.memory_config
        if memory.per_core_allocation and memory.socket_storage_type is not BufferType.L1:
            raise MeshError(
                f"Per-core socket allocation is only supported for L1 storage (got {memory.socket_storage_type.name}).",
                expected="BufferType.L1",
                fix="Change the storage type, or leave per_core_allocation out.",
            )
        if memory.per_core_allocation and len(receivers) != 1:
            raise MeshError(
                "Per-core socket allocation (v1) supports exactly one distinct receiver core (device + core) per "
                f"socket, but the connection config resolves to {len(receivers)} distinct (device, core) receivers.",
                expected="one receiver core",
                fix="Make a socket for each, or leave per_core_allocation out.",
            )

    def pairs(self) -> tuple[tuple[Coord, Coord], ...]:
        """The connected chips, each pair once: (sender's coordinate, receiver's)."""
        ends = ((c.sender_core.device_coord, c.receiver_core.device_coord) for c in self.connections)
        return tuple(dict.fromkeys((tuple(start), tuple(end)) for start, end in ends))

    @property
    def streams(self) -> int:
        """The number of connections per pair of chips."""
        return max(1, len(self.connections) // len(self.pairs()))

    @property
    def capacity_bytes(self) -> int:
        """The capacity of the FIFOs between one pair of chips."""
        return self.memory_config.fifo_size * self.streams


@dataclass(frozen=True)
class SocketRoutes:
    """Which lane of the sender's mesh goes to which lane of the receiver's."""

    pairs: tuple[tuple[Coord, Coord], ...]
    sender_shape: Coord
    receiver_shape: Coord

    @property
    def starts(self) -> frozenset[Coord]:
        """The sending coordinates."""
        return frozenset(start for start, _ in self.pairs)

    @property
    def ends(self) -> frozenset[Coord]:
        """The receiving coordinates."""
        return frozenset(end for _, end in self.pairs)

    @property
    def is_identity(self) -> bool:
        """Whether every chip sends to the chip with its coordinate: then lanes are sent as stored, replicated ones once."""
        size = MeshShape(self.sender_shape).mesh_size()
        same = self.sender_shape == self.receiver_shape and all(start == end for start, end in self.pairs)
        return same and len(self.pairs) == size

    @property
    def covers(self) -> bool:
        """Whether every chip of the receiver gets a lane."""
        return len(self.ends) == MeshShape(self.receiver_shape).mesh_size()

    def select_lanes(self, lanes: torch.Tensor) -> torch.Tensor:
        """The lanes to send: as stored, or one per pair (a single one if all are equal)."""
        if self.is_identity:
            return lanes
        axes = len(self.sender_shape)
        if all(extent == 1 for extent in lanes.shape[:axes]):
            return lanes.reshape(1, *lanes.shape[axes:])
        extents = lanes.shape[:axes]
        return torch.stack([lanes[tuple(map(min, start, (n - 1 for n in extents)))] for start, _ in self.pairs])

    def to_receiver_lanes(self, sent: torch.Tensor) -> torch.Tensor:
        """Received lanes as lanes of the receiver's mesh; zeros on chips that got none."""
        if self.is_identity:
            return sent
        axes, local = len(self.receiver_shape), sent.shape[1:]
        if sent.shape[0] == 1:
            return sent.reshape(*[1] * axes, *local)
        lanes = sent.new_zeros(*self.receiver_shape, *local)
        for lane, (_, end) in zip(sent, self.pairs, strict=True):
            lanes[end] = lane
        return lanes


def check_coordinates(mesh: MeshDevice, coords: Iterable[Coord]) -> None:
    """Raise for coordinates outside the mesh."""
    for coord in coords:
        mesh.chip_at(MeshCoordinate(coord))


def allocate_fifo(mesh: MeshDevice, config: SocketConfig) -> Buffer:
    """Allocate the receiver's FIFO."""
    memory, streams = config.memory_config, config.streams
    buffer_type = memory.socket_storage_type
    alignment = mesh.heap.map.banks[buffer_type].alignment
    size = -(-memory.fifo_size // alignment) * alignment
    return mesh.heap.allocate(buffer_type, size * streams, size, size, streams, "socket fifo")
