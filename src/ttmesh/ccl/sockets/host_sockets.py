"""Sockets between the host and one core, either way: whoever finds the FIFO full or empty waits."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from ttmesh.base.dtypes import BufferType, PrintedEnum
from ttmesh.base.errors import MeshError, NotEmulatedError, QueueError, require
from ttmesh.ccl.sockets.page_socket import PageSocket
from ttmesh.ccl.sockets.socket_config import MeshCoreCoord
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

HostData = Tensor | torch.Tensor | np.ndarray


class H2DMode(PrintedEnum):
    """Who moves the pages: the host writes them into L1, or the core reads them from the host's memory."""

    HOST_PUSH = 0
    DEVICE_PULL = 1


class H2DSocket(PageSocket):
    """The host writes pages; `ttnn.experimental.recv_async_h2d` takes them into a tensor."""

    PARTNER = "ttnn.experimental.recv_async_h2d"

    def __init__(
        self,
        mesh_device: MeshDevice,
        recv_core: MeshCoreCoord,
        buffer_type: BufferType,
        fifo_size: int,
        h2d_mode: H2DMode,
    ) -> None:
        super().__init__(mesh_device, recv_core, fifo_size)
        self._check_fifo("FIFO size must be PCIE-aligned.")
        require(
            buffer_type is BufferType.L1,
            "H2D sockets currently only support data buffers in SRAM.",
            "BufferType.L1",
            "Pass ttnn.BufferType.L1.",
        )
        self._mode = h2d_mode
        self._claimed_pages = 0  # that a running receive still waits for: it empties the FIFO while the host writes
        self._data: Buffer | None = None
        if h2d_mode is H2DMode.HOST_PUSH:  # on every worker core, with room to align its start
            cores = mesh_device.heap.map.banks[BufferType.L1].count
            self._data = self._allocate(fifo_size + self.alignment, cores, "socket fifo")

    def get_h2d_mode(self) -> H2DMode:
        """Who moves the pages."""
        return self._mode

    def write_tensor(self, tensor: HostData) -> None:
        """Write the bytes of a host tensor, page by page; waits while the FIFO is full."""
        if isinstance(tensor, Tensor) and tensor.device() is not None:
            raise _not_on_host("write_tensor")
        raw = _pack_host_tensor(tensor) if isinstance(tensor, Tensor) else _view_bytes(tensor)
        pages = raw.clone().reshape(self._count_pages(raw.numel(), "write_tensor"), -1)
        for page in pages:
            self.wait_until(self._has_room, "room in the FIFO of an H2DSocket")
            with self.lock:
                self.pages.append(page)
            self.tell_device()

    def write(self, data: object, num_pages: int) -> None:
        """Write pages from a pointer; refused, because Python has no pointer to pass."""
        raise _pointer_error("write", "write_tensor")

    def barrier(self, timeout_ms: int | None = None) -> None:
        """Return once the device has taken everything; with a timeout raise TT-NN's error instead of the deadlock."""
        try:
            self.wait_until(lambda: not self.pages, "the device to take the pages of an H2DSocket")
        except QueueError:
            if timeout_ms is None:
                raise
            raise MeshError(
                "Timeout waiting for device to send acknowledgement over H2D socket.",
                expected=f"a receive of the {len(self.pages)} pages that were written",
                fix=f"Call {self.PARTNER} before.",
            ) from None

    def claim(self, count: int) -> bool:
        """Whether this number of pages has arrived; if not, a receive at the head of its queue waits for them."""
        with self.lock:
            missing = count - len(self.pages)
            self._claimed_pages = max(0, missing)
            return missing <= 0

    def take(self, count: int) -> list[torch.Tensor]:
        """Take the oldest pages."""
        with self.lock:
            if len(self.pages) < count:
                raise QueueError(
                    f"{len(self.pages)} of {count} pages were written to an H2DSocket",
                    expected="as many pages as the tensor has",
                    fix="Write them before the trace is replayed.",
                )
            self._claimed_pages = 0
            return [self.pages.popleft() for _ in range(count)]

    def _has_room(self) -> bool:
        with self.lock:
            used = (len(self.pages) + 1) * self._page_bytes
            return self._claimed_pages > 0 or used <= self.capacity_bytes


