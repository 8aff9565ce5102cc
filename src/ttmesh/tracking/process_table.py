"""Who is connected and who has left, and how many bytes of the server's own memory they may take."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from ttmesh.tracking import holders
from ttmesh.tracking.holders import Device, DeviceTable, Process
from ttmesh.tracking.leftovers import Ended, LeftoverSums
from ttmesh.tracking.weights import CHIP_BYTES, weigh
from ttmesh.tracking.wire import Who

# docs/reliability.md adds them up.
MAX_BYTES = 256 << 20  # of all processes together
MAX_PROCESS_BYTES = 96 << 20

ENDED_KEPT = 64
ENDED_BYTES = 16 << 20
LEAVING_BYTES = 128 << 20  # of processes that are not freed yet; beyond it the oldest ones are freed at once
FREED_AT_ONCE = 2000  # buffers per step

Gone = Callable[[Who, int, int], None]  # a process, its buffers over all chips, their bytes
Evict = Callable[[object, str], None]  # closes the connection of a process


class LedgerError(Exception):
    """A client exceeds one of the server's limits; the text says which."""


class Departures:
    """Ended processes, the newest last; what they held is freed in bounded steps, one process after the other."""

    def __init__(self, gone: Gone | None = None) -> None:
        self.ended: deque[Ended] = deque()
        self.ended_bytes = 0
        self.begun = self.finished = 0  # numbers of processes
        self.left = 0  # how often something was left: by processes, and by meshes that closed
        self._gone = gone
        self._leaving: deque[tuple[int, Iterator[None]]] = deque()
        self._leaving_bytes = 0

    @property
    def has_work(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._leaving)

    def add(self, process: Process, *, orderly: bool, now_s: float) -> None:
        """A process has left; its totals are not counted any more."""
        ended = Ended(process.who, process.name, now_s, orderly, [], process.leftovers, process.next, process.missed)
        self._remember(ended)
        self.begun += 1
        size_bytes, process.counted_bytes = process.counted_bytes, 0
        self._leaving_bytes += size_bytes
        self._leaving.append((size_bytes, self._free(process, ended)))
        while self._leaving_bytes > LEAVING_BYTES and len(self._leaving) > 1:
            self.advance()
        if len(self._leaving) == 1 and len(process.held) < FREED_AT_ONCE:
            self.advance()

    def advance(self) -> None:
        """Free a bounded number of buffers of the process that left first."""
        if self._leaving:
            size_bytes, job = self._leaving[0]
            if next(job, self) is self:
                self._leaving.popleft()
                self._leaving_bytes -= size_bytes
                self.finished += 1

    def take(self, who: Who) -> list[Ended]:
        """Remove what is known of earlier connections of a process that is back."""
        back = [ended for ended in self.ended if ended.who == who]
        for ended in back:
            self.ended.remove(ended)
            self.ended_bytes -= weigh(ended)
        return back

    def _free(self, process: Process, ended: Ended) -> Iterator[None]:
        sums = LeftoverSums("exit" if ended.orderly else "death")
        buffers = size_bytes = 0
        while process.held:
            for _ in range(min(FREED_AT_ONCE, len(process.held))):
                record = process.held.popitem()[1]
                sums.add(record)
                buffers += len(record.chips)
                size_bytes += record.size_bytes * len(record.chips)
            if process.held:
                yield
        while process.routes:
            for key in list(itertools.islice(process.routes, FREED_AT_ONCE // 8)):
                del process.routes[key]
            if process.routes:
                yield
        held = sums.list_leftovers()
        if held and any(known is ended for known in self.ended):
            self._replace(ended, msgspec.structs.replace(ended, held=held))
            self.left += 1
        if self._gone and buffers:
            self._gone(process.who, buffers, size_bytes)

    def _replace(self, ended: Ended, whole: Ended) -> None:
        self.ended = deque(whole if known is ended else known for known in self.ended)
        self.ended_bytes += weigh(whole) - weigh(ended)
        self._forget_oldest()

    def _remember(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.ended_bytes += weigh(ended)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self.ended) > ENDED_KEPT or self.ended_bytes > ENDED_BYTES:
            self.ended_bytes -= weigh(self.ended.popleft())


class ProcessTable:
    """Processes and devices within the limits. Beyond them `evict` closes the connection of the largest process."""

    def __init__(self, evict: Evict | None = None, gone: Gone | None = None) -> None:
        self.processes: dict[Who, Process] = {}
        self.devices = DeviceTable()
        self.departures = Departures(gone)
        self.bytes_held = 0  # of processes
        self._evict_owner = evict
        self._now_s = 0.0

    def leave(self, process: Process, *, orderly: bool, now_s: float) -> None:
        """Remove a process and everything it held."""
        raise NotImplementedError

    def join(self, who: Who, name: str, now_s: float) -> Process:
        """Add a process that connects, or resume one that reconnects."""
        process = self.processes.get(who)
        if process is None:
            process = self.processes[who] = Process(who, name, now_s)
            for ended in self.departures.take(who):
                process.next, process.missed = ended.next, ended.missed
                process.set_leftovers(ended.at_close)
        process.in_step = False
        self._count(process)
        return process

    def _remove(self, process: Process) -> None:
        self.bytes_held -= process.counted_bytes
        if self.processes.get(process.who) is process:
            del self.processes[process.who]

    def _count(self, process: Process) -> None:
        size = process.size_bytes
        if process.staged is not None and process.staged.size_bytes > MAX_PROCESS_BYTES:
            raise LedgerError(f"a snapshot takes more than {MAX_PROCESS_BYTES} bytes")
        self.bytes_held += size - process.counted_bytes
        process.counted_bytes = size
        while self.bytes_held > MAX_BYTES:
            self._evict(
                max(self.processes.values(), key=lambda p: p.counted_bytes),
                process,
                f"all processes together take more than {MAX_BYTES} bytes, and this one the most",
            )

    def _evict(self, largest: Process, asking: Process, reason: str) -> None:
        if largest is asking:
            raise LedgerError(reason)
        for owner in list(largest.owners):
            if self._evict_owner:
                self._evict_owner(owner, reason)
        if largest.who in self.processes:
            self.leave(largest, orderly=False, now_s=self._now_s)

    def _charge(self, process: Process, size_bytes: int) -> None:
        if process.values_bytes + size_bytes > MAX_PROCESS_BYTES:
            raise LedgerError(f"one process takes more than {MAX_PROCESS_BYTES} bytes")
        process.values_bytes += size_bytes

    def _device(self, process: Process, system: str, physical_id: int) -> Device:
        """The device, which is added if it is new."""
        key = (process.who.host, system, physical_id)
        device = self.devices.get(key)
        if device is None:
            self._make_room_for_device(process, physical_id)
            device = self.devices.add(key)
        if (system, physical_id) not in process.chips:
            self._charge(process, CHIP_BYTES)
            process.chips.add((device.system, physical_id))
            device.users += 1
        return device

    def _make_room_for_device(self, process: Process, physical_id: int) -> None:
        while self.devices.is_full:
            if self.devices.forget_oldest():
                continue
            largest = max(self.processes.values(), key=lambda p: len(p.chips))
            if len(largest.chips) <= holders.MAX_DEVICES // 2:
                largest = process
            reason = f"device {physical_id} would be one more than the {holders.MAX_DEVICES} that are kept"
            self._evict(largest, process, reason)
