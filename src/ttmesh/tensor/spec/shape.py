"""The shape of a tensor, printed and compared as TT-NN's `Shape`."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import SupportsIndex, overload

from ttmesh.base.errors import ShapeError

LEAST_DIMS = 4  # indices from the end reach so far in TT-NN: dims in front of the first are 1


class Shape(tuple[int, ...]):
    """Extents of a tensor; a tuple, so torch and numpy take it as it is, that also equals lists."""

    __slots__ = ()

    def __new__(cls, shape: Iterable[int] = ()) -> Shape:
        """The extents, each a non-negative int."""
        if type(shape) is Shape:
            return shape
        values = tuple(int(extent) for extent in shape)
        if values and min(values) < 0:
            raise TypeError(f"Shape({list(values)}) has a negative extent; expected non-negative ints")
        return super().__new__(cls, values)

    @property
    def rank(self) -> int:
        """How many dims."""
        return len(self)

    def volume(self) -> int:
        """How many elements."""
        return prod(self)

    def to_rank(self, new_rank: int) -> Shape:
        """The same elements with ones added in front, or leading ones taken away."""
        if any(extent != 1 for extent in self[: max(len(self) - new_rank, 0)]):
            raise ShapeError(
                f"Can't convert shape rank: {self!r} to rank {new_rank}",
                expected="only leading ones to be dropped",
                fix="Reshape the tensor first.",
            )
        return Shape((1,) * (new_rank - len(self)) + tuple(self)[max(len(self) - new_rank, 0) :])

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[int, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice) -> int | tuple[int, ...]:
        try:
            return super().__getitem__(key)
        except IndexError:
            lowest = -max(len(self), LEAST_DIMS)
            if isinstance(key, int) and lowest <= key < 0:
                return 1
            raise ShapeError(
                f"ShapeBase[] index out of range. {key} not in [{lowest}, {len(self)})",
                expected=f"an index of {self!r}",
                fix="Pass an index below the rank.",
            ) from None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple):
            return super().__eq__(other)
        return tuple(self) == tuple(other) if isinstance(other, list) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return f"Shape({list(self)})"
