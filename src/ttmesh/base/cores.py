"""Cores on one chip: coordinates, ranges and sets of ranges, as TT-NN prints, compares and writes them as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Any, Protocol, TypeVar

from ttmesh.base.argument_types import misfit
from ttmesh.base.errors import MeshError

Value = TypeVar("Value", bound="JsonValue")
Text = str  # the classes below have a method of that name, as TT-NN's do


class JsonValue(Protocol):
    """What consists of dicts, lists and numbers that JSON has too."""

    def to_json_value(self) -> Any:
        """The value as dicts, lists and numbers."""

    @classmethod
    def from_json_value(cls: type[Value], value: Any) -> Value:
        """The value that `to_json_value` gave."""


class JsonText:
    """A value with TT-NN's `to_json` and `from_json`, for classes that are a `JsonValue`."""

    __slots__ = ()

    def to_json(self: JsonValue) -> str:
        """The value as JSON, keys in alphabetical order and without spaces, as TT-NN writes it."""
        return json.dumps(self.to_json_value(), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls: type[Value], json_string: str) -> Value:
        """The value that `to_json` wrote."""
        try:
            return cls.from_json_value(json.loads(json_string))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MeshError(
                f"{json_string!r} is not the JSON of a {cls.__name__}",
                expected=f"what {cls.__name__}.to_json() returns",
                fix="Pass that text.",
            ) from None


@dataclass(frozen=True, order=True, init=False)
class CoreCoord(JsonText):
    """The logical place of one core."""

    x: int
    y: int

    def __init__(self, x: int | Sequence[int], y: int | None = None) -> None:
        pair = x if y is None and isinstance(x, (tuple, list)) else (x, y)
        try:
            place = tuple(map(index, pair))  # type: ignore[arg-type]  # what has no index is refused
        except TypeError:
            place = ()
        if len(place) != 2:
            raise misfit("__init__", "x, y", f"CoreCoord() takes x and y, or a tuple of them, not {pair!r}")
        object.__setattr__(self, "x", place[0])
        object.__setattr__(self, "y", place[1])

    def to_json_value(self) -> dict[Text, int]:
        """The two numbers by name."""
        return {"x": self.x, "y": self.y}

    @classmethod
    def from_json_value(cls, value: dict[Text, int]) -> CoreCoord:
        """The core at two numbers by name."""
        return CoreCoord(value["x"], value["y"])

    def str(self) -> Text:
        """As TT-NN writes it: (x=0,y=1)."""
        return f"(x={self.x},y={self.y})"

    def __iter__(self) -> Iterator[int]:
        return iter((self.x, self.y))

    def __repr__(self) -> Text:
        return f"{self.x}-{self.y}"


class DramGrid(CoreCoord):
    """The DRAM banks seen as a grid; equal to the plain coordinate, but a shard grid of this kind means DRAM."""

    def __eq__(self, other: object) -> bool:
        return (self.x, self.y) == (other.x, other.y) if isinstance(other, CoreCoord) else NotImplemented

    __hash__ = CoreCoord.__hash__


class NOC(Enum):
    """Which of a chip's two networks moves data; here every move takes the same time on both."""

    NOC_0 = 0
    NOC_1 = 1
    RISCV_0_default = NOC_0
    RISCV_1_default = NOC_1


@dataclass(frozen=True)
class CoreGrid:
    """A rectangle of cores from the origin: the numbers of rows (y) and columns (x)."""

    y: int
    x: int

    def __init__(self, y: int, x: int) -> None:
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "x", x)

    @property
    def num_cores(self) -> int:
        """How many cores."""
        return self.x * self.y

    def to_CoreCoord(self) -> CoreCoord:
        """The grid as the coordinate one past its end."""
        return CoreCoord(self.x, self.y)

    def __repr__(self) -> str:
        return f"ttnn.CoreGrid(x={self.x}, y={self.y})"


