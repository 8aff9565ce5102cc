"""Sums over the ranks that come again and again: made ready once, in memory that is always warm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ttmesh.fabric.messaging.rank_job import Done
from ttmesh.fabric.messaging.wire_layout import ENGINE_DTYPES

READY_BYTES = 8 << 10  # above, copying the result costs more than keeping the call ready in the engine saves
MOST_READY = 64
WORKSPACE_BYTES = 1 << 20  # above, new memory costs little beside what is done with it

Tensor = torch.Tensor
Start = Callable[[], Done]
Finish = Callable[[Start], None]


class Standing(NamedTuple):
    """An all_reduce made ready once: fill `memory`, and `run` gives the sum over the ranks in new memory.

    The next operation of the group may use the same memory.
    """

    memory: Tensor
    run: Callable[[], Tensor]


class StandingSums:
    """The standing sums of one group.

    Args:
        in_engine: what starts the sum of some memory in place, as often as it is called; None where there is none.
        from_memory: what starts the sum of some memory into the tensor it is called with.
        finish: runs what was started to its end.
    """

    def __init__(
        self,
        in_engine: Callable[[Tensor], Start | None],
        from_memory: Callable[[Tensor], Callable[[Tensor], Done]],
        finish: Finish,
    ) -> None:
        self._in_engine, self._from_memory, self._finish = in_engine, from_memory, finish
        self._ready = 0
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def make(self, shape: Sequence[int], dtype: torch.dtype, result: torch.dtype) -> Standing | None:
        """One for tensors like this; None for what the engine cannot add, and for what is too large to be kept."""
        size = math.prod(shape) * dtype.itemsize
        if dtype not in ENGINE_DTYPES or not 0 < size <= WORKSPACE_BYTES:
            return None
        if size <= READY_BYTES and self._ready < MOST_READY:
            memory = torch.empty(tuple(shape), dtype=dtype)
            start = self._in_engine(memory)
            if start is not None:
                self._ready += 1
                return Standing(memory, _copying(memory, start, self._finish, result))
        if self._workspace.nbytes < size:
            self._workspace = torch.empty(1 << (size - 1).bit_length(), dtype=torch.uint8)
        memory = self._workspace[:size].view(dtype).view(tuple(shape))
        return Standing(memory, _filling(memory, self._from_memory(memory), self._finish, result))


def _copying(memory: Tensor, start: Start, finish: Finish, result: torch.dtype) -> Callable[[], Tensor]:
    """Sums over the ranks in place, and copies."""
    copied = memory.clone if memory.dtype is result else partial(memory.to, result)

    def run() -> Tensor:
        finish(start)
        return copied()

    return run


def _filling(
    memory: Tensor, begin: Callable[[Tensor], Done], finish: Finish, result: torch.dtype
) -> Callable[[], Tensor]:
    """Sums over the ranks into new memory."""
    empty_like, kept = torch.empty_like, memory.dtype is result

    def run() -> Tensor:
        into = empty_like(memory)
        finish(partial(begin, into))
        return into if kept else into.to(result)

    return run
