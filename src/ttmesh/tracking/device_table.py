"""Devices by host, system and physical id: who has them open, what they hold, and their histories."""

from __future__ import annotations

from ttmesh.base.records import ChipFacts
from ttmesh.tracking.history import DAY, History
from ttmesh.tracking.state import POOLS, DeviceKey

MAX_DEVICES = 1024
MAX_SERIES = 2 * MAX_DEVICES  # histories of 121 KB, of all devices together
FORGET_S = float(DAY)  # how long the history of an unused device is kept


class Account:
    """Bytes and buffers of one class of memory, or of a pool, on one device: now, and the extremes since a tick."""

    __slots__ = ("_peak", "count", "high", "history", "low", "used")

    def __init__(self, history: History | None = None) -> None:
        self.used = self.count = self.low = self.high = self._peak = 0
        self.history = history

    @property
    def peak(self) -> int:
        """The most bytes held since the device was opened."""
        return max(self._peak, self.high)

    def tick(self, now_s: float) -> None:
        """Store the extremes in the history, which repeats the last value where nothing is stored, and reset them."""
        if self.low != self.high or self.high > self._peak or (self.history and self.history.seconds.oldest_s < 0):
            if self.history:
                self.history.push(now_s, self.low, self.high, self.used)
            self._peak = self.peak
            self.low = self.high = self.used

    def restart(self, now_s: float) -> None:
        """Begin a new peak."""
        if self.low != self.high:  # of this second, by those who had it open before
            self.tick(now_s)
        self._peak = self.used

    def add(self, size_bytes: int, count: int) -> None:
        """Add to the bytes held."""
        self.used += size_bytes
        self.count += count
        self.low = min(self.low, self.used)
        self.high = max(self.high, self.used)


class Device:
    """One physical chip of one system of one host."""

    __slots__ = (
        "accounts",
        "coordinates",
        "facts",
        "host",
        "openers",
        "physical_id",
        "pools",
        "system",
        "unused_since_s",
        "users",
    )

    def __init__(self, key: DeviceKey) -> None:
        self.host, self.system, self.physical_id = key
        self.facts: ChipFacts | None = None
        self.accounts: dict[str, Account] = {}
        self.pools = {name: Account() for name in POOLS}
        self.users = 0  # processes that named it, whose records may still refer to its accounts
        self.openers = 0  # processes with an open mesh on it
        self.coordinates = 0  # meshes that it coordinates
        self.unused_since_s = float("inf")

    @property
    def key(self) -> DeviceKey:
        """Its unique name."""
        return self.host, self.system, self.physical_id

    @property
    def is_open(self) -> bool:
        """Whether a process has it open or holds something on it; otherwise only its history is left."""
        return self.openers > 0 or any(pool.count or pool.used for pool in self.pools.values())

    @property
    def series(self) -> int:
        """The number of its histories."""
        return sum(pool.history is not None for pool in self.pools.values())

    def find_account(self, kind: str) -> Account:
        """The account of one class of memory, which is added if it is new."""
        account = self.accounts.get(kind)
        if account is None:
            account = self.accounts[kind] = Account()
        return account

    def open(self, now_s: float) -> None:
        """One more process has it open; with the first of them peaks begin anew."""
        if not self.is_open:
            for account in (*self.accounts.values(), *self.pools.values()):
                account.restart(now_s)
        self.openers += 1

    def tick(self, now_s: float) -> None:
        """Update the history."""
        for account in self.accounts.values():
            account.tick(now_s)
        for pool in self.pools.values():
            pool.tick(now_s)


class DeviceTable(dict[DeviceKey, Device]):
    """Devices by host, system and physical id, kept while a process uses them and for a while afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.series = 0  # histories of all devices

    @property
    def is_full(self) -> bool:
        """Whether no device can be added unless one is forgotten."""
        return len(self) >= MAX_DEVICES

    def add(self, key: DeviceKey) -> Device:
        """A new device, with histories if there is room for them."""
        while self.series + len(POOLS) > MAX_SERIES and self.forget_oldest():
            pass
        device = self[key] = Device(key)
        if self.series + len(POOLS) <= MAX_SERIES:
            for pool in device.pools.values():
                pool.history = History()
            self.series += device.series
        return device

    def forget_oldest(self) -> bool:
        """Drop the device that is unused for the longest time; False if all are used."""
        unused = [device for device in self.values() if not device.users]
        if not unused:
            return False
        self._forget(min(unused, key=lambda device: device.unused_since_s))
        return True

    def tick(self, now_s: float) -> None:
        """Update histories once per second."""
        for device in list(self.values()):
            device.tick(now_s)
            if not device.users and now_s - device.unused_since_s > FORGET_S:
                self._forget(device)

    def _forget(self, device: Device) -> None:
        self.series -= device.series
        del self[device.key]