class D2HSocket(PageSocket):
    """`ttnn.experimental.send_async_d2h` sends the pages of a tensor; the host reads them."""

    PARTNER = "ttnn.experimental.send_async_d2h"

    def __init__(self, mesh_device: MeshDevice, sender_core: MeshCoreCoord, fifo_size: int) -> None:
        super().__init__(mesh_device, sender_core, fifo_size)
        self._check_fifo("FIFO size must be PCIe-aligned.")
        self._unacknowledged_pages = 0  # read without telling the device, so their room is not free yet

    def read_tensor(self, tensor: HostData, notify_sender: bool = True) -> None:
        """Fill a host tensor with pages, waiting for each; without `notify_sender` their room stays taken for now."""
        if isinstance(tensor, Tensor) and tensor.device() is not None:
            raise _not_on_host("read_tensor")
        if isinstance(tensor, Tensor):
            raw = torch.zeros(tensor.spec.packed_size_bytes, dtype=torch.uint8, device="cpu")
        else:
            raw = _view_bytes(tensor, writes=True)
        for index in range(self._count_pages(raw.numel(), "read_tensor")):
            self.wait_until(self.has_data, "a page in a D2HSocket")
            with self.lock:
                page = self.pages.popleft()
                self._unacknowledged_pages = 0 if notify_sender else self._unacknowledged_pages + 1
            if page.device.type != "meta":  # a dry run has no values
                raw[index * self._page_bytes :][: self._page_bytes] = page
            self.tell_device()
        if isinstance(tensor, Tensor):
            axes = len(tensor.mesh_shape)
            tensor.lanes = tensor.spec.from_bytes(raw.reshape(*[1] * axes, -1), axes)

    def read(self, data: object, num_pages: int, notify_sender: bool = True) -> None:
        """Read pages to a pointer; refused, because Python has no pointer to pass."""
        raise _pointer_error("read", "read_tensor")

    def has_data(self) -> bool:
        """Whether a page can be read."""
        return bool(self.pages)

    def discard_pending_pages(self) -> int:
        """Forget the pages that were not read yet; how many they were."""
        with self.lock:
            count = len(self.pages)
            self.pages.clear()
            self._unacknowledged_pages = 0
        self.tell_device()
        return count

    def barrier(self, timeout_ms: int | None = None) -> None:
        """Return once the host has read everything; nobody else reads, so pages that are left are an error."""
        if not (self.pages or self._unacknowledged_pages):
            return
        text = "Timeout waiting for host to acknowledge data over D2H socket."
        raise QueueError(
            "deadlock: the host waits for itself to read from a D2HSocket" if timeout_ms is None else text,
            expected="pages that are all read, with notify_sender",
            fix="Call read_tensor before barrier().",
        )

    def put(self, pages: list[torch.Tensor]) -> None:
        """Send pages; those that the FIFO does not hold follow while the host reads."""
        with self.lock:
            self.pages.extend(pages)

    def is_sent(self) -> bool:
        """Whether all pages are in the FIFO, so that the sender has ended."""
        with self.lock:
            return (len(self.pages) + self._unacknowledged_pages) * self._page_bytes <= self.capacity_bytes


def _view_bytes(data: torch.Tensor | np.ndarray, *, writes: bool = False) -> torch.Tensor:
    """The bytes of a torch tensor or NumPy array, in place if it is written to."""
    tensor = torch.from_numpy(data) if isinstance(data, np.ndarray) else data
    if writes and not tensor.is_contiguous():
        raise MeshError(
            "read_tensor got a tensor that is not contiguous: the pages would go into a copy of it",
            expected="a contiguous tensor",
            fix="Read into a new tensor and permute that.",
        )
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def _pack_host_tensor(tensor: Tensor) -> torch.Tensor:
    axes = len(tensor.mesh_shape)
    require(
        prod(tensor.mesh_shape) == 1,
        "write_tensor: tensor must be on host (HostStorage)",
        "one shard",
        "Pass one of get_device_tensors().",
    )
    return tensor.spec.to_bytes(tensor.lanes, axes).reshape(-1)


def _not_on_host(function: str) -> MeshError:
    return MeshError(
        f"{function}: tensor must be on host (HostStorage)",
        expected="a host tensor",
        fix="Pass a torch tensor, or tensor.cpu().",
    )


def _pointer_error(function: str, instead: str) -> NotEmulatedError:
    return NotEmulatedError(
        f"{function} takes a pointer, which is not emulated", expected="a host tensor", fix=f"Call {instead}."
    )
