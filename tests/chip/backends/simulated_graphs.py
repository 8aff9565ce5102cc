"""CUDA graphs on a CPU: the torch calls of a capture, made again at every launch into the same memory.

A capture changes no memory, as on a GPU: what its calls changed in place is put back at its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class SimulatedGraph:
    """What stands for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def replay(self) -> None:
        for function, args, kwargs, results in self.calls:
            new = function(*args, **kwargs)
            for target, value in zip(tree_leaves(results), tree_leaves(new), strict=True):
                if isinstance(target, torch.Tensor) and _storage(target) != _storage(value):
                    target.copy_(value)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: SimulatedGraph) -> None:
        super().__init__()
        self._graph = graph
        self.changed: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.changed += [(tensor, tensor.clone()) for tensor in tree_leaves(value)]
        results = func(*args, **kwargs)
        self._graph.calls.append((func, args, kwargs, results))
        return results


@contextlib.contextmanager
def simulate_capture(graph: SimulatedGraph) -> Iterator[None]:
    """What stands for capture_graph."""
    recording = _Recording(graph)
    with recording:
        yield
    for tensor, before in reversed(recording.changed):
        tensor.copy_(before)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
