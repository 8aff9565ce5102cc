"""What the chips hold while a program runs: every allocation and free, who asked, and what crossed which link."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ttmesh.base.errors import OutOfMemoryError
from ttmesh.base.records import Allocated, Closed, Event, Freed, LinkTransfer, Opened, Reserved
from ttmesh.base.signals import signals
from ttmesh.dryrun.chip_peaks import ChipPeaks, Peak
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.observer import Step, Watcher, observer
from ttmesh.tensor.tensor import Tensor
from ttmesh.tracking.client import call_site

KINDS = ("weights and inputs", "kv cache", "activations", "circular buffers", "trace", "system")
UPLOADS = ("from_torch", "to_device", "as_tensor", "zeros", "ones", "full", "empty", "load_tensor", "upload")
HOST = -1
MOST_CROSSINGS = 4096  # kept before they are summed up


class _Crossings:
    """What crossed links at once, and how often: a collective that repeats gives the same records."""

    __slots__ = ("records", "times")

    def __init__(self, records: Sequence[LinkTransfer]) -> None:
        self.records, self.times = records, 1


class Use:
    """A buffer that was allocated: how much it takes on every one of its chips, who asked, and as what."""

    __slots__ = ("address", "bank_bytes", "chips", "kind", "label", "memory", "mesh_id", "site", "size_bytes")

    def __init__(self, record: Allocated, site: str, kind: str) -> None:
        self.mesh_id, self.chips = record.mesh_id, record.chips
        self.memory = "L1" if record.buffer_type == "L1_SMALL" else str(record.buffer_type)
        self.address, self.bank_bytes, self.size_bytes = record.address, record.bank_bytes, record.size_bytes
        self.label, self.site, self.kind = record.label, site, kind


class Refusal(NamedTuple):
    """Memory that was asked for and not there."""

    error: OutOfMemoryError
    event: int  # so many allocations and frees had happened
    operation: str
    site: str


class MemoryLog(Watcher):
    """Listens to the runtime from `start` to `stop`."""

    needs_calls = False

    def __init__(self, progress: Callable[[int], None] | None = None) -> None:
        self.meshes: list[Opened] = []
        self.reserved: list[Reserved] = []
        self.events: list[tuple[int, int, int]] = []  # buffer id, 1 or -1 for allocated or freed, operation number
        self.uses: dict[int, Use] = {}
        self.live: dict[int, Use] = {}
        self.operations: list[str] = []  # names of device operations in the order they ran
        self.calls = Counter[str]()
        self.program_runs = 0
        self.programs: set[object] = set()
        self.circular_buffers: tuple[int, str] = (0, "")  # the most per core, and the operation
        self._links = Counter[tuple[int, int]]()
        self._crossings: dict[int, _Crossings] = {}  # that repeat, by identity
        self.collectives: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.chips = ChipPeaks()
        self.failures: list[Refusal] = []
        self._l1_cores: dict[int, int] = {}  # of every chip
        self._plans: dict[int, Plan] = {}  # that ran, by identity
        self._progress = progress
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._stop = signals.listen(self._hear, crossings=self._count_crossings)
        observer.add(self)
        OutOfMemoryError.watchers.append(self._note_failure)

    def stop(self) -> None:
        """Listen no more."""
        OutOfMemoryError.watchers.remove(self._note_failure)
        observer.remove(self)
        if self._stop is not None:
            self._stop()
            self._stop = None

    @property
    def peaks(self) -> dict[tuple[int, str], Peak]:
        """The most that every chip held, by chip and memory."""
        return {(chip, memory): peak for chip, memory, peak in self.chips.by_chip()}

    def after_run(self, step: Step) -> None:
        """Count an operation and its device programs; a collective by the bytes that every chip gives to it."""
        plan = step.plan
        self.operations.append(plan.name)
        self.calls[plan.name] += 1
        self.program_runs += plan.program_count
        if id(plan) not in self._plans:
            self._plans[id(plan)] = plan
            self.programs.update(plan.programs)
        if plan.circular_buffer_bytes:
            self._count_circular_buffers(plan.name, plan.circular_buffer_bytes)
        if plan.exchanged_bytes is not None:
            self.collectives[plan.name][plan.exchanged_bytes] += 1
        if "cache" in plan.name:
            self._mark_caches(step)
        if self._progress is not None:
            self._progress(len(self.operations))

    def _note_failure(self, failure: OutOfMemoryError) -> None:
        self.failures.append(Refusal(failure, len(self.events), failure.label, call_site().partition("\n")[0]))

    def _count_circular_buffers(self, name: str, per_core: int) -> None:
        if per_core > self.circular_buffers[0]:
            self.circular_buffers = (per_core, name)
        for held in self.chips.sets:
            cores = self._l1_cores[next(iter(held.chips))]
            held.note_circular_buffers(per_core * cores, len(self.events), name)

    def _mark_caches(self, step: Step) -> None:
        """What a cache operation reads and writes is a kv cache."""
        results = step.result if isinstance(step.result, list | tuple) else [step.result]
        written = {tensor.buffer.cell.buffer_id for tensor in results if isinstance(tensor, Tensor)}
        for cell in step.reads:
            use = self.uses.get(cell.buffer_id) if cell.buffer_id in written else None
            if use is not None:
                use.kind = "kv cache"

    def _hear(self, record: Event) -> None:
        if isinstance(record, Allocated):
            site = call_site()
            use = Use(record, site, _guess_kind(record, site))
            self.uses[record.buffer_id] = self.live[record.buffer_id] = use
            self.events.append((record.buffer_id, 1, len(self.operations)))
            for held in self.chips.sets_of(use.chips):
                held.add(use.memory, use.size_bytes, len(self.events), use.label)
        elif isinstance(record, Freed):
            freed = self.live.pop(record.buffer_id, None)
            if freed is not None:
                self.events.append((record.buffer_id, -1, len(self.operations)))
                for held in self.chips.sets_of(freed.chips):
                    held.used[freed.memory] -= freed.size_bytes
        elif isinstance(record, Opened):
            self.meshes.append(record)
            self._l1_cores.update({chip.physical_id: chip.l1_banks for chip in record.chips})
            self.chips.sets_of(tuple(chip.physical_id for chip in record.chips))
        elif isinstance(record, Reserved):
            self.reserved.append(record)
        elif isinstance(record, Closed):
            for buffer_id in [key for key, use in self.live.items() if use.mesh_id == record.mesh_id]:
                self._hear(Freed(record.mesh_id, buffer_id))

    @property
    def links(self) -> Counter[tuple[int, int]]:
        """The bytes that crossed every link, by the chips that it joins."""
        for crossings in self._crossings.values():
            for record in crossings.records:
                self._links[record.source, record.target] += crossings.times * record.size_bytes
        self._crossings.clear()
        return self._links

    def _count_crossings(self, records: Sequence[LinkTransfer]) -> None:
        known = self._crossings.get(id(records))
        if known is not None:
            known.times += 1
            return
        if len(self._crossings) >= MOST_CROSSINGS:
            self.links  # noqa: B018  (sums up what was kept)
        self._crossings[id(records)] = _Crossings(records)

    def holders_at(self, event: int, chip: int, memory: str) -> list[Use]:
        """The buffers of one chip after this many events."""
        held: dict[int, Use] = {}  # oldest first, whatever the numbers of buffers are
        for buffer_id, change, _ in self.events[:event]:
            if change > 0:
                held[buffer_id] = self.uses[buffer_id]
            else:
                held.pop(buffer_id, None)
        return [use for use in held.values() if use.memory == memory and chip in use.chips]

    def history(self, chip: int, memory: str) -> list[tuple[int, int]]:
        """How many bytes a chip held after each operation that changed it."""
        used, points = 0, [(0, 0)]
        for buffer_id, change, operation in self.events:
            use = self.uses[buffer_id]
            if use.memory == memory and chip in use.chips:
                used += change * use.size_bytes
                points.append((operation, used))
        return points


def _guess_kind(record: Allocated, site: str) -> str:
    if record.buffer_type == "TRACE" or record.label.startswith("trace "):
        return "trace"
    if record.buffer_type in ("CB", "KERNEL"):
        return "circular buffers"
    name = record.label.rpartition(".")[2]
    if name not in UPLOADS and record.label:
        return "activations"
    return "kv cache" if any("kv_cache" in line.rpartition(" in ")[2] for line in site.splitlines()) else KINDS[0]
