"""Memory use over time in fixed space: per second for an hour, per minute for a day."""

from __future__ import annotations

from array import array
from typing import NamedTuple

LARGEST = 2**63 - 1  # the largest value of a slot; a hostile client may report more


class Point(NamedTuple):
    """The minimum, maximum and last value in one time step."""

    time_s: int
    low: int
    high: int
    last: int


class HistoryRing:
    """The newest `slots` steps of `step_s` seconds, 24 bytes each."""

    __slots__ = ("_newest", "_oldest", "_values", "slots", "step_s")

    def __init__(self, *, step_s: int, slots: int) -> None:
        self.step_s = step_s
        self.slots = slots
        self._values = array("q", bytes(24 * slots))
        self._newest = self._oldest = -1

    def push(self, time_s: float, low: int, high: int, last: int) -> None:
        """Add values; steps without values repeat the last one, earlier times are merged into the newest step."""
        low, high, last = min(low, LARGEST), min(high, LARGEST), min(last, LARGEST)
        step = max(int(time_s) // self.step_s, self._newest)
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
        for missing in range(max(self._newest + 1, step - self.slots), step):
            at = 3 * (missing % self.slots)
            self._values[at : at + 3] = array("q", (last, last, last))

    def points(self, *, since_s: float, until_s: float) -> list[Point]:
        """The steps from `since_s` on, oldest first, the last value repeated until `until_s`."""
        if self._newest < 0:
            return []
        end = max(int(until_s) // self.step_s, self._newest)
        first = max(int(since_s) // self.step_s, self._oldest, end - self.slots + 1)
        known = min(end, self._newest) + 1
        low, high = first % self.slots, known - first + first % self.slots  # may go around the end
        values = self._values[3 * low : 3 * min(high, self.slots)] + self._values[: 3 * max(0, high - self.slots)]
        times = range(first * self.step_s, known * self.step_s, self.step_s)
        points = list(map(Point, times, values[0::3], values[1::3], values[2::3]))
        last = self._values[3 * (self._newest % self.slots) + 2]
        points += [Point(step * self.step_s, last, last, last) for step in range(max(first, known), end + 1)]
        return points


class History:
    """One quantity over an hour and over a day."""

    __slots__ = ("minutes", "seconds")

    def __init__(self) -> None:
        self.seconds = HistoryRing(step_s=1, slots=3600)
        self.minutes = HistoryRing(step_s=60, slots=1440)

    def push(self, time_s: float, low: int, high: int, last: int) -> None:
        """Add the values since the last push."""
        self.seconds.push(time_s, low, high, last)
        self.minutes.push(time_s, low, high, last)

    def window(self, *, now_s: float, length_s: int) -> list[Point]:
        """The last `length_s` seconds, in seconds up to an hour and in minutes beyond."""
        ring = self.seconds if length_s <= self.seconds.slots else self.minutes
        return ring.points(since_s=now_s - length_s, until_s=now_s)
