"""Memory use over time in fixed space: per second for an hour, per minute for a day."""

from __future__ import annotations

from array import array
from typing import NamedTuple

LARGEST = 2**63 - 1  # the largest value of a slot; a hostile client may report more
HOUR, DAY = 3600, 86_400


class Point(NamedTuple):
    """The minimum, maximum and last value in one time step."""

    time_s: int
    low: int
    high: int
    last: int


class HistoryWindow(NamedTuple):
    """Steps of a history that follow one another; windows with the same values are equal."""

    first: int  # the number of its first step since time 0
    step_s: int
    steps: int
    values: bytes  # the minimum, maximum and last value of each step, 8 bytes each; nothing where all are zero

    def points(self, most: int = HOUR) -> list[Point]:
        """At most `most` steps, oldest first.

        If there are more, several at a time are summed up; they begin at multiples of their length, whenever one asks.
        """
        values = array("q", self.values or bytes(24 * self.steps))
        first, end = self.first, self.first + self.steps
        at_once = -(-(end - first) // most)
        at_once = -(-(end - first + at_once - 1) // most)  # the first and the last may be incomplete
        if at_once <= 1:
            times = range(first * self.step_s, end * self.step_s, self.step_s)
            return list(map(Point, times, values[0::3], values[1::3], values[2::3]))
        found = []
        for step in range(first - first % at_once, end, at_once):
            start, stop = 3 * max(0, step - first), 3 * (min(step + at_once, end) - first)
            lows, highs = values[start:stop:3], values[start + 1 : stop : 3]
            found.append(Point(max(step, first) * self.step_s, min(lows), max(highs), values[stop - 1]))
        return found


class HistoryRing:
    """The newest `slots` steps of `step_s` seconds, 24 bytes each."""

    __slots__ = ("_newest", "_oldest", "_values", "slots", "step_s")

    def __init__(self, *, step_s: int, slots: int) -> None:
        self.step_s = step_s
        self.slots = slots
        self._values = array("q")  # empty while every value is zero, as those of most pools are
        self._newest = self._oldest = -1

    @property
    def oldest_s(self) -> int:
        """When the first step began, or -1."""
        return self._oldest * self.step_s if self._oldest >= 0 else -1

    def push(self, time_s: float, low: int, high: int, last: int) -> None:
        """Add values; steps without values repeat the last one, earlier times are merged into the newest step."""
        low, high, last = min(low, LARGEST), min(high, LARGEST), min(last, LARGEST)
        step = max(int(time_s) // self.step_s, self._newest)
        if high and not self._values:
            self._values = array("q", bytes(24 * self.slots))
        if self._values:
            at = 3 * (step % self.slots)
            if step == self._newest:
                low, high = min(low, self._values[at]), max(high, self._values[at + 1])
            else:
                self._repeat_until(step)
            self._values[at : at + 3] = array("q", (low, high, last))
        self._newest = step
        if self._oldest < 0:
            self._oldest = step

    def _repeat_until(self, step: int) -> None:
        if self._newest < 0:
            return
        last = self._values[3 * (self._newest % self.slots) + 2]
        first = max(self._newest + 1, step - self.slots)
        begin, end = first % self.slots, first % self.slots + step - first  # may go around the end
        for start, stop in ((begin, min(end, self.slots)), (0, end - self.slots)):
            if stop > start:
                self._values[3 * start : 3 * stop] = array("q", (last,)) * (3 * (stop - start))

    def window(self, *, since_s: float, until_s: float) -> HistoryWindow:
        """The steps from `since_s` on, with the last value repeated until `until_s`."""
        if self._newest < 0:
            return HistoryWindow(0, self.step_s, 0, b"")
        end = max(int(until_s) // self.step_s, self._newest)
        first = max(int(since_s) // self.step_s, self._oldest, end - self.slots + 1)
        if not self._values:
            return HistoryWindow(first, self.step_s, end + 1 - first, b"")
        last = self._values[3 * (self._newest % self.slots) + 2]
        known = min(end, self._newest) + 1
        low, high = first % self.slots, known - first + first % self.slots  # may go around the end
        values = self._values[3 * low : 3 * min(high, self.slots)] + self._values[: 3 * max(0, high - self.slots)]
        values += array("q", (last,)) * (3 * (end + 1 - max(first, known)))
        return HistoryWindow(first, self.step_s, end + 1 - first, values.tobytes())


class History:
    """One quantity over an hour and over a day."""

    __slots__ = ("minutes", "seconds")

    def __init__(self) -> None:
        self.seconds = HistoryRing(step_s=1, slots=HOUR)
        self.minutes = HistoryRing(step_s=60, slots=DAY // 60)

    def push(self, time_s: float, low: int, high: int, last: int) -> None:
        """Add the values since the last push."""
        self.seconds.push(time_s, low, high, last)
        self.minutes.push(time_s, low, high, last)

    def window(self, *, now_s: float, length_s: int) -> HistoryWindow:
        """The last `length_s` seconds, in seconds if all of them are known so, in minutes beyond."""
        since_s = max(now_s - length_s, self.seconds.oldest_s)
        ring = self.seconds if now_s - since_s <= HOUR else self.minutes
        return ring.window(since_s=since_s, until_s=now_s)
