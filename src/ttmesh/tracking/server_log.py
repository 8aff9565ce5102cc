"""The server's log lines: one per buffer and device, and statistics."""

from __future__ import annotations

import queue
import threading
from typing import TextIO

from ttmesh.base.records import Allocated
from ttmesh.base.sizes import size_text
from ttmesh.tracking.holders import Process
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.state import BUFFER_CLASSES
from ttmesh.tracking.wire import Who

MOST_LINES = 20_000  # of one round
MOST_WAITING = 8 << 20  # characters that the output has not taken yet
SYSTEM_CLASSES = ("SYSTEM_DRAM", "SYSTEM_L1")


class Printer:
    """Collects lines; a thread writes them, so that a paused terminal does not block the server."""

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self.quiet = quiet
        self.changes = 0
        self._out = out
        self._lines: list[str] = []
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = self._waiting = 0
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, process: Process, came: bool, record: Allocated) -> None:
        """Log that a buffer was allocated or freed."""
        self.changes += 1
        if not self.quiet:
            if len(self._lines) < MOST_LINES:
                self._lines += buffer_lines(process.who.pid, came, record)
            else:
                self._left_out += len(record.chips)

    def process_gone(self, who: Who, buffers: int, size_bytes: int) -> None:
        """Log that a process ended with its buffers."""
        self.changes += 1
        self.note(f"✓ Removed {buffers} buffers ({size_text(size_bytes)}) from PID {who.pid}")

    def note(self, text: str) -> None:
        """Log a line that is shown in quiet mode too."""
        self._lines.append(text)

    def statistics(self, ledger: Ledger) -> None:
        """Log what every device holds."""
        self._lines += statistics_lines(ledger)

    def flush(self) -> None:
        """Pass the collected lines to the writer thread; lines are dropped while the reader is too slow."""
        if not self._lines:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="ttmesh-printer", daemon=True)
            self._thread.start()
        if self._waiting < MOST_WAITING:
            self._put()
        else:
            self._left_out += len(self._lines)
        self._lines.clear()

    def close(self) -> None:
        """Wait a moment for the last lines, which are written even if others were dropped."""
        self._waiting = 0
        self.flush()
        self._texts.put(None)
        if self._thread:
            self._thread.join(2.0)

    def _put(self) -> None:
        if self._left_out:
            self._lines.append(f"⚠ {self._left_out} lines were left out: the output was too slow")
        text = "\n".join(self._lines) + "\n"
        with self._counting:
            self._waiting += len(text)
        self._texts.put(text)
        self._left_out = 0

    def _write(self) -> None:
        try:
            while (text := self._texts.get()) is not None:
                encoding = getattr(self._out, "encoding", None) or "utf-8"
                self._out.write(text.encode(encoding, "backslashreplace").decode(encoding))
                self._out.flush()
                with self._counting:
                    self._waiting -= len(text)
        except OSError:  # the reader has closed, or the disk is full
            return


def buffer_lines(pid: int, came: bool, record: Allocated) -> list[str]:
    """One line per device for a buffer that was allocated or freed."""
    size, kind, number = record.size_bytes, record.buffer_type, record.buffer_id
    if came:
        start = f"✓ [PID {pid}] Allocated {size} bytes of {kind} on device "
        return [f"{start}{chip} (buffer_id={number})" for chip in sorted(record.chips)]
    start = f"✗ [PID {pid}] Freed buffer {number} on device "
    return [f"{start}{chip} ({size} bytes of {kind})" for chip in sorted(record.chips)]


def statistics_lines(ledger: Ledger) -> list[str]:
    """Buffers and bytes per device; the runtime's reservations are listed separately and not in the total."""
    lines = ["", "📊 Current Statistics:"]
    active = 0
    shown = [device for _, device in sorted(ledger.devices.items()) if device.is_open]
    one_system = len({(device.host, device.system) for device in shown}) <= 1
    for device in shown:
        accounts = device.accounts
        buffers = sum(accounts[kind].count for kind in BUFFER_CLASSES if kind in accounts)
        total = sum(accounts[kind].used for kind in BUFFER_CLASSES if kind in accounts)
        system = sum(accounts[kind].used for kind in SYSTEM_CLASSES if kind in accounts)
        where = (f" of {device.system}" if not one_system else "") + (f" on {device.host}" if device.host else "")
        lines += [f"  Device {device.physical_id}{where}:", f"    Buffers: {buffers}"]
        lines += [
            f"    {kind}: {accounts[kind].used} bytes"
            for kind in BUFFER_CLASSES
            if kind in accounts and accounts[kind].used
        ]
        lines.append(f"    Total: {total} bytes")
        if system:
            lines.append(f"    System: {system} bytes (outside the allocator)")
        active += buffers
    missed = sum(process.missed for process in ledger.processes.values())
    lines.append(f"  Active allocations: {active}")
    if missed:
        lines.append(f"  Records that came too early or were lost: {missed}")
    return [*lines, ""]
