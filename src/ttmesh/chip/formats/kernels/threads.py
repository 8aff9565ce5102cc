"""Splits a kernel's work over threads; ctypes releases the GIL, so they run at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

SPLIT_BYTES = 2 << 20  # below this a second thread wakes later than the first is done (benchmarks/formats.py)

_pools: dict[int, ThreadPoolExecutor] = {}


def run(work: Callable[[int, int], object], count: int, size_bytes: int) -> None:
    """Call work(begin, end) over [0, count) with as many threads as torch uses, when there is enough to do."""
    parts = min(torch.get_num_threads(), count) if size_bytes >= SPLIT_BYTES else 1
    if parts <= 1:
        work(0, count)
        return
    bounds = [count * part // parts for part in range(parts + 1)]
    others = [_pool().submit(work, *bounds[i : i + 2]) for i in range(1, parts)]
    work(*bounds[:2])
    for other in others:
        other.result()


def _pool() -> ThreadPoolExecutor:
    process = os.getpid()  # a forked child has none of its parent's threads
    if process not in _pools:
        _pools.clear()
        _pools[process] = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ttmesh-kernel")
    return _pools[process]
