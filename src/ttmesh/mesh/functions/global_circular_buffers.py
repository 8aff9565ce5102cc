"""Global circular buffers: L1 on sender and receiver cores through which one program hands pages to another."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.mesh.allocation.buffer import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.cluster import get_l1_alignment

CONFIG_WORDS = 8  # of a core's page of the configuration, before the receivers' coordinates (tt-metal e4f9f0b)
WORD = 4

Mapping = Sequence[tuple[CoreCoord, CoreRangeSet]]


class GlobalCircularBuffer:
    """`size` bytes at one L1 address on every sender and receiver, and a page that tells each core its partners."""

    __slots__ = ("_buffer", "_config", "_mapping", "_receivers", "_senders", "_size")

    def __init__(self, mesh_device: MeshDevice, mapping: Mapping, size: int, kind: BufferType) -> None:
        self._mapping, self._size = tuple((sender, receivers) for sender, receivers in mapping), size
        self._senders, self._receivers = _distinct(mapping)
        both = self._senders.merge(self._receivers).num_cores()
        if both != self._senders.num_cores() + self._receivers.num_cores():
            raise _twice("Duplicate cores found")
        if kind not in (BufferType.L1, BufferType.L1_SMALL):
            raise MeshError(
                f"Global circular buffer can only be created for L1 buffer types, not {kind}",
                expected="L1 or L1_SMALL",
                fix="Leave buffer_type out.",
            )
        of_words, of_blocks = get_l1_alignment(), mesh_device.heap.map.banks[kind].alignment
        most = max(receivers.num_cores() for _, receivers in mapping)
        told = _aligned((CONFIG_WORDS + 2 * most) * WORD, of_words)  # each receiver has an x and a y
        page = told + 2 * most * of_words  # and two counters, of pages sent and pages acknowledged

        def on_every_core(page_bytes: int, label: str) -> Buffer:
            per_core = _aligned(page_bytes, of_blocks)
            return mesh_device.heap.allocate(kind, per_core * both, page_bytes, per_core, both, label)

        self._buffer = on_every_core(size, "global circular buffer")
        self._config = on_every_core(page, "global circular buffer's configuration")

    def size(self) -> int:
        """Bytes per core."""
        return self._size

    def sender_cores(self) -> CoreRangeSet:
        """The cores that fill it."""
        return self._senders

    def receiver_cores(self) -> CoreRangeSet:
        """The cores that empty it."""
        return self._receivers

    def sender_core_type(self) -> str:
        """What the senders are: "worker", the only kind emulated."""
        return "worker"

    def sender_receiver_core_mapping(self) -> Mapping:
        """Each sender with its receivers."""
        return self._mapping

    @property
    def form(self) -> tuple[object, ...]:
        """What of it decides a program; keys hold this, so that they do not hold its memory."""
        return (GlobalCircularBuffer, self._size, self._mapping)

    def buffer_address(self) -> int:
        """Where it lies in the L1 of its cores."""
        return self._buffer.cell.address


def create_global_circular_buffer(
    mesh_device: MeshDevice,
    sender_receiver_core_mapping: Mapping,
    size: int,
    buffer_type: BufferType = BufferType.L1,
) -> GlobalCircularBuffer:
    """A buffer of `size` bytes on each of these cores of every chip; freed with the last reference to it."""
    return GlobalCircularBuffer(mesh_device, sender_receiver_core_mapping, size, buffer_type)


def _distinct(mapping: Mapping) -> tuple[CoreRangeSet, CoreRangeSet]:
    """Senders and receivers, none named twice."""
    if not mapping:
        raise MeshError(
            "At least one sender required", expected="pairs of a sender and its receivers", fix="Name one pair or more."
        )
    senders = CoreRangeSet().merge([CoreRange(sender, sender) for sender, _ in mapping])
    if senders.num_cores() != len(mapping):
        raise _twice("Duplicate sender cores found")
    receivers = CoreRangeSet()
    for _, cores in mapping:
        receivers = receivers.merge(cores)
    if receivers.num_cores() != sum(cores.num_cores() for _, cores in mapping):
        raise _twice("Duplicate receiver cores found")
    return senders, receivers


def _twice(wrong: str) -> MeshError:
    return MeshError(wrong, expected="each core once, as a sender or as a receiver", fix="Change the mapping.")


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
