"""Lanes in host memory."""

from __future__ import annotations

import ctypes
import functools
import os
import platform

import torch

from ttmesh.chip.backends import idle_threads
from ttmesh.chip.backends.backend_protocol import Backend

# Below this a second thread hardly helps, and another busy process makes 14 µs milliseconds (1 MiB adds, two cores).
ONE_THREAD_BYTES = 1 << 20

# glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_INT_MAX = 2**31 - 1


class CpuBackend(Backend):
    """Torch's cpu device with a heap that does not fault on every large tensor."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._all_threads = torch.get_num_threads()

    def start(self) -> None:
        """Keep large blocks in the heap (a fresh mapping costs 6-9x the memcpy that fills it); watch the processors."""
        _keep_large_blocks()
        idle_threads.watch_processors()

    def release(self) -> None:
        """Hand the heap's free pages back."""
        libc = _glibc()
        if libc is not None:
            libc.malloc_trim(0)

    def use_threads(self, size_bytes: int) -> None:
        """One thread for small ops, all for large; setting it costs 0.1 µs."""
        torch.set_num_threads(1 if size_bytes < ONE_THREAD_BYTES else self._all_threads)


def _glibc() -> ctypes.CDLL | None:
    if os.name != "posix" or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)


@functools.cache
def _keep_large_blocks() -> None:
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _INT_MAX)


BACKEND = CpuBackend()
