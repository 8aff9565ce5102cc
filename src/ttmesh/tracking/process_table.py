"""Who is connected, and how many bytes of the server's own memory processes and devices may take."""

from __future__ import annotations

from collections.abc import Callable

from ttmesh.tracking import device_table
from ttmesh.tracking.departures import Departures, Gone
from ttmesh.tracking.device_table import DeviceTable
from ttmesh.tracking.holders import Device, Process
from ttmesh.tracking.wire import Who

# docs/reliability.md adds them up.
MAX_BYTES = 256 << 20  # of all processes together
MAX_PROCESS_BYTES = 96 << 20

Evict = Callable[[object, str], None]  # closes the connection of a process


class LedgerError(Exception):
    """A client exceeds one of the server's limits; the text says which."""


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

    def _device(self, process: Process, physical_id: int) -> Device:
        """The device, which is added if it is new."""
        host = process.who.host
        device = self.devices.get((host, physical_id))
        if device is None:
            self._make_room_for_device(process, physical_id)
            device = self.devices.add(host, physical_id)
        if physical_id not in process.chips:
            process.chips.add(physical_id)
            device.users += 1
        return device

    def _make_room_for_device(self, process: Process, physical_id: int) -> None:
        while self.devices.is_full:
            if self.devices.forget_oldest():
                continue
            largest = max(self.processes.values(), key=lambda p: len(p.chips))
            if len(largest.chips) <= device_table.MAX_DEVICES // 2:
                largest = process
            reason = f"device {physical_id} would be one more than the {device_table.MAX_DEVICES} that are kept"
            self._evict(largest, process, reason)
