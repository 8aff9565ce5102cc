"""Out-of-range indices on a GPU: clamped where they are used, reported at the next call that waits.

A CUDA kernel that meets such an index stops with a device-side assert, after which no call of the process can use the GPU
again. So the functions that read or write by index get clamped indices, and the extremes of what was given are kept on
the GPU until a call waits for it; then the error is the one that the same call raises on a CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from ttmesh.chip.backends.plain_dispatch_mode import PlainDispatchMode
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels

aten = torch.ops.aten
# Functions of (source, dim, index, ...): indices from 0 to the source's length along dim.
ALONG_A_DIM = frozenset({
    aten.gather, aten.index_select, aten.index_add, aten.index_add_, aten.index_copy, aten.index_copy_, aten.index_fill,
    aten.index_fill_, aten.scatter, aten.scatter_, aten.scatter_add, aten.scatter_add_, aten.scatter_reduce,
    aten.scatter_reduce_,
})  # fmt: skip
# Functions of (source, [index or None per dim], ...): `source[indices]`, negative indices count from the end.
BY_LIST = frozenset({aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_})
# On a GPU these add in any order, unless torch is asked for the same order every time.
SUMS = frozenset({aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_})
GUARDED = ALONG_A_DIM | BY_LIST | {aten.embedding}
_LARGEST = 2**62
MOST_PENDING = 256  # extremes kept before they are checked although no call waits; each is two numbers


# What raises the error of the function that runs now, where it has one of its own.
_fails: ContextVar[Callable[[int], None] | None] = ContextVar("fails", default=None)


# The guard in whose care a function runs now.
_guard: ContextVar[IndexGuard | None] = ContextVar("guard", default=None)
# Where the uses of the CUDA graph are kept that this thread captures now.
_captured: ContextVar[StickyUses | None] = ContextVar("captured", default=None)


@contextlib.contextmanager
def index_error(fail: Callable[[int], None]) -> Iterator[None]:
    """Inside, an index out of range is reported by this function, which raises; it is called when a call waits."""
    token = _fails.set(fail)
    try:
        yield
    finally:
        _fails.reset(token)


@dataclass(frozen=True)
class Bounds:
    """The range that the indices of one function must be in, and how to make its error."""

    fail: Callable[[int], None]  # calls the function with this index on a CPU
    low: int
    high: int

    def exclude(self, least: int, most: int) -> int | None:
        """Of these extremes the one that is out of bounds."""
        return least if least < self.low else most if most >= self.high else None


@dataclass(frozen=True)
class _Use:
    """Indices that one function got: their bounds, and memory on the GPU with the smallest and largest of them."""

    bounds: Bounds
    extremes: torch.Tensor


class StickyUses:
    """The extremes of a CUDA graph's indices over all its launches."""

    def __init__(self, count: int) -> None:
        self.uses: list[_Use] = []
        self._extremes = _make_blank(count)

    def give(self, bounds: Sequence[Bounds]) -> torch.Tensor:
        """Memory for the extremes of these uses, which kernels widen at every launch."""
        start, end = len(self.uses), len(self.uses) + len(bounds)
        extremes = self._extremes[start:end] if end <= len(self._extremes) else _make_blank(len(bounds))
        self.uses += [_Use(each, pair) for each, pair in zip(bounds, extremes, strict=True)]
        return extremes

    def take(self) -> list[tuple[Bounds, int, int]]:
        """Every use's bounds and extremes; forgets them where one is out of bounds."""
        pairs = self._extremes.tolist() if self.uses else []
        found = [(use.bounds, least, most) for use, (least, most) in zip(self.uses, pairs, strict=True)]
        if any(bounds.exclude(least, most) is not None for bounds, least, most in found):
            self._extremes.copy_(_make_blank(len(self.uses)))
        return found


def _make_blank(count: int) -> torch.Tensor:
    """Extremes of no index."""
    return _blank().repeat(count, 1)


@functools.cache
def _blank() -> torch.Tensor:
    """One pair, made once: the host would wait for its copy, and a capture cannot hold it."""
    return torch.tensor([_LARGEST, -_LARGEST], device="cuda" if torch.cuda.is_available() else "cpu", dtype=torch.int64)


