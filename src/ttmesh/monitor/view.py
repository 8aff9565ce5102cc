"""The view model: what a monitor shows, as plain values, for every display."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.tracking.state import BUFFER_CLASSES, POOLS, DeviceKey, DeviceState, Histories, ProcessState, State, Usage

WARM, HOT = 0.75, 0.90  # colour thresholds of the first allocation monitor
SORTS = ("memory", "dram", "l1", "pid", "name", "records")

NOTHING = Usage(0, 0, 0)


class ViewError(MeshError):
    """A view option that does not exist."""


@dataclass(frozen=True)
class Choice:
    """The user's view options."""

    devices: frozenset[int] = frozenset()
    sort: str = "memory"
    text: str = ""

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise ViewError(
                f"no order named {self.sort!r}", expected=one_of(SORTS), fix=suggest_names(self.sort, SORTS)
            )


EVERYTHING = Choice()


@dataclass(frozen=True)
class Segment:
    """The segment of a bar for one class of memory."""

    memory_class: str
    used_bytes: int
    buffers: int
    peak_bytes: int
    share: float


@dataclass(frozen=True)
class Bar:
    """One pool of one device: DRAM or L1."""

    pool: str
    used_bytes: int
    peak_bytes: int
    capacity_bytes: int
    share: float
    level: str
    segments: tuple[Segment, ...]
    largest_free_bytes: int
    fragmentation: float
    trend: tuple[int, ...]

    @property
    def percent(self) -> str:
        """How full, or a question mark while the capacity is unknown."""
        return f"{100 * self.share:.1f}%" if self.capacity_bytes else "?"


@dataclass(frozen=True)
class DeviceView:
    """One chip, by its physical id; with its logical id and mesh coordinate."""

    host: str
    physical_id: int
    logical_id: int
    coord: tuple[int, ...]
    arch: str
    system: str
    is_remote: bool
    is_coordinator: bool
    buffers: int
    bars: tuple[Bar, ...]
    position: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    names_system: bool = False  # other systems of its host are open too

    @property
    def key(self) -> DeviceKey:
        """Its unique name among all hosts and systems."""
        return (self.host, self.system, self.physical_id)

    @property
    def short_title(self) -> str:
        """Its id, with R for a chip behind another one."""
        return f"{self.physical_id}{'R' if self.is_remote else ''}"

    @property
    def title(self) -> str:
        """Its id with the host when it is not this one, and with the system when there are several."""
        system = f"/{self.system}" if self.names_system else ""
        return self.short_title + (f"@{self.host}" if self.host else "") + system

    @property
    def place(self) -> str:
        """Its mesh coordinate, as (row, column)."""
        return f"({', '.join(map(str, self.coord))})" if self.coord else ""

    def bar(self, pool: str) -> Bar:
        """The bar of that pool."""
        return next(bar for bar in self.bars if bar.pool == pool)


@dataclass(frozen=True)
class LinkView:
    """Bytes that one process sent over one link of a system; chip -1 is the host."""

    system: str
    source: int
    target: int
    size_bytes: int


@dataclass(frozen=True)
class ProcessView:
    """One process; bytes are summed over its chips."""

    host: str
    pid: int
    name: str
    systems: tuple[str, ...]
    devices: tuple[int, ...]
    meshes: tuple[tuple[int, ...], ...]
    used_bytes: dict[str, int]
    buffers: int
    records: int
    missed: int
    in_step: bool
    last_mark: str
    links: tuple[LinkView, ...] = ()

    @property
    def title(self) -> str:
        """Its id, with the host when it is not this one."""
        return f"{self.pid}" + (f"@{self.host}" if self.host else "")

    @property
    def total_bytes(self) -> int:
        """All classes together, the system's included."""
        return sum(self.used_bytes.values())

    def pool_bytes(self, pool: str) -> int:
        """What it holds of DRAM or L1."""
        return sum(self.used_bytes.get(kind, 0) for kind in POOLS[pool])


@dataclass(frozen=True)
class View:
    """Everything on one page."""

    time_s: float
    uptime_s: float
    records: int
    missed: int
    devices: tuple[DeviceView, ...]
    processes: tuple[ProcessView, ...]
    hidden_devices: tuple[int, ...]
    leftovers: int = 0  # changes when something was left, see ServerState
    notes: tuple[str, ...] = ()  # what else a reader must know, such as that something is not shown

    @property
    def buffers(self) -> int:
        """Buffers, counted on every device."""
        return sum(device.buffers for device in self.devices)


def build(state: State, histories: Histories | None = None, choice: Choice = EVERYTHING, *, problem: str = "") -> View:
    """The view of a state; trends come from the histories when there are any, a problem is noted."""
    trends = _trends(histories)
    several = _hosts_with_several_systems(state.devices)
    devices = [
        _device(d, trends, names_system=d.host in several)
        for d in state.devices
        if not choice.devices or d.physical_id in choice.devices
    ]
    processes = [_process(p) for p in state.processes]
    shown = [p for p in processes if _matches(p, choice)]
    return View(
        time_s=state.server.now_s,
        uptime_s=state.server.now_s - state.server.started_s,
        records=state.server.records,
        missed=sum(p.missed for p in processes),
        devices=tuple(devices),
        processes=tuple(sorted(shown, key=lambda p: _order(p, choice.sort))),
        hidden_devices=tuple(sorted({d.physical_id for d in state.devices} - {d.physical_id for d in devices})),
        leftovers=state.server.leftovers,
        notes=tuple(_notes(state, histories, problem)),
    )