@dataclass(frozen=True)
class CoreRange(JsonText):
    """A rectangle of cores, both corners included."""

    start: CoreCoord
    end: CoreCoord

    def __init__(self, start: CoreCoord | tuple[int, int], end: CoreCoord | tuple[int, int] | None = None) -> None:
        first = start if isinstance(start, CoreCoord) else CoreCoord(*start)
        last = first if end is None else end if isinstance(end, CoreCoord) else CoreCoord(*end)
        if last.x < first.x or last.y < first.y:
            raise RuntimeError(
                f"Invalid core range for start_coord: {first.str()}, end_coord: {last.str()}; "
                "expected start <= end on both axes. Swap the corners."
            )
        object.__setattr__(self, "start", first)
        object.__setattr__(self, "end", last)

    @property
    def start_coord(self) -> CoreCoord:
        """The corner nearest the origin."""
        return self.start

    @property
    def end_coord(self) -> CoreCoord:
        """The far corner."""
        return self.end

    def grid_size(self) -> CoreCoord:
        """Columns and rows."""
        return CoreCoord(self.end.x - self.start.x + 1, self.end.y - self.start.y + 1)

    def size(self) -> int:
        """How many cores."""
        extent = self.grid_size()
        return extent.x * extent.y

    def contains(self, other: CoreCoord | CoreRange) -> bool:
        """Whether a core, or every core of a rectangle, is inside."""
        first, last = (other, other) if isinstance(other, CoreCoord) else (other.start, other.end)
        return self.start.x <= first.x and self.start.y <= first.y and last.x <= self.end.x and last.y <= self.end.y

    def intersects(self, other: CoreRange) -> bool:
        """Whether the rectangles share a core."""
        return not (
            other.end.x < self.start.x
            or self.end.x < other.start.x
            or other.end.y < self.start.y
            or self.end.y < other.start.y
        )

    def cores(self, *, row_wise: bool = True) -> list[CoreCoord]:
        """Every core, row by row or column by column."""
        xs, ys = range(self.start.x, self.end.x + 1), range(self.start.y, self.end.y + 1)
        return [CoreCoord(x, y) for y in ys for x in xs] if row_wise else [CoreCoord(x, y) for x in xs for y in ys]

    def __iter__(self) -> Iterator[CoreCoord]:
        return iter(self.cores())

    def to_json_value(self) -> dict[Text, dict[Text, int]]:
        """The two corners by name."""
        return {"start": self.start.to_json_value(), "end": self.end.to_json_value()}

    @classmethod
    def from_json_value(cls, value: dict[Text, dict[Text, int]]) -> CoreRange:
        """The rectangle between two corners by name."""
        return CoreRange(*(CoreCoord.from_json_value(value[name]) for name in ("start", "end")))

    def str(self) -> Text:
        """As TT-NN writes it: [(x=0,y=0) - (x=1,y=1)]."""
        return f"[{self.start.str()} - {self.end.str()}]"

    def __repr__(self) -> Text:
        return f"[{self.start!r} - {self.end!r}]"


