"""The server's replies to monitors: plain values, the same on both ends of the socket."""

from __future__ import annotations

from msgspec import Struct

from ttmesh.tracking.history import Point
from ttmesh.tracking.leftovers import Ended
from ttmesh.tracking.spans import Span

DeviceKey = tuple[str, str, int]  # host, system, physical id
BUFFER_CLASSES = ("DRAM", "TRACE", "L1", "L1_SMALL", "CB", "KERNEL")
POOLS: dict[str, tuple[str, ...]] = {
    "DRAM": ("DRAM", "TRACE", "SYSTEM_DRAM"),
    "L1": ("L1", "L1_SMALL", "CB", "KERNEL", "SYSTEM_L1"),
}


class Usage(Struct, frozen=True, array_like=True):
    """One class of memory on one device: bytes and buffers now, and the most bytes ever."""

    used_bytes: int
    buffers: int
    peak_bytes: int


class Pool(Struct, frozen=True):
    """A kind of memory of one device: all of it with the peak, and the free memory of one bank of its allocator."""

    name: str
    capacity_bytes: int
    used_bytes: int
    peak_bytes: int
    banks: int
    bank: Span
    free_in_bank_bytes: int
    largest_free_in_bank_bytes: int
    fragmentation: float


class DeviceState(Struct, frozen=True):
    """One physical chip of a system that is open."""

    host: str
    physical_id: int
    logical_id: int
    coord: tuple[int, ...]
    arch: str
    system: str
    is_remote: bool
    is_coordinator: bool
    usage: dict[str, Usage]
    pools: dict[str, Pool]
    position: tuple[int, ...] = ()  # row and column on the system's grid
    links: tuple[tuple[int, int], ...] = ()  # neighbours and the number of links to each

    @property
    def key(self) -> DeviceKey:
        """Its unique name: host, system, physical id."""
        return self.host, self.system, self.physical_id


class Mark(Struct, frozen=True, array_like=True):
    """A moment that the program named."""

    label: str
    time_ns: int


class LinkState(Struct, frozen=True, array_like=True, gc=False):
    """Bytes that one process sent over one link."""

    source: int
    target: int
    size_bytes: int


class ProcessState(Struct, frozen=True):
    """One connected process; `usage` is by system, physical id and class, `links` by system."""

    host: str
    pid: int
    started: int
    name: str
    joined_s: float
    in_step: bool
    records: int
    missed: int
    meshes: list[tuple[int, ...]]
    usage: dict[str, dict[int, dict[str, Usage]]]
    marks: list[Mark]
    links: dict[str, list[LinkState]]


class ServerState(Struct, frozen=True):
    """The server itself."""

    pid: int
    protocol: int
    started_s: float
    now_s: float
    records: int
    connections: int
    refused: int
    bytes_held: int = 0  # of its memory, by processes
    bytes_allowed: int = 0
    leftovers: int = 0  # how often something was left; a reply about leaks is new only if this is


class State(Struct, frozen=True):
    """All devices and processes, without single buffers."""

    server: ServerState
    devices: list[DeviceState]
    processes: list[ProcessState]
    left_out: int = 0  # processes that did not fit into one reply


class BufferState(Struct, frozen=True, gc=False):
    """One buffer on one device."""

    pid: int
    mesh_id: int
    buffer_id: int
    buffer_type: str
    address: int
    size_bytes: int
    bank_bytes: int
    label: str
    site: str
    time_ns: int


class Buffers(Struct, frozen=True):
    """The largest buffers of one device, how many more there are, and the reservations (label, type, bytes)."""

    buffers: list[BufferState]
    left_out: int
    reserved: list[tuple[str, str, int]]


class HistoryState(Struct, frozen=True):
    """One pool of one device over time; the device may be closed."""

    host: str
    system: str
    physical_id: int
    pool: str
    is_open: bool
    curve: int  # its points: the number of a list in `Histories.curves`


class Histories(Struct, frozen=True):
    """The requested histories of one device or all; those with the same points, as on most meshes, share a curve."""

    series: list[HistoryState] = []
    curves: list[list[Point]] = []
    left_out: int = 0

    def points_of(self, series: HistoryState) -> list[Point]:
        """The points of one of its series, oldest first."""
        return self.curves[series.curve]


class Leaks(Struct, frozen=True):
    """Processes that ended, the latest last, and what meshes of running processes still held when they closed."""

    ended: list[Ended]
    living: list[Ended]
    left_out: int = 0


Answer = State | Buffers | Histories | Leaks
