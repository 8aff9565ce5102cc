"""Splits a kernel's work over threads; ctypes releases the GIL, so they run at once."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SPLIT_BYTES = 2 << 20  # below this a second thread wakes later than the first is done (benchmarks/formats.py)

_pools: dict[int, ThreadPoolExecutor] = {}
_STARTED = os.getpid()


def members(size_bytes: int) -> int:
    """How many threads share work of this size: as many as torch uses, when there is enough to do."""
    return torch.get_num_threads() if size_bytes >= SPLIT_BYTES else 1


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