def _notes(state: State, histories: Histories | None, problem: str) -> Iterator[str]:
    if problem:
        yield f"Only the chips of real tt-metal are shown: {problem}"
    if state.left_out:
        yield f"{state.left_out} more processes are not shown: the server's reply would be too large."
    if histories is not None and histories.left_out:
        yield f"{histories.left_out} more histories are not shown: the server's reply would be too large."


def class_name(memory_class: str) -> str:
    """The displayed name of a class of memory: the system's is one, in DRAM as in L1."""
    return "SYSTEM" if memory_class.startswith("SYSTEM") else memory_class


def level(share: float) -> str:
    """The colour level of a bar: calm, warm or hot."""
    return "hot" if share >= HOT else "warm" if share >= WARM else "calm"


def _hosts_with_several_systems(devices: Iterable[DeviceState]) -> set[str]:
    """Hosts on which an id alone does not name a device."""
    seen: dict[tuple[str, int], str] = {}
    return {d.host for d in devices if seen.setdefault((d.host, d.physical_id), d.system) != d.system}


Trends = dict[tuple[DeviceKey, str], tuple[int, ...]]  # by device and pool


def _device(device: DeviceState, trends: Trends, *, names_system: bool) -> DeviceView:
    return DeviceView(
        host=device.host,
        physical_id=device.physical_id,
        logical_id=device.logical_id,
        coord=device.coord,
        arch=device.arch,
        system=device.system,
        is_remote=device.is_remote,
        is_coordinator=device.is_coordinator,
        buffers=sum(device.usage[kind].buffers for kind in BUFFER_CLASSES if kind in device.usage),
        bars=tuple(_bar(device, pool, trends) for pool in POOLS),
        position=device.position,
        links=device.links,
        names_system=names_system,
    )


def _bar(device: DeviceState, name: str, trends: Trends) -> Bar:
    pool = device.pools[name]
    held = [(kind, device.usage.get(kind, NOTHING)) for kind in POOLS[name]]
    capacity = pool.capacity_bytes
    share = pool.used_bytes / capacity if capacity else 0.0
    return Bar(
        pool=name,
        used_bytes=pool.used_bytes,
        peak_bytes=pool.peak_bytes,
        capacity_bytes=capacity,
        share=share,
        level=level(share),
        segments=tuple(
            Segment(kind, use.used_bytes, use.buffers, use.peak_bytes, use.used_bytes / capacity if capacity else 0.0)
            for kind, use in held
            if use.peak_bytes
        ),
        largest_free_bytes=pool.largest_free_in_bank_bytes * pool.banks,
        fragmentation=pool.fragmentation,
        trend=trends.get((device.key, name), ()),
    )


def _trends(histories: Histories | None) -> Trends:
    """The last values of every pool."""
    if histories is None:
        return {}
    curves = [tuple([point.last for point in points]) for points in histories.curves]
    return {((s.host, s.system, s.physical_id), s.pool): curves[s.curve] for s in histories.series}


def _process(process: ProcessState) -> ProcessView:
    used: dict[str, int] = {}
    buffers = 0
    for classes in (classes for chips in process.usage.values() for classes in chips.values()):
        for kind, usage in classes.items():
            used[kind] = used.get(kind, 0) + usage.used_bytes
            buffers += usage.buffers
    return ProcessView(
        host=printable(process.host),
        pid=process.pid,
        name=printable(process.name),
        systems=tuple(sorted(process.usage)),
        devices=tuple(sorted({chip for chips in process.usage.values() for chip in chips})),
        meshes=tuple(process.meshes),
        used_bytes=used,
        buffers=buffers,
        records=process.records,
        missed=process.missed,
        in_step=process.in_step,
        last_mark=printable(process.marks[-1].label) if process.marks else "",
        links=tuple(
            LinkView(system, link.source, link.target, link.size_bytes)
            for system, links in process.links.items()
            for link in links
        ),
    )


def _matches(process: ProcessView, choice: Choice) -> bool:
    if choice.devices and process.devices and not choice.devices & set(process.devices):
        return False
    text = choice.text.lower()
    return not text or text in process.name.lower() or text in str(process.pid)


def _order(process: ProcessView, sort: str) -> tuple[object, ...]:
    keys: dict[str, tuple[object, ...]] = {
        "memory": (-process.total_bytes,),
        "dram": (-process.pool_bytes("DRAM"),),
        "l1": (-process.pool_bytes("L1"),),
        "pid": (),
        "name": (process.name,),
        "records": (-process.records,),
    }
    return (*keys[sort], process.host, process.pid)


def printable(text: str) -> str:
    """Untrusted text without terminal control characters; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)


def format_count(number: int, noun: str) -> str:
    """1 process, 2 processes."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def nothing_shown(view: View) -> str:
    """Why no devices or processes are shown and what to do; empty if there are some."""
    lines = []
    if not view.devices:
        known = device_ranges(view.hidden_devices)
        lines.append(f"No such device was opened; those that were: {known}." if known else "No device is open yet.")
    if not view.processes and not view.hidden_devices:
        lines.append("No process is connected: start one with TT_ALLOC_TRACKING_ENABLED=1 python your_program.py")
    return "\n\n".join(lines)


def short_name(name: str, width: int) -> str:
    """A command line shortened to a width: folders are dropped first, then the end."""
    if len(name) > width:
        name = " ".join(word.rpartition("/")[2] or word for word in name.split(" "))
    return name if len(name) <= width else f"{name[: width - 1]}…"


def device_ranges(ids: Iterable[int]) -> str:
    """Ids as ranges: 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in runs)
