"""Traces: commands recorded during a capture, bound to addresses and replayed.

The bytes of a trace are the sum of its programs': their commands are sized in dispatch_commands.py, and what a program of an
operation consists of is in tensor/calls/dispatch_bytes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NewType

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import TraceError
from ttmesh.chip.backends.backend_protocol import Backend
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.heap import Buffer, Heap
from ttmesh.mesh.queue.command_queue import Command
from ttmesh.mesh.queue.dispatch_commands import TRACE_END_BYTES

MeshTraceId = NewType("MeshTraceId", int)

TRACE_PROGRAM_BYTES = 896  # of a program of which nothing is known: few cores, few arguments

Resolve = Callable[[Cell], Cell]
BoundCommand = tuple[Command, list[Cell], list[Cell]]


def compute_trace_bytes(commands: Sequence[Command]) -> int:
    """The bytes that a trace of these commands takes: those of its programs, and its end (docs/memory.md)."""
    return TRACE_END_BYTES + sum(map(_count_bytes, commands))


def _count_bytes(command: Command) -> int:
    own = command.dispatch_bytes
    return command.programs * TRACE_PROGRAM_BYTES if own is None else own


class TraceSegment:
    """Consecutive commands of a trace that run together: their range, their cells, and the first one if it must wait."""

    __slots__ = ("cells", "end", "first", "programs", "start")

    def __init__(self, start: int, end: int, commands: list[Command]) -> None:
        self.start, self.end = start, end
        self.cells = [cell for command in commands for cell in (*command.reads, *command.writes)]
        self.programs = sum(command.programs for command in commands)
        self.first = commands[0] if commands and commands[0].ready is not None else None


class Trace:
    """A recorded list of commands with the memory that holds it on the chips."""

    __slots__ = ("_bound", "_replays", "_segments", "_version", "buffer", "commands", "high_water", "id", "queue_id")

    def __init__(self, trace_id: MeshTraceId, queue_id: int) -> None:
        self.id = trace_id
        self.queue_id = queue_id
        self.commands: list[Command] = []
        self.buffer: Buffer | None = None
        self.high_water = 0
        self._bound: list[BoundCommand] = []
        self._replays: dict[int, Callable[[], None] | None] = {}
        self._segments: list[TraceSegment] = []
        self._version = -1

    @property
    def programs(self) -> int:
        """How many device programs a replay launches."""
        return sum(command.programs for command in self.commands)

    def segments(self) -> list[TraceSegment]:
        """The segments of the trace: a command that waits begins a new one. Called after the capture."""
        if not self._segments:
            starts = [0, *(i for i, command in enumerate(self.commands) if i and command.ready is not None)]
            self._segments = [
                TraceSegment(a, b, self.commands[a:b]) for a, b in pairwise([*starts, len(self.commands)])
            ]
        return self._segments

    def replay(self, heap: Heap, backend: Backend, segment: TraceSegment) -> None:
        """Run a segment; an address means the live buffer at it, else the trace's own cell.

        The binding is kept until the heap's version changes, a backend's faster replay until a cell changes.
        """
        if heap.version != self._version:
            self._bind(heap.resolve)
            self._version = heap.version
        bound = self._bound[segment.start : segment.end]
        if segment.first is not None:  # what it waits for, a socket's message, is no cell: no graph may take it
            waiting, reads, writes = bound.pop(0)
            waiting.body(reads, writes)
        if segment.start not in self._replays:
            self._replays[segment.start] = self._make_replay(heap, backend, bound)
        replay = self._replays[segment.start]
        if replay is not None:
            replay()
            return
        for command, reads, writes in bound:
            command.body(reads, writes)

    def _make_replay(self, heap: Heap, backend: Backend, bound: Sequence[BoundCommand]) -> Callable[[], None] | None:
        """A backend's faster replay of some commands; what the others read is as good as held by the program."""
        own = {id(command) for command, _, _ in bound}
        read_later = {id(cell) for command, reads, _ in self._bound if id(command) not in own for cell in reads}
        steps = [(command.body, reads, writes) for command, reads, writes in bound]

        def may_be_held(cell: Cell) -> bool:
            return id(cell) in read_later or heap.is_live(cell)

        return backend.make_replay(steps, may_be_held) if steps else None

    def _bind(self, resolve: Resolve) -> None:
        bound = [
            (command, [resolve(cell) for cell in command.reads], [resolve(cell) for cell in command.writes])
            for command in self.commands
        ]
        same = len(bound) == len(self._bound) and all(
            one is other
            for (_, *new), (_, *old) in zip(bound, self._bound, strict=True)
            for ones, others in zip(new, old, strict=True)
            for one, other in zip(ones, others, strict=True)
        )
        self._bound = bound
        if not same:
            self._replays.clear()

    def cells(self) -> list[Cell]:
        """Every cell that a replay reads or writes."""
        return [cell for command in self.commands for cell in (*command.reads, *command.writes)]


def find_overlap_error(address: int, *, allocated: int, freed: int, others: int) -> TraceError | None:
    """The error for a trace buffer in DRAM that traced commands would overwrite, or None.

    The texts are TT-Metal's (tt-metal e4f9f0b, distributed/mesh_trace.cpp).
    """
    by_allocation, by_free = 0 < allocated > address, 0 < freed > address
    if by_allocation and by_free:
        wrong = (
            f"Trace buffer at address {address} overlaps with DRAM activity during trace capture. Allocation high "
            f"water mark: {allocated}, Deletion high water mark: {freed}. Reduce allocations during trace capture or "
            "set a non-zero trace_region_size."
        )
    elif by_free:
        wrong = (
            f"Trace buffer at address {address} overlaps with buffers deallocated during trace capture (deletion high "
            f"water mark: {freed}). Avoid deallocating DRAM buffers during trace capture or set a non-zero "
            "trace_region_size."
        )
    elif by_allocation:
        wrong = (
            f"Trace buffer at address {address} overlaps with buffers allocated during trace capture (allocation high "
            f"water mark: {allocated}). Reduce allocations during trace capture or set a non-zero trace_region_size."
        )
    elif 0 < others > address:
        wrong = (
            f"Trace buffer at address {address} overlaps with DRAM activity captured by another live trace (maximum "
            f"live trace high water mark: {others}). Release the existing trace before capturing this trace or set a "
            "non-zero trace_region_size."
        )
    else:
        return None
    return TraceError(
        wrong,
        expected="a trace buffer above all buffers that captures used",
        fix="Open the mesh with a non-zero trace_region_size.",
    )


def make_capture_error(what: str, trace_id: int) -> TraceError:
    """The error for a call that a capture cannot record."""
    return TraceError(
        f"{what} (trace {trace_id} is being captured)",
        expected="only device work between begin_trace_capture and end_trace_capture",
        fix="Move the call before the capture or after its end.",
    )


def compute_dram_high_water(cells: Sequence[Cell]) -> int:
    """The end of the highest DRAM buffer among these cells, per bank."""
    ends = [cell.address + cell.bank_bytes for cell in cells if cell.buffer_type is BufferType.DRAM]
    return max(ends, default=0)
