"""Programs killed at random, a server killed three times: afterwards it knows exactly what the survivors hold."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from ttmesh.base.records import Allocated, Freed
from ttmesh.base.signals import signals
from ttmesh.tracking import client
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor, UnreachableError

KINDS = ("DRAM", "L1", "L1_SMALL", "TRACE", "CB")
SERVER_KILLS = 3

Totals = dict[str, int]


def churn(seed: int) -> None:
    """A program: allocates and frees at random until told to stop, says what it holds, lives until its input ends."""
    rng = random.Random(seed)
    table: dict[int, Allocated] = {}
    signals.provide("holdings", lambda: list(table.values()))
    client.start()
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopping.set()), daemon=True).start()
    number = 0
    while not stopping.is_set():
        for _ in range(rng.randrange(20)):
            if table and rng.random() < 0.5:
                gone = rng.choice(list(table))
                del table[gone]
                signals.emit(Freed(1, gone))
            else:
                number += 1
                chips = tuple(sorted(rng.sample(range(8), rng.choice([1, 4, 8]))))
                size = rng.randrange(1, 1 << 20)
                record = Allocated(1, number, chips, rng.choice(KINDS), number, size, size, 1, 1, "soak")
                table[number] = record
                signals.emit(record)
        stopping.wait(0.002)
    held: Totals = {}
    for record in table.values():
        for chip in record.chips:
            key = f"{chip} {record.buffer_type}"
            held[key] = held.get(key, 0) + record.size_bytes
    print(json.dumps(held), flush=True)
    sys.stdin.read()


def start_program(seed: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--churn", str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Linux divides the processor between sessions first
    )


def start_server(address: Address) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from ttmesh.cli import main; main()", "server", "-q", "--socket", address.path]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    assert "listens at" in server.stdout.readline()
    return server


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def totals(monitor: Monitor) -> Totals:
    return {
        f"{device.physical_id} {kind}": usage.used_bytes
        for device in monitor.state().devices
        for kind, usage in device.usage.items()
        if usage.used_bytes
    }


def wait_for(monitor: Monitor, wanted: Totals, *, timeout_s: float) -> float:
    """Seconds until the server says what it should."""
    start = time.monotonic()
    seen: Totals | str = "nothing"
    while time.monotonic() - start < timeout_s:
        try:
            seen = totals(monitor)
        except UnreachableError as error:
            seen = str(error)
        if seen == wanted:
            return time.monotonic() - start
        time.sleep(0.01)
    raise AssertionError(f"after {timeout_s} s the server says {seen}; the survivors hold {wanted}")


def soak(address: Address, *, seconds: float, programs: int, seed: int, exact_s: float) -> None:
    rng = random.Random(seed)
    server = start_server(address)
    running = [start_program(rng.randrange(2**32)) for _ in range(programs)]
    start = time.monotonic()
    server_kills = [seconds * (i + 1) / (SERVER_KILLS + 1) for i in range(SERVER_KILLS)]
    killed = 0
    while server_kills or time.monotonic() - start < seconds:
        time.sleep(rng.uniform(0, 2 * seconds / 60))
        victim = rng.randrange(programs)
        kill(running[victim])
        killed += 1
        running[victim] = start_program(rng.randrange(2**32))
        if server_kills and time.monotonic() - start > server_kills[0]:
            server_kills.pop(0)
            kill(server)
            server = start_server(address)
    for victim in rng.sample(range(programs), programs // 4):  # and some that nobody replaces
        kill(running[victim])
        killed += 1
        running[victim] = None  # type: ignore[call-overload]
    survivors = [program for program in running if program is not None]
    wanted: Totals = {}
    for program in survivors:
        assert program.stdin
        assert program.stdout
        program.stdin.write("stop\n")
        program.stdin.flush()
        for key, size in json.loads(program.stdout.readline()).items():
            wanted[key] = wanted.get(key, 0) + size
    with Monitor(address) as monitor:
        settled = wait_for(monitor, wanted, timeout_s=max(10.0, exact_s))
        kill(server)
        server = start_server(address)
        monitor.close()
        resynced = wait_for(monitor, wanted, timeout_s=exact_s)
        for program in survivors:
            kill(program)
        emptied = wait_for(monitor, {}, timeout_s=exact_s)
    server.terminate()
    server.communicate(timeout=60)
    print(
        f"{killed} programs and {SERVER_KILLS + 1 - len(server_kills)} servers killed in {seconds:.0f} s; "
        f"{len(survivors)} survivors hold {sum(wanted.values())} bytes, as the server says after {settled:.2f} s"
    )
    print(
        f"a new server knew it all in {resynced:.2f} s (promised: {exact_s:.0f} s); all killed: zero in {emptied:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--churn", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exact-s", type=float, default=1.0, help="how soon a new server must know everything")
    args = parser.parse_args()
    if args.churn >= 0:
        churn(args.churn)
        return
    with tempfile.TemporaryDirectory() as folder:
        address = Address(path=str(Path(folder) / "s.sock"))
        os.environ["TTMESH_SOCKET"] = address.path
        soak(address, seconds=args.seconds, programs=args.programs, seed=args.seed, exact_s=args.exact_s)


if __name__ == "__main__":
    main()