class CoreRangeSet(JsonText):
    """A union of rectangles that do not overlap."""

    __slots__ = ("_ranges",)

    def __init__(self, ranges: CoreRange | Iterable[CoreRange] = ()) -> None:
        boxes = [ranges] if isinstance(ranges, CoreRange) else list(ranges)
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                if a.intersects(b):
                    raise RuntimeError(
                        f"Cannot create CoreRangeSet with specified core ranges because core ranges {a.str()} and "
                        f"{b.str()} overlap; expected disjoint ranges. Merge or shrink them."
                    )
        self._ranges: tuple[CoreRange, ...] = tuple(boxes)

    def ranges(self) -> list[CoreRange]:
        """The rectangles."""
        return list(self._ranges)

    def num_cores(self) -> int:
        """How many cores."""
        return sum(r.size() for r in self._ranges)

    def size(self) -> int:
        """How many rectangles."""
        return len(self._ranges)

    def empty(self) -> bool:
        """No rectangle."""
        return not self._ranges

    def bounding_box(self) -> CoreRange:
        """The smallest rectangle around all."""
        return CoreRange(
            CoreCoord(min(r.start.x for r in self._ranges), min(r.start.y for r in self._ranges)),
            CoreCoord(max(r.end.x for r in self._ranges), max(r.end.y for r in self._ranges)),
        )

    def contains(self, other: CoreCoord | CoreRange | CoreRangeSet) -> bool:
        """Whether every core of the other is here."""
        cores = [other] if isinstance(other, CoreCoord) else other.cores()
        return all(any(r.contains(core) for r in self._ranges) for core in cores)

    def intersects(self, other: CoreRange | CoreRangeSet) -> bool:
        """Whether a core is shared."""
        boxes = [other] if isinstance(other, CoreRange) else other.ranges()
        return any(a.intersects(b) for a in self._ranges for b in boxes)

    def cores(self, *, row_wise: bool = True) -> list[CoreCoord]:
        """Every core, rectangle after rectangle."""
        return [core for r in self._ranges for core in r.cores(row_wise=row_wise)]

    def merge(self, other: CoreRangeSet | Iterable[CoreRange]) -> CoreRangeSet:
        """Every core of both, in maximal rectangles."""
        cores = {*self.cores(), *(c for r in other for c in r.cores())}
        return CoreRangeSet(_sort_by_column(rectangles(cores)))

    def subtract(self, other: CoreRangeSet) -> CoreRangeSet:
        """The cores that the other does not have: of each rectangle what is left, right, above and below, as in TT-NN."""
        remaining = _sort_by_column(rectangles(self.cores()))
        for hole in _sort_by_column(list(other)):
            remaining = [
                part for box in remaining for part in (_split_around(box, hole) if box.intersects(hole) else [box])
            ]
        return CoreRangeSet(remaining)

    def __iter__(self) -> Iterator[CoreRange]:
        return iter(self._ranges)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CoreRangeSet):
            return NotImplemented
        return set(self.cores()) == set(other.cores())

    def __hash__(self) -> int:
        return hash(frozenset(self.cores()))

    def to_json_value(self) -> list[Any]:
        """The rectangles, each by its corners."""
        return [box.to_json_value() for box in self._ranges]

    @classmethod
    def from_json_value(cls, value: list[Any]) -> CoreRangeSet:
        """The union of rectangles, each by its corners."""
        return CoreRangeSet(map(CoreRange.from_json_value, value))

    def str(self) -> Text:
        """As TT-NN writes it: {[(x=0,y=0) - (x=1,y=1)]}."""
        return "{" + ", ".join(r.str() for r in self._ranges) + "}"

    def __repr__(self) -> Text:
        return "{" + ", ".join(map(repr, self._ranges)) + "}"


def _sort_by_column(boxes: list[CoreRange]) -> list[CoreRange]:
    return sorted(boxes, key=lambda box: (box.start.x, box.start.y))


def _split_around(box: CoreRange, hole: CoreRange) -> list[CoreRange]:
    """What a hole leaves of a rectangle: whole columns at its sides, then what is above and below it."""
    left, right = max(box.start.x, hole.start.x), min(box.end.x, hole.end.x)
    top, bottom = max(box.start.y, hole.start.y), min(box.end.y, hole.end.y)
    corners = [
        (box.start.x, box.start.y, left - 1, box.end.y),
        (right + 1, box.start.y, box.end.x, box.end.y),
        (left, box.start.y, right, top - 1),
        (left, bottom + 1, right, box.end.y),
    ]
    return [CoreRange(CoreCoord(a, b), CoreCoord(c, d)) for a, b, c, d in corners if a <= c and b <= d]


def rectangles(cores: Iterable[CoreCoord]) -> list[CoreRange]:
    """Cover a set of cores with disjoint rectangles: runs within a row, merged with equal runs below."""
    runs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    remaining = set(cores)
    for y in sorted({c.y for c in remaining}):
        xs = sorted(c.x for c in remaining if c.y == y)
        start = previous = xs[0]
        for x in [*xs[1:], None]:
            if x is not None and x == previous + 1:
                previous = x
                continue
            spans = runs.setdefault((start, previous), [])
            if spans and spans[-1][1] == y - 1:
                spans[-1] = (spans[-1][0], y)
            else:
                spans.append((y, y))
            if x is not None:
                start = previous = x
    boxes = [CoreRange(CoreCoord(a, top), CoreCoord(b, low)) for (a, b), spans in runs.items() for top, low in spans]
    return sorted(boxes, key=lambda r: (r.start.y, r.start.x))
