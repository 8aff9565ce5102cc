"""What the lower half costs: opening a mesh, allocating in lock step, enqueueing, replaying a trace."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from bench_rows import BenchRow, note
from rich.console import Console
from rich.table import Table

import ttmesh
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.functions.trace_capture import begin_trace_capture, end_trace_capture, execute_trace
from ttmesh.mesh.queue.command_queue import Cells, Command

PAIR_US = 6.0  # 3 for each of the two


def best_us(call: Callable[[], object], repeats: int, rounds: int = 7) -> float:
    """The fastest round's time per call: the least disturbed by neighbours."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - start) / repeats)
    return min(times) * 1e6


def nothing(reads: Cells, writes: Cells) -> None:
    pass


def open_and_close() -> None:
    close_mesh_device(open_mesh_device(MeshShape(8, 4)))


def allocate_and_free(mesh: MeshDevice) -> Callable[[], None]:
    heap = mesh.heap

    def call() -> None:
        heap.allocate(BufferType.DRAM, 24576, 2048, 2048, 12, "bench").deallocate()

    return call


def malloc_and_free() -> None:
    torch.empty(24576, dtype=torch.uint8)


def replay(mesh: MeshDevice) -> Callable[[], None]:
    trace = begin_trace_capture(mesh)
    for _ in range(20):
        mesh.launch(Command("empty", nothing, programs=1))
    end_trace_capture(mesh, trace)
    return lambda: execute_trace(mesh, trace, blocking=False)


def main() -> None:
    table = Table("what", "µs", "aim", title="Foundation (fastest of 7 rounds)")
    ttmesh.configure(system="galaxy")
    table.add_row("open and close an 8x4 mesh", f"{best_us(open_and_close, 5):.0f}", "")
    table.add_row("torch.empty, for comparison", f"{best_us(malloc_and_free, 20_000):.2f}", "")
    for rows, columns in ((2, 4), (8, 4)):
        mesh = open_mesh_device(MeshShape(rows, columns))
        cost = best_us(allocate_and_free(mesh), 20_000)
        row = f"allocate and free one buffer, {rows * columns} chips"
        note(BenchRow(row, "µs", cost, limit=PAIR_US, limit_name="promised", limit_aim=1.0))
        table.add_row(f"allocate + free one buffer, {rows * columns} chips", f"{cost:.2f}", "≤ 3 each, flat")
        if columns * rows == 8:
            empty = Command("empty", nothing)
            table.add_row("enqueue an empty command", f"{best_us(lambda m=mesh, c=empty: m.launch(c), 50_000):.2f}", "")
            table.add_row("replay a trace of 20 empty commands", f"{best_us(replay(mesh), 5_000):.2f}", "")
        close_mesh_device(mesh)
    Console().print(table)


if __name__ == "__main__":
    main()
