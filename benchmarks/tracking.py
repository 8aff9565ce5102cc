"""What tracking costs the program, and what the server does under 64 processes and 5 million records."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ttmesh.base.records import Allocated, Freed, Record
from ttmesh.base.signals import signals
from ttmesh.tracking import client
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor

CHIPS = tuple(range(8))
HELD = 16  # buffers that every worker still holds when it is done
SIZE = 4096


def allocated(number: int) -> Allocated:
    return Allocated(1, number, CHIPS, "DRAM", number * SIZE, SIZE, SIZE // 8, 8, 2048, "matmul", time.time_ns())


def freed(number: int) -> Freed:
    return Freed(1, number, time.time_ns())


def start_server(address: Address) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from ttmesh.cli import main; main()", "server", "-q", "--socket", address.path]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    assert "listens at" in server.stdout.readline()
    return server


def caller_cost(address: Address, *, rate: int, seconds: float) -> None:
    """Time spent in the caller's thread per record at a steady rate, in rounds of a millisecond."""
    rounds, per_round = int(seconds * 1000), rate // 1000

    def timed(listening: bool) -> list[float]:
        spent = []
        start = time.perf_counter()
        for i in range(rounds):
            while time.perf_counter() < start + i / 1000:
                pass
            t0 = time.perf_counter_ns()
            for n in range(per_round // 2):
                if signals.listening:
                    signals.emit(allocated(n))
                if signals.listening:
                    signals.emit(freed(n))
            spent.append((time.perf_counter_ns() - t0) / per_round)
        assert signals.listening is listening
        return sorted(spent)

    def building() -> float:
        spent = []
        for _ in range(rounds):
            t0 = time.perf_counter_ns()
            for n in range(per_round // 2):
                allocated(n)
                freed(n)
            spent.append((time.perf_counter_ns() - t0) / per_round)
        return sorted(spent)[len(spent) // 2]

    off = timed(False)
    build = building()
    held: list[Record] = []
    signals.provide("holdings", lambda: held)
    client.start()
    on = timed(True)
    client.stop(timeout_s=10)
    whole = on[len(on) // 2]
    print(f"caller, tracking off               {off[len(off) // 2]:8.0f} ns per record (one attribute test)")
    print(
        f"caller, at {rate // 1000} k records/s           {whole:8.0f} ns per record, of which building it {build:.0f} ns"
    )
    print(f"caller, handing over only          {whole - build:8.0f} ns per record (promised: at most 500)")
    print(
        f"caller, mean / 99 % of rounds      {sum(on) / len(on):8.0f} / {on[int(len(on) * 0.99)]:.0f} ns per record, all in"
    )


def work(records: int) -> None:
    """A worker: allocate and free, keep a few, say when done, wait to be told to go."""
    table: dict[int, Record] = {}
    signals.provide("holdings", lambda: list(table.values()))
    client.start()
    for n in range(HELD):
        table[n] = allocated(n)
        signals.emit(table[n])
    for n in range(HELD, HELD + (records - HELD) // 2):
        table[n] = record = allocated(n)
        signals.emit(record)
        del table[n]
        signals.emit(freed(n))
    print("done", flush=True)
    sys.stdin.readline()


def load(address: Address, *, processes: int, records: int) -> None:
    each = -(-records // processes // 2) * 2 + 2
    server = start_server(address)
    watched = psutil.Process(server.pid)
    before = watched.memory_info().rss
    peak = before
    start = time.perf_counter()
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    total = processes * (HELD + (each - HELD) // 2 * 2)
    with Monitor(address, timeout_s=60) as monitor:
        while (state := monitor.state()).server.records + sum(p.missed for p in state.processes) < total:
            peak = max(peak, watched.memory_info().rss)
            assert time.perf_counter() - start < 600, f"{state.server.records} of {total} records after 10 minutes"
            time.sleep(0.2)
        wall = time.perf_counter() - start
        missed = sum(p.missed for p in state.processes)
        used = {d.physical_id: d.usage["DRAM"].used_bytes for d in state.devices}
        busy = watched.cpu_times()
        for worker in workers:
            worker.communicate("go\n", timeout=60)
        while monitor.state().processes:
            time.sleep(0.05)
        after = {d.physical_id: d.usage["DRAM"].used_bytes for d in monitor.state().devices}
    server.terminate()
    server.communicate(timeout=10)
    print(
        f"load, {processes} processes                 {state.server.records:8d} records in {wall:.1f} s, {missed} lost"
    )
    print(
        f"server                             {total / wall / 1000:8.0f} k records/s with {processes} workers on "
        f"{os.cpu_count()} cores; {(busy.user + busy.system) / total * 1e6:.2f} µs of its CPU per record"
    )
    print(f"server memory                      {peak / 1e6:8.1f} MB at most, {before / 1e6:.1f} MB when idle")
    assert missed == 0, "records were lost"
    assert used == dict.fromkeys(CHIPS, processes * HELD * SIZE), f"wrong totals {used}"
    assert after == dict.fromkeys(CHIPS, 0), f"not back to zero: {after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    if args.worker:
        work(args.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        address = Address(path=str(Path(folder) / "s.sock"))
        os.environ["TTMESH_SOCKET"] = address.path
        server = start_server(address)
        caller_cost(address, rate=50_000, seconds=args.seconds)
        server.terminate()
        server.communicate(timeout=10)
        load(address, processes=args.processes, records=args.records)


if __name__ == "__main__":
    main()
