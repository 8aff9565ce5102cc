"""RuntimeArgs: the arguments of a descriptor's kernel on each core, written as args[x][y] = [...]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ttmesh.base.cores import CoreCoord

Entry = tuple[CoreCoord, list[int]]


class Column:
    """The cores of one x."""

    def __init__(self, entries: list[Entry], x: int) -> None:
        self._entries, self._x = entries, x

    def __setitem__(self, y: int, values: Sequence[int]) -> None:
        found = self._find(y)
        if found is None:
            self._entries.append((CoreCoord(self._x, y), list(values)))
        else:
            found[:] = values

    def __getitem__(self, y: int) -> list[int]:
        found = self._find(y)
        if found is None:
            found = []
            self._entries.append((CoreCoord(self._x, y), found))
        return found

    def extend(self, y: int, values: Sequence[int]) -> None:
        """More arguments for one core."""
        self[y].extend(values)

    def append(self, y: int, value: int) -> None:
        """One more argument for one core."""
        self[y].append(value)

    def _find(self, y: int) -> list[int] | None:
        here = CoreCoord(self._x, y)
        return next((values for core, values in self._entries if core == here), None)


class RuntimeArgs:
    """Pairs of a core and its arguments, in the order they were given."""

    def __init__(self, entries: Iterable[tuple[CoreCoord, Sequence[int]]] = ()) -> None:
        self._entries: list[Entry] = [(core, list(values)) for core, values in entries]

    def __getitem__(self, x: int) -> Column:
        return Column(self._entries, x)

    def append(self, coord: CoreCoord, values: Sequence[int]) -> None:
        """Arguments of one more core."""
        self._entries.append((coord, list(values)))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, idx: int) -> Entry:
        """The pair at an index."""
        return self._entries[idx]

    def to_list(self) -> list[Entry]:
        """All pairs."""
        return list(self._entries)

    def clear(self) -> None:
        """Remove all pairs."""
        self._entries.clear()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuntimeArgs) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"RuntimeArgs({self._entries!r})"
