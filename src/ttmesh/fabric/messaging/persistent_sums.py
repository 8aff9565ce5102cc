"""Sums over the ranks that are repeated with the same shape: prepared once, in memory that is reused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ttmesh.fabric.messaging.rank_job import Done
from ttmesh.fabric.messaging.wire_layout import ENGINE_DTYPES

READY_BYTES = 8 << 10  # above this, copying the result costs more than a prepared call saves
MOST_READY = 64
WORKSPACE_BYTES = 1 << 20  # above this, allocating costs little compared with the sum itself

Tensor = torch.Tensor
Start = Callable[[], Done]
Finish = Callable[[Start], None]


class PersistentSum(NamedTuple):
    """A prepared all_reduce: fill `memory`, then `run` returns the sum over the ranks in new memory.

    Other operations of the group may overwrite `memory`.
    """

    memory: Tensor
    run: Callable[[], Tensor]


class PersistentSums:
    """Makes the persistent sums of one group.

    Args:
        in_engine: prepares the in-place sum of some memory; returns a function that starts it, None if unsupported.
        from_memory: returns a function that starts the sum of some memory into the tensor it is called with.
        finish: starts an operation and waits for its end.
    """

    def __init__(
        self,
        in_engine: Callable[[Tensor], Start | None],
        from_memory: Callable[[Tensor], Callable[[Tensor], Done]],
        finish: Finish,
    ) -> None:
        self._in_engine, self._from_memory, self._finish = in_engine, from_memory, finish
        self._ready = 0
        self._workspace = torch.empty(0, dtype=torch.uint8, device="cpu")

    def make(self, shape: Sequence[int], dtype: torch.dtype, result: torch.dtype) -> PersistentSum | None:
        """A persistent sum of this shape and dtype; None if the engine cannot add the dtype or the tensor is too large."""
        size = math.prod(shape) * dtype.itemsize
        if dtype not in ENGINE_DTYPES or not 0 < size <= WORKSPACE_BYTES:
            return None
        if size <= READY_BYTES and self._ready < MOST_READY:
            memory = torch.empty(tuple(shape), dtype=dtype, device="cpu")
            start = self._in_engine(memory)
            if start is not None:
                self._ready += 1
                return PersistentSum(memory, _make_copying_sum(memory, start, self._finish, result))
        if self._workspace.nbytes < size:
            self._workspace = torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8, device="cpu")
        memory = self._workspace[:size].view(dtype).view(tuple(shape))
        return PersistentSum(memory, _make_filling_sum(memory, self._from_memory(memory), self._finish, result))


def _make_copying_sum(memory: Tensor, start: Start, finish: Finish, result: torch.dtype) -> Callable[[], Tensor]:
    """A function that sums over the ranks in place and copies the result."""
    copy = memory.clone if memory.dtype is result else partial(memory.to, result)

    def run() -> Tensor:
        finish(start)
        return copy()

    return run


def _make_filling_sum(
    memory: Tensor, begin: Callable[[Tensor], Done], finish: Finish, result: torch.dtype
) -> Callable[[], Tensor]:
    """A function that sums over the ranks into new memory."""
    empty_like, same_dtype = torch.empty_like, memory.dtype is result

    def run() -> Tensor:
        into = empty_like(memory)
        finish(partial(begin, into))
        return into if same_dtype else into.to(result)

    return run
