"""Watchers of calls (hooks, tapes, graph captures, the recorder of fast paths) behind one flag that calls test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

    from ttmesh.chip.cells import Cell
    from ttmesh.mesh.queue.command_queue import Body
    from ttmesh.tensor.calls.gate import Gate
    from ttmesh.tensor.calls.operation import Operation
    from ttmesh.tensor.calls.plan import Plan
    from ttmesh.tensor.spec.tensor_spec import TensorSpec
    from ttmesh.tensor.tensor import Tensor


P = ParamSpec("P")
R = TypeVar("R")


class Step(NamedTuple):
    """One run of a plan."""

    plan: Plan
    body: Body
    reads: Sequence[Cell]
    outputs: Sequence[Tensor | None]  # tensors of the caller that results were written into
    result: Any


@dataclass(frozen=True)
class LaunchedProgram:
    """A program about to be enqueued, for those who want to compute it another way when it runs.

    `compute` gives its results, unrounded, from the lanes of its inputs; `vary` its body with other arguments, in the
    numerics mode in force; `chips` and the lanes' shape, where it writes some chips only.
    """

    name: str
    arguments: dict[str, Any]
    specs: Sequence[TensorSpec]  # of the cells it reads
    compute: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    vary: Callable[[dict[str, Any]], Body] | None = None
    chips: tuple[frozenset[tuple[int, ...]], tuple[int, ...]] | None = None


class Watcher:
    """A watcher of calls: override the methods of the moments it needs."""

    needs_calls = True  # whether it must see every call; False: it hears of the plans that run, and nothing else
    needs_programs = False  # whether an operation that could return a view must run a program instead

    def before_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A named operation was called."""

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A named operation returned."""

    def after_failure(self, operation: Gate, error: BaseException) -> None:
        """A named operation raised an error."""

    def after_launch(self, operation: Operation, arguments: dict[str, Any], result: Any) -> None:
        """A device operation was launched with these arguments."""

    def after_collective(
        self, name: str, decide: Callable[..., Any], tensors: Sequence[Tensor], options: dict[str, Any], result: Any
    ) -> None:
        """A collective was run, as its rule `decide` says."""

    def wrap_body(self, plan: Plan, launch: LaunchedProgram, body: Body) -> Body:
        """A program is enqueued: what is to run, now and whenever a trace replays it."""
        return body

    def after_run(self, step: Step) -> None:
        """A plan was run."""

    def after_from_torch(self, tensor: Tensor, unrounded: Callable[[], torch.Tensor]) -> None:
        """A host tensor was made of values, which `unrounded` gives as float32 lanes."""

    def after_sending(self, host: Tensor, sent: torch.Tensor) -> None:
        """The lanes of a host tensor go to a device as `sent`: themselves, a view of them, or a copy on a GPU."""

    def after_upload(self, tensor: Tensor) -> None:
        """A tensor came from the host."""

    def before_transfer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function that moves tensors between torch, host and device was called."""

    def end_transfer(self, name: str, result: Any) -> None:
        """It returned this, or raised an error (None)."""

    def after_transfer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A function that moves tensors between torch, host and device returned."""


class Observer:
    """All watchers, in the order they came. `active` is what calls test: whether one needs more than the plans that run."""

    __slots__ = ("active", "needs_programs", "watchers")

    def __init__(self) -> None:
        self._set(())

    def add(self, watcher: Watcher) -> None:
        """Add a watcher of all calls."""
        self._set((*self.watchers, watcher))

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        self._set(tuple(other for other in self.watchers if other is not watcher))

    def _set(self, watchers: tuple[Watcher, ...]) -> None:
        self.watchers = watchers
        self.active = any(watcher.needs_calls for watcher in watchers)
        self.needs_programs = any(watcher.needs_programs for watcher in watchers)


observer = Observer()


def transfer(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Tell watchers when a function that moves tensors begins and ends."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not observer.active:
                return function(*args, **kwargs)
            return watch_transfer(name, function, args, kwargs)

        return call

    return decorate


def watch_transfer(name: str, function: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    """Call a function that moves tensors, between telling watchers that it begins and that it ends."""
    watchers = observer.watchers
    for watcher in watchers:
        watcher.before_transfer(name, args, kwargs)
    result = None
    try:
        result = function(*args, **kwargs)
        return result
    finally:
        for watcher in watchers:
            watcher.end_transfer(name, result)
