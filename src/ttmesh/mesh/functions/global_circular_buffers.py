"""Global circular buffers: L1 on sender and receiver cores through which one program passes pages to another."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.chip.memory import align_up
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.cluster import get_l1_alignment

CONFIG_WORDS = 8  # of a core's page of the configuration, before the receivers' coordinates (tt-metal e4f9f0b)
WORD = 4

Mapping = Sequence[tuple[CoreCoord, CoreRangeSet]]


class GlobalCircularBuffer:
    """`size` bytes at one L1 address on every sender and receiver, and a page with the partners of each core."""

    __slots__ = ("_buffer", "_config", "_mapping", "_receivers", "_senders", "_size")

    def __init__(self, mesh_device: MeshDevice, mapping: Mapping, size: int, buffer_type: BufferType) -> None:
        self._mapping, self._size = tuple((sender, receivers) for sender, receivers in mapping), size
        self._senders, self._receivers = _collect_cores(mapping)
        both = self._senders.merge(self._receivers).num_cores()
        if both != self._senders.num_cores() + self._receivers.num_cores():
            raise _make_duplicate_error("Duplicate cores found")
        if buffer_type not in (BufferType.L1, BufferType.L1_SMALL):
            raise MeshError(
                f"Global circular buffer can only be created for L1 buffer types, not {buffer_type}",
                expected="L1 or L1_SMALL",
                fix="Leave buffer_type out.",
            )
        word_alignment, bank_alignment = get_l1_alignment(), mesh_device.heap.map.banks[buffer_type].alignment
        most = max(receivers.num_cores() for _, receivers in mapping)
        header = align_up((CONFIG_WORDS + 2 * most) * WORD, word_alignment)  # each receiver has an x and a y
        page = header + 2 * most * word_alignment  # and two counters, of pages sent and pages acknowledged

        def allocate_on_cores(page_bytes: int, label: str) -> Buffer:
            per_core = align_up(page_bytes, bank_alignment)
            return mesh_device.heap.allocate(buffer_type, per_core * both, page_bytes, per_core, both, label)

        self._buffer = allocate_on_cores(size, "global circular buffer")
        self._config = allocate_on_cores(page, "global circular buffer's configuration")

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
        """The type of the sender cores: "worker", the only one emulated."""
        return "worker"

    def sender_receiver_core_mapping(self) -> Mapping:
        """Each sender with its receivers."""
        return self._mapping

    @property
    def form(self) -> tuple[object, ...]:
        """The properties that decide a program; keys hold these, so that they do not keep its memory."""
        return (GlobalCircularBuffer, self._size, self._mapping)

    def buffer_address(self) -> int:
        """Its address in the L1 of its cores."""
        return self._buffer.cell.address


@name_wrong_types
def create_global_circular_buffer(
    mesh_device: MeshDevice,
    sender_receiver_core_mapping: Mapping,
    size: int,
    buffer_type: BufferType = BufferType.L1,
) -> GlobalCircularBuffer:
    """A buffer of `size` bytes on each of these cores of every chip; freed with the last reference to it."""
    return GlobalCircularBuffer(mesh_device, sender_receiver_core_mapping, size, buffer_type)


def _collect_cores(mapping: Mapping) -> tuple[CoreRangeSet, CoreRangeSet]:
    """The senders and the receivers; refuses a core that occurs twice."""
    if not mapping:
        raise MeshError(
            "At least one sender required",
            expected="pairs of a sender and its receivers",
            fix="Pass at least one (sender, receivers) pair.",
        )
    senders = CoreRangeSet().merge([CoreRange(sender, sender) for sender, _ in mapping])
    if senders.num_cores() != len(mapping):
        raise _make_duplicate_error("Duplicate sender cores found")
    receivers = CoreRangeSet()
    for _, cores in mapping:
        receivers = receivers.merge(cores)
    if receivers.num_cores() != sum(cores.num_cores() for _, cores in mapping):
        raise _make_duplicate_error("Duplicate receiver cores found")
    return senders, receivers


def _make_duplicate_error(wrong: str) -> MeshError:
    return MeshError(
        wrong,
        expected="each core once, as a sender or as a receiver",
        fix="Remove the repeated cores from the mapping.",
    )