class IndexGuard:
    """Indices used since the last call that waited."""

    def __init__(self) -> None:
        self._uses: list[_Use] = []
        self._sticky: dict[int, StickyUses] = {}

    def make_sticky(self, count: int) -> StickyUses:
        """Where a CUDA graph with so many uses keeps their extremes."""
        return StickyUses(count)

    @contextlib.contextmanager
    def capture(self, uses: StickyUses) -> Iterator[None]:
        """Inside, what this thread runs is captured, and its uses are kept there."""
        token = _captured.set(uses)
        try:
            yield
        finally:
            _captured.reset(token)

    def keep_extremes(self, *bounds: Bounds) -> torch.Tensor:
        """Memory [n, 2] where a kernel widens the extremes of its indices; out of bounds is an error at the next check."""
        captured = _captured.get()
        if captured is not None:
            return captured.give(bounds)
        if len(self._uses) + len(bounds) > MOST_PENDING:
            self.check()
        extremes = _make_blank(len(bounds))
        self._uses += [_Use(each, pair) for each, pair in zip(bounds, extremes, strict=True)]
        return extremes

    def add_sticky(self, uses: StickyUses) -> None:
        """A graph was launched: look at its extremes at the next check."""
        self._sticky[id(uses)] = uses

    def run(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The same function with its indices clamped and remembered."""

        def run_guarded(*args: Any, **kwargs: Any) -> Any:
            token = _guard.set(self)
            try:
                with _Clamping(self):
                    return body(*args, **kwargs)
            finally:
                _guard.reset(token)

        return run_guarded

    def clamp(self, index: torch.Tensor, low: int, size: int, fail: Callable[[int], None]) -> torch.Tensor:
        """Indices within [low, size); those beyond are an error at the next check."""
        if index.numel() == 0 or index.dtype is torch.bool:
            return index
        if size == 0:
            fail(0)
        (extremes,) = self.keep_extremes(Bounds(fail, low, size))
        kernels = find_gpu_kernels("gpu_indices") if index.is_cuda else None
        if kernels is not None:
            clamped: torch.Tensor = kernels.clamp(index, low, size - 1, extremes)
            return clamped
        least, most = torch.aminmax(index)
        torch.minimum(extremes[0], least, out=extremes[0])
        torch.maximum(extremes[1], most, out=extremes[1])
        return index.clamp(low, size - 1)

    def check(self) -> None:
        """Raise what the first function with an index out of range raises on a CPU; forget all uses."""
        sticky, self._sticky = self._sticky, {}
        found = [use for uses in sticky.values() for use in uses.take()]
        plain, self._uses = self._uses, []
        if plain:
            extremes = torch.stack([use.extremes for use in plain]).tolist()
            found += [(use.bounds, least, most) for use, (least, most) in zip(plain, extremes, strict=True)]
        for bounds, least, most in found:
            wrong = bounds.exclude(least, most)
            if wrong is not None:
                bounds.fail(wrong)


def keep_extremes(*bounds: Bounds) -> torch.Tensor:
    """`IndexGuard.keep_extremes` of the guard in whose care a function runs; without one nobody looks at them."""
    guard = _guard.get()
    return _make_blank(len(bounds)) if guard is None else guard.keep_extremes(*bounds)


def bound_by_select(size: int, place: int) -> Bounds:
    """Of `source[..., index, ...]` at a dim of this size, after `place` other indices; negative ones count from the end."""
    return Bounds(_on_cpu(_select, size, place), -size, size)


def uses_indices(body: Callable[[], Any]) -> bool:
    """Whether a function, run on meta tensors, reads or writes by index."""
    noticing = _Noticing()  # type: ignore[no-untyped-call]
    with noticing, contextlib.suppress(Exception):
        body()
    return bool(noticing.found)


class _Noticing(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a guarded function is called."""

    found = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found = self.found or func.overloadpacket in GUARDED
        return func(*args, **(kwargs or {}))


class _Clamping(PlainDispatchMode):  # type: ignore[no-untyped-call]
    """Clamps the indices of guarded functions."""

    def __init__(self, guard: IndexGuard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket in GUARDED:
            args = self._within_range(func, args)
        if func.overloadpacket in SUMS:
            with _same_order():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _within_range(self, func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        packet, given = func.overloadpacket, list(args)
        if packet in ALONG_A_DIM:
            source, dim, index = given[:3]
            size = source.shape[dim] if source.dim() else 1
            given[2] = self._guard.clamp(index, 0, size, _on_cpu(torch.gather, size, dim % max(source.dim(), 1)))
        elif packet is aten.embedding:
            table, index = given[:2]
            fail = _fails.get() or _on_cpu(torch.gather, table.shape[0], 0)
            given[1] = self._guard.clamp(index, 0, table.shape[0], fail)
        else:
            given[1] = self._each(given[0], given[1])
        return tuple(given)

    def _each(self, source: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        clamped: list[torch.Tensor | None] = []
        dim = place = 0
        for index in indices:
            if index is None or index.dtype is torch.bool:
                clamped.append(index)
                dim += 1 if index is None else index.dim()
                place += 0 if index is None else index.dim()
                continue
            size = source.shape[dim]
            clamped.append(self._guard.clamp(index, -size, size, _on_cpu(_select, size, place)))
            dim, place = dim + 1, place + 1
        return clamped


@contextlib.contextmanager
def _same_order() -> Iterator[None]:
    """Sums by index in the same order every time; torch's public switch would import its compiler."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def _on_cpu(
    function: Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor], size: int, dim: int
) -> Callable[[int], None]:
    """A function of a bad index that raises torch's own error for a dim of this size."""

    def fail(index: int) -> None:
        shape = [1] * dim + [size]
        function(
            torch.zeros(shape, dtype=torch.float32, device="cpu"),
            dim,
            torch.full([1] * (dim + 1), index, dtype=torch.int64, device="cpu"),
        )
        raise AssertionError(f"torch takes index {index} for a dim of {size}")

    return fail


def _select(source: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """By indices alone: torch's error counts them, not the dims between."""
    indices = [torch.zeros(1, dtype=torch.int64, device="cpu")] * dim + [index.flatten()]
    return source[tuple(indices)]
