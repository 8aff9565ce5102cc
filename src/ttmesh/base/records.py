"""What the runtime reports: one record per event on a mesh, never one per chip.

Change the table behind `signals.ask("holdings")` first, emit second, and give ids in rising order, none twice: a
tracker that asks for the holdings between two records then counts nothing twice, and a forked child, which asks for
"unused ids" (mesh, buffer) first, can tell what is its own. Times are `time.time_ns()`; buffers have none, because
reading the clock costs as much as making the record.

Records are made by the million: they are msgspec structs that the collector never visits, and those with a tag go over
the socket as they are. The limits are checked where they are decoded, not where they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**62)]
Chip = Annotated[int, Meta(ge=0, le=65535)]
Chips = Annotated[tuple[Chip, ...], Meta(max_length=1024)]
Name = Annotated[str, Meta(max_length=512)]
SYSTEM_CHARACTERS = 64
SystemName = Annotated[str, Meta(max_length=SYSTEM_CHARACTERS)]  # short: replies name it for every device
Arch = Annotated[str, Meta(max_length=32)]
Site = Annotated[str, Meta(max_length=4096)]
Extent = Annotated[tuple[Count, ...], Meta(max_length=8)]
Size = Annotated[int, Meta(ge=0, le=2**40)]  # of a buffer or a bank: a million of them still fit 64 bits
Banks = Annotated[int, Meta(ge=0, le=2**16)]
Neighbours = Annotated[tuple[tuple[Chip, Banks], ...], Meta(max_length=16)]
if TYPE_CHECKING:
    MemoryType = str  # the runtime has the names of an enum
else:
    MemoryType = Literal["DRAM", "L1", "L1_SMALL", "TRACE", "CB", "KERNEL"]


def shorten_system_name(name: str) -> str:
    """The name as records carry it: the end of a long one, which may be the path of a file."""
    return name if len(name) <= SYSTEM_CHARACTERS else "…" + name[1 - SYSTEM_CHARACTERS :]


class ChipFacts(Struct, array_like=True, frozen=True, gc=False):
    """What a tracker must know of one chip of an opened mesh."""

    physical_id: Chip
    logical_id: Chip
    coord: Extent
    arch: Arch
    dram_banks: Banks
    dram_bank_bytes: Size
    l1_banks: Banks
    l1_bank_bytes: Size
    is_remote: bool
    # Where the allocator's banks begin, and what comes after them in each bank: needed to find holes.
    dram_base: Count = 0
    l1_base: Count = 0
    l1_small_bytes: Size = 0
    trace_bytes: Size = 0
    position: Extent = ()  # row and column on the system's own grid, whatever the mesh's shape
    links: Neighbours = ()  # physical ids of chips one hop away, and the number of links to each


class Opened(Struct, array_like=True, tag=1, frozen=True, gc=False):
    """A mesh (or submesh) opened, or has another shape now; chips in row-major order, the first is the coordinator."""

    mesh_id: Count
    parent_id: Count | None
    shape: Extent
    system: SystemName
    chips: Annotated[tuple[ChipFacts, ...], Meta(max_length=1024)]
    time_ns: Count


class Closed(Struct, array_like=True, tag=2, frozen=True, gc=False):
    """A mesh was closed, and all that it still held was freed."""

    mesh_id: Count
    time_ns: Count


class Reserved(Struct, array_like=True, tag=3, frozen=True, gc=False):
    """Memory the runtime itself uses, outside the allocator: shown as class SYSTEM, not counted as a buffer.

    A second one with the same mesh, chips, buffer type and label replaces the first.
    """

    mesh_id: Count
    chips: Chips
    buffer_type: MemoryType
    size_bytes: Size
    label: str
    time_ns: Count


class Allocated(Struct, array_like=True, tag=4, gc=False):
    """A buffer exists at one address on every chip named. `size_bytes` is per chip, all banks together.

    `chips` are physical ids, `bank_bytes` the extent in each bank from `address`; `label` names the operation.
    `buffer_type` is DRAM, L1, L1_SMALL, TRACE, or CB and KERNEL for what programs hold. The runtime leaves the last two
    to trackers: the moment its batch was sent, and the place in the program that asked.
    """

    mesh_id: Count
    buffer_id: Count
    chips: Chips
    buffer_type: MemoryType
    address: Count
    size_bytes: Size
    bank_bytes: Size
    banks: Banks
    page_bytes: Size
    label: str
    time_ns: Count = 0
    site: Site = ""


class Freed(Struct, array_like=True, tag=5, frozen=True, gc=False):
    """The buffer of an earlier `Allocated` was freed on every chip it was on."""

    mesh_id: Count
    buffer_id: Count


class Marked(Struct, array_like=True, tag=6, frozen=True, gc=False):
    """The user named a moment of the program."""

    label: str
    time_ns: Count


class Enqueued(Struct, frozen=True, gc=False):
    """A command entered a queue."""

    mesh_id: int
    queue: int
    command_id: int
    name: str
    time_ns: int


class TensorFacts(Struct, frozen=True, gc=False):
    """A tensor on a buffer, described as in TT-NN's reports."""

    buffer_id: int
    shape: str
    dtype: str
    layout: str
    memory_config: str


class Finished(Struct, frozen=True, gc=False):
    """A command has run; the tensors are those it read, as they were before, and those it wrote, as they are now."""

    mesh_id: int
    queue: int
    command_id: int
    name: str
    time_ns: int
    duration_ns: int
    reads: tuple[TensorFacts, ...] = ()
    writes: tuple[TensorFacts, ...] = ()


class Called(Struct, frozen=True, gc=False):
    """A named operation was called; the commands until its `Returned` are its own."""

    name: str
    arguments: tuple[tuple[str, str], ...]


class Returned(Struct, frozen=True, gc=False):
    """The last named operation that was called has returned, or failed."""

    name: str


class LinkTransfer(Struct, frozen=True, gc=False):
    """Bytes went over one link of a system, from one physical chip to a neighbour; chip -1 is the host."""

    source: int
    target: int
    size_bytes: int
    system: str = ""


Event = Opened | Closed | Reserved | Allocated | Freed | Marked
Record = Event | Enqueued | Finished | Called | Returned | LinkTransfer
