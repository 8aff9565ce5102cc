"""Global semaphores: a number at one L1 address on every core of a set, on every chip of a mesh."""

from __future__ import annotations

import torch

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Cells, Command


class GlobalSemaphore:
    """One counter per chip and core; kernels and collectives use it, the host can reset it."""

    __slots__ = ("_buffer", "_mesh", "cores")

    def __init__(
        self, mesh_device: MeshDevice, cores: CoreRangeSet, initial_value: int, buffer_type: BufferType
    ) -> None:
        self._mesh, self.cores = mesh_device, cores
        banks = mesh_device.heap.map.banks[buffer_type]
        size = banks.alignment  # one counter, padded to the smallest block
        self._buffer = mesh_device.heap.allocate(
            buffer_type, size * cores.num_cores(), size, size, cores.num_cores(), "global semaphore"
        )
        self.reset(initial_value)

    @property
    def mesh(self) -> MeshDevice:
        """The mesh whose chips hold it."""
        return self._mesh

    @property
    def buffer(self) -> Buffer:
        """Its memory: one page per core, in the order of `cores`."""
        return self._buffer

    def address(self) -> int:
        """The counter's L1 address."""
        return self._buffer.cell.address

    def reset(self, value: int) -> None:
        """Set every counter."""
        if not 0 <= value < 1 << 32:
            raise MeshError(
                f"semaphore value {value}", expected="0 to 4294967295", fix="Pass an unsigned 32-bit number."
            )
        cell = self._buffer.cell
        counters = torch.zeros([1] * cell.lane_axes + [cell.size_bytes // 4], dtype=torch.int64, device="cpu")
        counters[..., :: cell.page_bytes // 4] = value
        raw = counters.to(torch.uint32).view(torch.uint8)

        def write(reads: Cells, writes: Cells) -> None:
            writes[0].write_bytes(raw)

        self._mesh.queue().enqueue(Command("reset_global_semaphore", write, (), (cell,)))

    def values(self) -> torch.Tensor:
        """The counters per mesh coordinate and core."""
        cell = self._buffer.cell
        for queue in self._mesh.queues:
            queue.finish()
        raw = cell.read_bytes().contiguous().view(torch.uint32)
        return raw[..., :: cell.page_bytes // 4].to(torch.int64)


@name_wrong_types
def create_global_semaphore(
    mesh_device: MeshDevice,
    cores: CoreRangeSet | CoreRange,
    initial_value: int,
    buffer_type: BufferType = BufferType.L1,
) -> GlobalSemaphore:
    """A semaphore on these cores of every chip."""
    if buffer_type not in (BufferType.L1, BufferType.L1_SMALL):
        raise MeshError(
            f"Global semaphore can only be created for L1 buffer types, not {buffer_type}",
            expected="L1 or L1_SMALL",
            fix="Leave buffer_type out.",
        )
    where = cores if isinstance(cores, CoreRangeSet) else CoreRangeSet([cores])
    return GlobalSemaphore(mesh_device, where, initial_value, buffer_type)


def get_global_semaphore_address(global_semaphore: GlobalSemaphore) -> int:
    """The L1 address of a semaphore."""
    return global_semaphore.address()


def reset_global_semaphore_value(global_semaphore: GlobalSemaphore, reset_value: int) -> None:
    """Set every counter."""
    global_semaphore.reset(reset_value)
