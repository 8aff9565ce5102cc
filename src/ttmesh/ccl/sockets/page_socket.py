"""A socket between the host and one core: pages in a FIFO, and the memory that the socket takes in L1."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import torch

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import NotEmulatedError, QueueError, require
from ttmesh.ccl.sockets.socket_config import MeshCoreCoord
from ttmesh.chip.memory import align_up
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice

CONFIG_BYTES = 64  # of L1 for a socket's counters, either direction (asked of TT-NN 0.81.1, n150 and p150)


class Reached:
    """A state that the host waits for, in the form in which queues are asked to run until it is reached."""

    def __init__(self, is_reached: Callable[[], bool]) -> None:
        self._is_reached = is_reached

    @property
    def done(self) -> bool:
        """Whether it is reached."""
        return self._is_reached()


class PageSocket:
    """What both directions share: a core, pages on their way, and the memory that the socket takes in L1."""

    PARTNER = ""  # the device operation at the other end

    def __init__(self, mesh_device: MeshDevice, core: MeshCoreCoord, fifo_size: int) -> None:
        self._mesh, self._core, self._fifo_bytes, self._page_bytes = mesh_device, core, fifo_size, 0
        self._check_core()
        if mesh_device.rank_block is not None:
            raise NotEmulatedError(
                f"a socket between the host and a core of {mesh_device!r}, whose chips several ranks hold, is not emulated",
                expected="a mesh of one process",
                fix="Open a mesh of this rank's own chips.",
            )
        self.pages: deque[torch.Tensor] = deque()
        self.lock = threading.Lock()
        self._config = self._allocate(CONFIG_BYTES, 1, "socket config")

    @property
    def alignment(self) -> int:
        """The alignment of pages and FIFOs: that of transfers over PCIe, 32 B on Wormhole and 64 on Blackhole, as DRAM's."""
        return self._mesh.chip.dram_alignment

    @property
    def capacity_bytes(self) -> int:
        """The bytes of whole pages that the FIFO holds."""
        return self._fifo_bytes - (self._fifo_bytes % self._page_bytes if self._page_bytes else 0)

    def get_page_size(self) -> int:
        """The bytes of a page; 0 until it is set."""
        return self._page_bytes

    def set_page_size(self, page_size: int) -> None:
        """Set the bytes of a page for what follows."""
        require(
            page_size > 0 and page_size % self.alignment == 0,
            "Page size must be PCIE-aligned.",
            f"a multiple of {self.alignment} B, not {page_size}",
            "Pass the aligned page size of the tensor.",
        )
        require(
            page_size <= self._fifo_bytes,
            "Page size must be less than or equal to the FIFO size.",
            f"at most {self._fifo_bytes} B, not {page_size}",
            "Make the socket with a larger fifo_size.",
        )
        self._page_bytes = page_size

    def get_config_buffer_address(self) -> int:
        """The address in L1 of the socket's counters."""
        return self._config.cell.address

    def get_active_cores(self) -> list[MeshCoreCoord]:
        """The core at the device's end."""
        return [self._core]

    def get_mesh_device(self) -> MeshDevice:
        """The mesh of the core."""
        return self._mesh

    def export_descriptor(self, socket_id: str) -> str:
        """Let another process connect to the socket: not emulated."""
        raise self._other_process_error()

    @classmethod
    def connect(cls, socket_id: str, timeout_ms: int | None = None) -> PageSocket:
        """Connect to a socket of another process: not emulated."""
        raise cls._other_process_error()

    @classmethod
    def _other_process_error(cls) -> NotEmulatedError:
        return NotEmulatedError(
            f"{cls.__name__}: a socket whose host end is in another process is not emulated",
            expected="both ends in the process that opened the mesh",
            fix="Write and read where the socket was made.",
        )

    def wait_until(self, is_reached: Callable[[], bool], waits_for: str) -> None:
        """Let the mesh's queues run until the state is reached; raise where nothing in them will bring it about."""
        reached = Reached(is_reached)
        for queue in self._mesh.queues:
            try:
                queue.finish_through(reached)
            except QueueError:  # the head of the queue waits too: that may be what the host waits for
                if not reached.done:
                    raise
        if not reached.done:
            raise QueueError(
                f"deadlock: the host waits for {waits_for}",
                expected="a device operation in a queue that takes part",
                fix=f"Call {self.PARTNER} before.",
            )

    def tell_device(self) -> None:
        """Let commands that wait for the host look again."""
        self._mesh.queues[0].schedule.nudge()

    def _check_core(self) -> None:
        coord, shape = self._core.device_coord, self._mesh.shape
        require(
            len(coord) == shape.dims() and all(at < extent for at, extent in zip(coord, shape, strict=True)),
            f"Coordinate {coord!r} not found in mesh {shape!r}",
            "a coordinate inside the mesh",
            "Pass a coordinate below the shape along every axis.",
        )
        core, grid = self._core.core_coord, self._mesh.compute_with_storage_grid_size()
        require(
            core.x < grid.x and core.y < grid.y,
            f"Invalid shard grid: shard core ({core.x}, {core.y}) has no L1 bank on this device, which has "
            f"{grid.x * grid.y} of them.",
            f"a core of the grid {grid.x}x{grid.y}",
            "Derive it from compute_with_storage_grid_size().",
        )

    def _check_fifo(self, text: str) -> None:
        require(
            self._fifo_bytes % self.alignment == 0,
            text,
            f"a multiple of {self.alignment} B, not {self._fifo_bytes}",
            "Round fifo_size up.",
        )

    def _allocate(self, bytes_per_core: int, cores: int, label: str) -> Buffer:
        size = align_up(bytes_per_core, self._mesh.heap.map.banks[BufferType.L1].alignment)
        return self._mesh.heap.allocate(BufferType.L1, size * cores, size, size, cores, label)

    def _count_pages(self, size_bytes: int, function: str) -> int:
        """The pages of a host tensor of this size."""
        require(
            self._page_bytes > 0,
            f"{function}: page_size must be set before calling {function}",
            "a page size",
            "Call set_page_size() with the aligned page size of the device tensor.",
        )
        require(
            size_bytes % self._page_bytes == 0,
            f"{function}: tensor data size ({size_bytes}) is not a multiple of page_size ({self._page_bytes})",
            "whole pages",
            "Pad the rows of the tensor to the page size.",
        )
        return size_bytes // self._page_bytes
