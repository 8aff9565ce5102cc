"""Honest programs beside hostile peers: totals stay exact, the server's memory bounded, its answers quick."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from tracking_soak import kill, start_program, wait_for

from ttmesh.tracking import wire
from ttmesh.tracking.address import Address, connect
from ttmesh.tracking.query import Monitor
from ttmesh.tracking.state import DeviceKey

WIDE = "\U0001f600"
TOKEN = "for the soak"
PACE_S = 0.002  # hostile peers leave the machine to others for a moment after each message

MEMORY_BYTES = 1000 << 20  # docs/reliability.md adds it up
QUERY_S = 0.2


def join(address: Address, role: str = "program") -> object:
    sock = connect(address, timeout_s=10.0)
    sock.sendall(wire.frame(wire.HELLO, (role, os.getpid(), 1, WIDE * 512, "", TOKEN)))
    return sock


def row(number: int, chips: list[int], *, label: str = "", site: str = "") -> tuple[object, ...]:
    return (4, 1, number, chips, "DRAM", number * 1000, 2**40, 2**40, 65536, 2**40, label, 2**62, site)


def send_largest_texts(address: Address, rng: random.Random) -> None:
    """Buffers with names of the longest kind, no two alike."""
    sock = join(address)
    for n in itertools.count():
        rows = [row(n * 50 + i, [9], label=f"{n} {i}{WIDE * 490}", site=f"{n} {i}{WIDE * 4000}") for i in range(50)]
        sock.sendall(wire.frame(wire.EVENTS, (n * 50, 0, rows)))
        time.sleep(PACE_S)


def send_smallest_records(address: Address, rng: random.Random) -> None:
    """As many buffers as possible."""
    sock = join(address)
    for n in itertools.count():
        rows = [row(n * 2000 + i, [10]) for i in range(2000)]
        sock.sendall(wire.frame(wire.EVENTS, (n * 2000, 0, rows)))
        time.sleep(PACE_S)


def send_groups(address: Address, rng: random.Random) -> None:
    """A group of chips for every buffer, on 256 chips, then frees that go back and forth between them."""
    sock = join(address)
    chips = list(range(256))
    first = 0
    while True:
        for n in range(0, 3900, 20):
            rows = []
            for i in range(20):
                rng.shuffle(chips)
                rows.append(row(n + i, chips))
            sock.sendall(wire.frame(wire.EVENTS, (first, 0, rows)))
            first += 20
            time.sleep(PACE_S)
        sock.sendall(wire.frame(wire.EVENTS, (first, 0, [(5, 1, n) for n in range(3900)])))
        first += 3900


def send_meshes(address: Address, rng: random.Random) -> None:
    """Meshes of 512 chips with the longest names."""
    sock = join(address)
    for n in itertools.count():
        chips = [(i, i, [0] * 8, WIDE * 32, 65536, 2**40, 65536, 2**40, False) for i in range(512)]
        sock.sendall(wire.frame(wire.EVENTS, (n, 0, [(1, n, None, [1] * 8, WIDE * 64, chips, 0)])))
        time.sleep(PACE_S)


def ask_without_reading(address: Address, rng: random.Random) -> None:
    """Monitors that want the largest replies and read none."""
    silent = []
    while True:
        sock = join(address, "monitor")
        sock.sendall(wire.frame(wire.QUERY, ("buffers", -1, "", 20_000)))
        silent = [*silent[-200:], sock]
        time.sleep(0.05)


def ask_all_the_time(address: Address, rng: random.Random) -> None:
    """Monitors that ask for as much as possible, one question after the other."""
    with Monitor(address, token=TOKEN, timeout_s=30.0) as monitor:
        while True:
            for ask in (monitor.state, monitor.leaks, lambda: monitor.histories(window_s=86_400), monitor.buffers):
                ask()
                time.sleep(PACE_S)


def send_halves(address: Address, rng: random.Random) -> None:
    """Messages that never end, on many connections."""
    half = wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.EVENTS, 1 << 20) + bytes(900_000)
    kept = []
    while True:
        sock = join(address, "monitor")
        sock.sendall(half)
        kept = [*kept[-300:], sock]
        time.sleep(0.02)


def send_noise(address: Address, rng: random.Random) -> None:
    """What is no message at all."""
    while True:
        sock = join(address, rng.choice(["program", "monitor"]))
        sock.sendall(rng.randbytes(rng.randrange(1, 3000)))
        time.sleep(0.01)
        sock.close()


def knock(address: Address, rng: random.Random) -> None:
    """Peers over TCP that say nothing."""
    tcp = Address(host="127.0.0.1", port=int(os.environ["SOAK_PORT"]))
    kept = []
    while True:
        kept = [*kept[-500:], connect(tcp, timeout_s=10.0)]
        time.sleep(0.005)


MALICE: tuple[Callable[[Address, random.Random], None], ...] = (
    send_largest_texts,
    send_smallest_records,
    send_groups,
    send_meshes,
    ask_without_reading,
    ask_all_the_time,
    send_halves,
    send_noise,
    knock,
)


def harm(name: str, address: Address) -> None:
    """One hostile peer; whenever the server has enough of it, it comes back."""
    act = next(act for act in MALICE if act.__name__ == name)
    rng = random.Random(name)
    os.nice(19)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print("ready", flush=True)
    while True:
        try:
            act(address, rng)
        except (OSError, RuntimeError):
            time.sleep(0.05)


def favour(pid: int) -> None:
    """Let a process run whenever it wants to: what is measured is the server, not who gets the processor."""
    with contextlib.suppress(OSError):  # where that is not permitted, or not known
        os.setpriority(os.PRIO_PROCESS, pid, -20)
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def wait_for_device(monitor: Monitor, programs: list[subprocess.Popen[str]], *, timeout_s: float) -> DeviceKey:
    """A device of the honest programs (its name is the shortest), once all of them report: they take seconds to start."""
    pids = {program.pid for program in programs}
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        state = monitor.state()
        if state.devices and pids <= {process.pid for process in state.processes}:
            return min((device.key for device in state.devices), key=lambda key: (len(key[0]) + len(key[1]), key))
        time.sleep(0.02)
    raise AssertionError(f"after {timeout_s} s not every program had reported to the server")


def soak(
    address: Address, *, seconds: float, clients: int, malice: tuple[Callable[..., None], ...] = MALICE
) -> dict[str, float]:
    """Figures of one run; an AssertionError when totals are not exact at its end."""
    environment = {**os.environ, "TTMESH_TOKEN": TOKEN, "TTMESH_SOCKET": address.path}
    os.environ.update(environment)
    command = [sys.executable, "-c", "from ttmesh.cli import main; main()", "server", "-q", "--socket", address.path]
    command += ["--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    favour(server.pid)
    assert server.stdout
    port = server.stdout.readline().split(" and ")[1].split()[0].rpartition(":")[2]
    programs = [start_program(seed) for seed in range(clients)]
    hostile = [
        subprocess.Popen(
            [sys.executable, __file__, "--harm", act.__name__, "--at", address.path],
            env={**environment, "SOAK_PORT": port},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for act in malice
    ]
    for peer in hostile:
        assert peer.stdout
        peer.stdout.readline()
    favour(os.getpid())  # after the peers were started: they do not inherit it
    times: list[float] = []
    process = psutil.Process(server.pid)
    most_rss = most_held = 0
    with Monitor(address, token=TOKEN, timeout_s=60.0) as monitor:
        first = wait_for_device(monitor, programs, timeout_s=300.0)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            for ask in (monitor.state, lambda: monitor.buffers(first), monitor.histories, monitor.leaks):
                began_s = time.monotonic()
                answer = ask()
                times.append(time.monotonic() - began_s)
                if ask == monitor.state:
                    most_held = max(most_held, answer.server.bytes_held)
                most_rss = max(most_rss, process.memory_info().rss)
                time.sleep(0.02)
        cpu_s = sum(process.cpu_times()[:2])
        for peer in hostile:
            kill(peer)
        wanted: dict[str, int] = {}
        for program in programs:
            assert program.stdin
            assert program.stdout
            program.stdin.write("stop\n")
            program.stdin.flush()
            for key, size in json.loads(program.stdout.readline()).items():
                wanted[key] = wanted.get(key, 0) + size
        settled_s = wait_for(monitor, wanted, timeout_s=120.0)
        state = monitor.state()
        missed = sum(p.missed for p in state.processes)
        refused = state.server.refused
        for program in programs:
            kill(program)
        wait_for(monitor, {}, timeout_s=120.0)
        held = monitor.state().server.bytes_held
    server.terminate()
    server.communicate(timeout=60)
    times.sort()
    return {
        "queries": len(times),
        "median_s": times[len(times) // 2],
        "p99_s": times[int(len(times) * 0.99)],
        "worst_s": times[-1],
        "most_rss": most_rss,
        "most_held": most_held,
        "held_at_end": held,
        "refused": refused,
        "missed": missed,
        "settled_s": settled_s,
        "server_cpu_s": cpu_s,
        "total": sum(wanted.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--harm", default="", help=argparse.SUPPRESS)
    parser.add_argument("--at", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.harm:
        harm(args.harm, Address(path=args.at))
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Address(path=str(Path(folder) / "s.sock")), seconds=args.seconds, clients=args.clients)
    print(
        f"{args.clients} honest clients beside {len(MALICE)} hostile peers for {args.seconds:.0f} s: totals exact "
        f"({found['total']} bytes), {found['missed']} records missed, {found['refused']} connections refused"
    )
    print(
        f"the server held at most {found['most_held'] / 2**20:.0f} MiB for processes, {found['most_rss'] / 2**20:.0f} "
        f"MiB in all (promised: {MEMORY_BYTES / 2**20:.0f}); {found['held_at_end']} bytes after everybody's end"
    )
    print(
        f"{found['queries']} queries: median {1000 * found['median_s']:.0f} ms, 99th percentile "
        f"{1000 * found['p99_s']:.0f} ms (promised: {1000 * QUERY_S:.0f}), worst {1000 * found['worst_s']:.0f} ms"
    )


if __name__ == "__main__":
    main()
