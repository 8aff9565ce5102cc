"""Splits a kernel's work over threads; ctypes releases the GIL, so they run at once."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SPLIT_BYTES = 2 << 20  # below this a second thread wakes later than the first is done (benchmarks/formats.py)

SLOW_NS_PER_BYTE = 0.25  # one thread reads several times as fast: a team that is slower waits for a processor
FIRST_REST_S, LAST_REST_S = 0.1, 10.0

_pools: dict[int, ThreadPoolExecutor] = {}
_STARTED = os.getpid()


def members(size_bytes: int) -> int:
    """How many threads share work of this size: as many as torch uses, when there is enough to do."""
    return torch.get_num_threads() if size_bytes >= SPLIT_BYTES else 1


class Team:
    """Whether threads that wait for each other pay: on a busy machine they do not, and rest, longer each time."""

    def __init__(self) -> None:
        self._rest_s = FIRST_REST_S
        self._until = 0.0

    def size(self, size_bytes: int) -> int:
        """How many threads work of this size gets now."""
        wanted = members(size_bytes)
        return 1 if wanted > 1 and self._until and time.monotonic() < self._until else wanted

    def report(self, size_bytes: int, taken_ns: int) -> None:
        """How long the team took for so many bytes."""
        if taken_ns <= size_bytes * SLOW_NS_PER_BYTE:
            self._rest_s, self._until = FIRST_REST_S, 0.0
            return
        self._until = time.monotonic() + self._rest_s
        self._rest_s = min(2 * self._rest_s, LAST_REST_S)


team = Team()


def parallel() -> int | None:
    """The address of the GOMP_parallel that torch computes with, for kernels that start their own team, or None.

    Torch's own threads still spin after its last operation, so they are there at once; others would compete with them.
    """
    return _gomp_parallel() if os.getpid() == _STARTED else None  # OpenMP's threads do not survive a fork


def run(work: Callable[[int, int], object], count: int, size_bytes: int) -> None:
    """Call work(begin, end) over [0, count), by several threads when there is enough to do."""
    parts = min(members(size_bytes), count)
    if parts <= 1:
        work(0, count)
        return
    bounds = [count * part // parts for part in range(parts + 1)]
    others = [_pool().submit(work, *bounds[i : i + 2]) for i in range(1, parts)]
    work(*bounds[:2])
    for other in others:
        other.result()


@functools.cache
def _gomp_parallel() -> int | None:
    """Looked up among the libraries that torch's depend on; LLVM's OpenMP has the entry too."""
    found = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(found)).GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()  # a forked child has none of its parent's threads
    if process not in _pools:
        _pools.clear()
        _pools[process] = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ttmesh-kernel")
    return _pools[process]
