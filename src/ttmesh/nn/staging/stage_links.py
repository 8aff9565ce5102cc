"""Links between neighbouring stages: a socket per direction, opened when the first tensor is sent."""

from __future__ import annotations

from collections import deque

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.ccl.sockets.mesh_sockets import MeshSocket, create_socket_pair, recv_async, send_async
from ttmesh.ccl.sockets.socket_config import MeshCoreCoord, SocketConfig, SocketConnection, SocketMemoryConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import allocate_tensor_on_device


class StageLink:
    """One direction between two meshes of one shape; every chip sends to the chip at its coordinate."""

    def __init__(self, sender: MeshDevice, receiver: MeshDevice) -> None:
        self._sender, self._receiver = sender, receiver
        self._ends: tuple[MeshSocket, MeshSocket] | None = None
        self._waiting: deque[TensorSpec] = deque()

    def send(self, tensor: Tensor) -> None:
        """Start sending a tensor."""
        socket, _ = self._open_sockets(tensor.spec.packed_size_bytes)
        send_async(tensor, socket)
        self._waiting.append(tensor.spec)

    def receive(self) -> Tensor:
        """The oldest tensor that was sent and not yet received."""
        assert self._ends is not None, "stages receive what was sent"
        spec = self._waiting.popleft()
        arrived = allocate_tensor_on_device(spec, self._receiver)
        recv_async(arrived, self._ends[1])
        return arrived

    def _open_sockets(self, size_bytes: int) -> tuple[MeshSocket, MeshSocket]:
        """Sockets with a buffer for one message of this size; a larger message waits for its receive."""
        if self._ends is None:
            core = CoreCoord(0, 0)
            pairs = [MeshCoreCoord(coord, core) for coord in MeshCoordinateRange(self._sender.shape)]
            memory = SocketMemoryConfig(BufferType.DRAM, size_bytes)
            config = SocketConfig([SocketConnection(pair, pair) for pair in pairs], memory)
            self._ends = create_socket_pair(self._sender, self._receiver, config)
        return self._ends
