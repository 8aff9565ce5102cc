"""Bytes and buffers per class of memory, device and process: now, at most, and over time."""

from __future__ import annotations

from ttmesh.base.records import ChipFacts
from ttmesh.tracking.history import History
from ttmesh.tracking.state import POOLS


class Account:
    """Bytes and buffers of one class of memory, or of a pool, on one device: now, and the extremes since a tick."""

    __slots__ = ("_peak", "count", "high", "history", "low", "used")

    def __init__(self, history: History | None = None) -> None:
        self.used = self.count = self.low = self.high = self._peak = 0
        self.history = history

    @property
    def peak(self) -> int:
        """The most that was ever held."""
        return max(self._peak, self.high)

    def tick(self, now_s: float) -> None:
        """Write the extremes down and start anew."""
        if self.history:
            self.history.push(now_s, self.low, self.high, self.used)
        self._peak = self.peak
        self.low = self.high = self.used

    def add(self, size_bytes: int, count: int, *, low: int = 0, high: int = 0) -> None:
        """Change what is held; `low` and `high` are the furthest that it went on the way."""
        used = self.used
        self.low = min(self.low, used + min(low, size_bytes))
        self.high = max(self.high, used + max(high, size_bytes))
        self.used = used + size_bytes
        self.count += count


class Route:
    """The accounts that a buffer of one class on some chips counts in.

    Chips in lock-step change alike: the changes are summed here and reach the accounts when another route's turn comes.
    """

    __slots__ = ("accounts", "change", "chips", "count", "high", "low")

    def __init__(self, chips: tuple[int, ...], accounts: list[Account]) -> None:
        self.chips = chips
        self.accounts = accounts
        self.change = self.count = self.low = self.high = 0

    def settle(self) -> int:
        """Tell the accounts; returns how many there were to tell."""
        if not (self.change or self.count or self.low or self.high):
            return 0
        for account in self.accounts:
            account.add(self.change, self.count, low=self.low, high=self.high)
        self.change = self.count = self.low = self.high = 0
        return len(self.accounts)


class Device:
    """One physical chip of one host, kept while a process uses it and for a while afterwards."""

    __slots__ = ("accounts", "coordinates", "facts", "host", "physical_id", "pools", "system", "unused_since_s", "users")

    def __init__(self, host: str, physical_id: int) -> None:
        self.host = host
        self.physical_id = physical_id
        self.facts: ChipFacts | None = None
        self.system = ""
        self.accounts: dict[str, Account] = {}
        self.pools = {name: Account() for name in POOLS}
        self.users = 0  # processes
        self.coordinates = 0  # meshes that are led by it
        self.unused_since_s = float("inf")

    @property
    def series(self) -> int:
        """How many histories it has."""
        return sum(account.history is not None for account in self.accounts.values())
