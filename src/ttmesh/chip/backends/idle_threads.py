"""OpenMP's idle threads: they spin on a quiet machine and sleep on a busy one, where spinning takes time from all.

GNU's OpenMP reads its wait policy when it is loaded. From inside a process it changes in one way: a second thread with a
team of its own makes more threads than processors, and then idle threads sleep at once. Such a team costs nothing but its
stacks, and how many threads an operation uses, so its bits, stays as it is.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import threading
import time
from typing import NamedTuple

from ttmesh.chip.formats.kernels import threads

LOOK_S = 0.05  # how long the processors' use is watched at a time
IDLE_S = 0.5  # between two looks at a process that computes nothing
LEAST_CPU_S = 0.01  # in a look: below that there is nothing to see
BUSY_SWITCHES = 100.0  # per second of processor time: about 400 beside a busy process, a few alone (Linux, 2 cores)
GIVEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # the user's own choice stays
FIRST_SLEEP_S, LAST_SLEEP_S = 0.2, 20.0  # how long idle threads sleep before a new look, twice as long each time


class ProcessorUsage(NamedTuple):
    """What the process has used: processor time, and how often it was made to wait for a processor."""

    cpu_s: float
    involuntary_switches: int


def read_usage() -> ProcessorUsage:
    """The use of all threads so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessorUsage(used.ru_utime + used.ru_stime, used.ru_nivcsw)


def waits_for_processors(before: ProcessorUsage, after: ProcessorUsage) -> bool:
    """Whether others took the processors away between two looks."""
    cpu_s = after.cpu_s - before.cpu_s
    return cpu_s >= LEAST_CPU_S and after.involuntary_switches - before.involuntary_switches > BUSY_SWITCHES * cpu_s


@functools.cache
def watch_processors() -> None:
    """Start watching, once per process; nothing to do for one processor or for another OpenMP, whose threads yield.

    Not asked is how many threads torch uses now: a program may want more later.
    """
    is_single = len(os.sched_getaffinity(0)) == 1 or os.environ.get("OMP_NUM_THREADS") == "1"
    if not is_single and _is_gnu() and not any(name in os.environ for name in GIVEN):
        _start(FIRST_SLEEP_S)


def _start(sleep_s: float) -> None:
    threading.Thread(target=_watch, args=(sleep_s,), name="ttmesh-idle-threads", daemon=True).start()


def _watch(sleep_s: float) -> None:
    """Wait for a busy moment, hold a team for a while and leave the next look to a new thread: teams end with theirs."""
    before = read_usage()
    while True:
        time.sleep(LOOK_S)
        after = read_usage()
        if waits_for_processors(before, after):
            break
        if after.cpu_s - before.cpu_s < LEAST_CPU_S:
            time.sleep(IDLE_S)
            after = read_usage()
        else:
            sleep_s = FIRST_SLEEP_S  # it was quiet in between
        before = after
    hold_team()
    time.sleep(sleep_s)
    _start(min(2 * sleep_s, LAST_SLEEP_S))


def hold_team() -> None:
    """Make the process's idle threads sleep for as long as the calling thread lives."""
    address = threads.parallel()
    if address is None:  # after a fork
        return
    run_team = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)(address)
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL), by every thread of the team
    run_team(nothing, None, len(os.sched_getaffinity(0)) + 1, 0)  # alone more threads than processors


def _is_gnu() -> bool:
    return threads.parallel() is not None and not hasattr(threads.openmp(), "kmp_set_blocktime")
