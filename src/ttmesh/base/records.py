"""What the runtime reports: one record per mesh-wide happening, never one per chip.

Change the table behind `signals.ask("holdings")` first, emit second, and give ids in rising order, none twice: a
tracker that asks for the holdings between two records then counts nothing twice, and a forked child can tell what is
its own. Times are `time.time_ns()`.
"""

from __future__ import annotations

from typing import NamedTuple


class ChipFacts(NamedTuple):
    """What a tracker must know of one chip of an opened mesh."""

    physical_id: int
    logical_id: int
    coord: tuple[int, ...]
    arch: str
    dram_banks: int
    dram_bank_bytes: int
    l1_banks: int
    l1_bank_bytes: int
    is_remote: bool
    # Where the allocator's banks begin, and what follows them in each bank: needed to find holes.
    dram_base: int = 0
    l1_base: int = 0
    l1_small_bytes: int = 0
    trace_bytes: int = 0


class Opened(NamedTuple):
    """A mesh (or submesh) opened; chips in row-major order, the first is the coordinator."""

    mesh_id: int
    parent_id: int | None
    shape: tuple[int, ...]
    system: str
    chips: tuple[ChipFacts, ...]
    time_ns: int


class Closed(NamedTuple):
    """A mesh closed: whatever it still held is gone."""

    mesh_id: int
    time_ns: int


class Reserved(NamedTuple):
    """Memory the runtime itself uses, outside the allocator: shown as class SYSTEM, not counted as a buffer.

    A second one with the same mesh, chips, buffer type and label replaces the first.
    """

    mesh_id: int
    chips: tuple[int, ...]
    buffer_type: str
    size_bytes: int
    label: str
    time_ns: int


class Allocated(NamedTuple):
    """A buffer exists at one address on every chip named. `size_bytes` is per chip, all banks together.

    `chips` are physical ids, `bank_bytes` the extent in each bank from `address`; `label` names the operation.
    `buffer_type` is DRAM, L1, L1_SMALL, TRACE, or CB and KERNEL for what programs hold.
    """

    mesh_id: int
    buffer_id: int
    chips: tuple[int, ...]
    buffer_type: str
    address: int
    size_bytes: int
    bank_bytes: int
    banks: int
    page_bytes: int
    label: str
    time_ns: int


class Freed(NamedTuple):
    """The buffer of an earlier `Allocated` is gone from every chip it was on."""

    mesh_id: int
    buffer_id: int
    time_ns: int


class Enqueued(NamedTuple):
    """A command entered a queue."""

    mesh_id: int
    queue: int
    command_id: int
    name: str
    time_ns: int


class Finished(NamedTuple):
    """A command has run."""

    mesh_id: int
    queue: int
    command_id: int
    name: str
    time_ns: int
    duration_ns: int


class Crossed(NamedTuple):
    """Bytes went over one link, from one physical chip to a neighbour; chip -1 is the host."""

    source: int
    target: int
    size_bytes: int


class Marked(NamedTuple):
    """The user named a moment of the program."""

    label: str
    time_ns: int


Record = Opened | Closed | Reserved | Allocated | Freed | Enqueued | Finished | Crossed | Marked
