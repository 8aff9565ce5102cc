"""The process around one rank: starts the program, reports how it ended, and ends all its child processes.

Runs as a plain script (`python -I -S rank.py RANK MODE -- program …`), with the standard library only, so that it costs
20 ms and 10 MB per rank and works under mpirun, ssh and alone. MODE says what stdin is for: `keep` leaves it to the
program, `stdin` ends the rank when it closes, `secrets` does so too and reads secret variables from its first line.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

SECRETS = "TTMESH_SECRETS_"  # per rank under mpirun: secret variables as JSON in hexadecimal
MARK = "\x1ettmesh-rank"  # a line on stderr that the launcher reads and does not print
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_S = 3.0  # from SIGTERM to SIGKILL: time to report which rank it waited for
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def main(argv: list[str]) -> int:
    """Run the program of one rank; its exit code, or the signal that ended it.

    Two processes: mpirun may kill the outer one at once; the inner one, in its own session, then still cleans up.
    """
    rank, watch_stdin, program = argv[0], argv[1] != "keep", argv[3:]
    _take_secrets(_read_line() if argv[1] == "secrets" else os.environ.get(SECRETS + rank, ""))
    inner = os.fork()
    if inner:
        for number in STOPPING:
            signal.signal(number, lambda received, frame: os.kill(inner, received))
        die_with_parent(signal.SIGTERM)
        return _code(os.waitpid(inner, 0)[1])
    os.setsid()
    wanted: list[int] = []
    for number in STOPPING:
        signal.signal(number, lambda received, frame: wanted.append(received))
    die_with_parent(signal.SIGTERM)
    adopt_orphans()
    try:
        child = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL if watch_stdin else None,
            env=os.environ | {"TTMESH_LAUNCHED": "1"},
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )
    except OSError as cause:
        print(f"cannot start {program[0]}: {cause.strerror}", file=sys.stderr, flush=True)
        _report(rank, 127)
        return 127
    kill_at = float("inf")
    while child.poll() is None:
        if watch_stdin and select.select([sys.stdin], [], [], 0)[0] and not os.read(0, 4096):
            watch_stdin = False  # the launcher closed the pipe: it has ended, or stops this rank
            wanted.append(signal.SIGTERM)
        while wanted:
            _signal_group(child.pid, wanted.pop(0))
            kill_at = min(kill_at, time.monotonic() + STOP_S)
        if time.monotonic() >= kill_at:
            _signal_group(child.pid, signal.SIGKILL)
        time.sleep(0.02)
    _kill_leftovers(child.pid)
    _report(rank, child.returncode)
    return child.returncode


def _take_secrets(encoded: str) -> None:
    """Put this rank's secret variables into the environment, and drop those of other ranks."""
    for name in [name for name in os.environ if name.startswith(SECRETS)]:
        del os.environ[name]
    if encoded:
        os.environ.update(json.loads(bytes.fromhex(encoded)))


def _read_line() -> str:
    """The first line of the input, and nothing beyond it."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def end_like(code: int) -> None:
    """Exit with the code, or die of the same signal, so that mpirun notices and informs the other ranks."""
    if code >= 0:
        sys.exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def die_with_parent(number: int) -> None:
    """Get this signal when the parent ends, also when it is killed."""
    parent = os.getppid()
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends (a subreaper)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
        os.killpg(pid, signal.SIGCONT)  # a stopped process takes no signal but SIGKILL until it runs again
    except ProcessLookupError:
        return


def _kill_leftovers(pid: int) -> None:
    """Kill the processes that the program left running: its group, and orphans adopted by this subreaper."""
    _signal_group(pid, signal.SIGKILL)
    give_up = time.monotonic() + 1.0
    more = True
    while more:  # the children of a killed orphan are adopted next
        more = time.monotonic() < give_up
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as listed:
                orphans = [int(number) for number in listed.read().split()]
        except OSError:
            return
        if not orphans:
            return
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)


def _report(rank: str, code: int) -> None:
    print(f"{MARK} {rank} {code}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    end_like(main(sys.argv[1:]))
