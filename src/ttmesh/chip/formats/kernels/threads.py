"""How many threads share a kernel's work. They run inside the one native call, which ends when all of them are done."""

from __future__ import annotations

import ctypes
import functools
import os
import time
from pathlib import Path

import torch

SPLIT_BYTES = 2 << 20  # below this a second thread wakes later than the first is done (benchmarks/formats.py)
STEPS = 4  # per thread: one that wakes late leaves some of its share to the others

SLOW_NS_PER_BYTE = 0.25  # one thread reads several times as fast: a team that is slower waits for a processor
FIRST_REST_S, LAST_REST_S = 0.1, 10.0

_STARTED = os.getpid()


class Threads(ctypes.Structure):
    """`Threads` of threads.h: what starts the threads, how many, and how many pieces one takes at a time."""

    _fields_ = [("parallel", ctypes.c_void_p), ("count", ctypes.c_int64), ("step", ctypes.c_int64)]


POINTER = ctypes.POINTER(Threads)
ALONE = ctypes.byref(Threads(None, 1, 1))


def count_threads(size_bytes: int) -> int:
    """How many threads share work of this size: as many as torch uses, when there is enough to do."""
    return torch.get_num_threads() if size_bytes >= SPLIT_BYTES else 1


def share(count: int, size_bytes: int) -> Threads:
    """The threads for this many pieces of work, together of this size."""
    several = min(count_threads(size_bytes), count)
    return Threads(parallel(), several, max(1, -(-count // (several * STEPS)))) if several > 1 else Threads(None, 1, 1)


class Team:
    """Decides whether a team of threads is worth it: on a busy machine it is not, and pauses, longer each time."""

    def __init__(self) -> None:
        self._rest_s = FIRST_REST_S
        self._until = 0.0

    def size(self, size_bytes: int) -> int:
        """How many threads work of this size gets now."""
        wanted = count_threads(size_bytes)
        return 1 if wanted > 1 and self._until and time.monotonic() < self._until else wanted

    def report(self, size_bytes: int, taken_ns: int) -> None:
        """How long the team took for this many bytes."""
        if taken_ns <= size_bytes * SLOW_NS_PER_BYTE:
            self._rest_s, self._until = FIRST_REST_S, 0.0
            return
        self._until = time.monotonic() + self._rest_s
        self._rest_s = min(2 * self._rest_s, LAST_REST_S)


team = Team()


def parallel() -> int | None:
    """The address of the GOMP_parallel that torch computes with, or None: then the kernels start threads of their own.

    Torch's own threads still spin after its last operation, so they are there at once; others would compete with them.
    """
    return _gomp_parallel() if os.getpid() == _STARTED else None  # OpenMP's threads do not survive a fork


@functools.cache
def openmp() -> ctypes.CDLL | None:
    """The libraries that torch's depend on, the OpenMP among them."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
    except OSError:
        return None


@functools.cache
def _gomp_parallel() -> int | None:
    """Looked up in torch's OpenMP; LLVM's has the entry too."""
    function = getattr(openmp(), "GOMP_parallel", None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value
