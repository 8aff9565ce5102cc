"""The shape of a tensor, printed and compared as TT-NN's `Shape`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ttmesh.base.errors import ShapeError

LEAST_DIMS = 4  # indices from the end reach so far in TT-NN: dims in front of the first are 1

# For type checkers a shape is a sequence; at run time it is neither a Sequence nor a tuple, as in TT-NN: programs ask.
if TYPE_CHECKING:
    _Base = Sequence[int]
else:
    _Base = object


class Shape(_Base):
    """Extents of a tensor; like TT-NN's, no tuple, but equal to tuples and lists of the same extents."""

    __slots__ = ("_extents",)
    _extents: tuple[int, ...]

    def __new__(cls, shape: Iterable[int] = ()) -> Shape:
        """The extents, each a non-negative int."""
        if type(shape) is Shape:
            return shape
        values = tuple(int(extent) for extent in shape)
        if values and min(values) < 0:
            raise TypeError(f"Shape({list(values)}) has a negative extent; expected non-negative ints")
        made = super().__new__(cls)
        object.__setattr__(made, "_extents", values)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"'Shape' object attribute {name!r} is read-only")

    @property
    def rank(self) -> int:
        """How many dims."""
        return len(self._extents)

    def volume(self) -> int:
        """How many elements."""
        return prod(self._extents)

    def to_rank(self, new_rank: int) -> Shape:
        """The same elements with ones added in front, or leading ones taken away."""
        if any(extent != 1 for extent in self[: max(len(self) - new_rank, 0)]):
            raise ShapeError(
                f"Can't convert shape rank: {self!r} to rank {new_rank}",
                expected="only leading ones to be dropped",
                fix="Reshape the tensor first.",
            )
        return Shape((1,) * (new_rank - len(self)) + self._extents[max(len(self) - new_rank, 0) :])

    def __len__(self) -> int:
        return len(self._extents)

    def __iter__(self) -> Iterator[int]:
        return iter(self._extents)

    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: slice) -> tuple[int, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice) -> int | tuple[int, ...]:
        try:
            return self._extents[key]
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
        if type(other) is Shape:
            return self._extents == other._extents
        return self._extents == tuple(other) if isinstance(other, (tuple, list)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._extents)

    def __reduce__(self) -> Any:
        return Shape, (self._extents,)

    def __repr__(self) -> str:
        return f"Shape({list(self._extents)})"
