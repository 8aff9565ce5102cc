"""All devices that processes use, bounded in number, and the histories of their memory."""

from __future__ import annotations

from ttmesh.tracking.history import History
from ttmesh.tracking.holders import Account, Device

MAX_DEVICES = 1024
MAX_SERIES = 2048  # histories of 121 KB, of all devices together
FORGET_S = 3600.0  # how long an unused device is still shown


class DeviceTable(dict[tuple[str, int], Device]):
    """Devices by host and physical id."""

    def __init__(self) -> None:
        super().__init__()
        self.series = 0  # histories of all devices

    @property
    def is_full(self) -> bool:
        """Whether no device can be added unless one is forgotten."""
        return len(self) >= MAX_DEVICES

    def add(self, host: str, physical_id: int) -> Device:
        """A new device."""
        device = self[host, physical_id] = Device(host, physical_id)
        return device

    def find_account(self, device: Device, kind: str) -> Account:
        """The account of one class of memory on a device, which is added if it is new."""
        account = device.accounts.get(kind)
        if account is None:
            while self.series >= MAX_SERIES and self.forget_oldest():
                pass
            has_room = self.series < MAX_SERIES  # then there is no history, but everything else works
            self.series += has_room
            account = device.accounts[kind] = Account(History() if has_room else None)
        return account

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
            for account in (*device.accounts.values(), *device.pools.values()):
                account.tick(now_s)
            if not device.users and now_s - device.unused_since_s > FORGET_S:
                self._forget(device)

    def _forget(self, device: Device) -> None:
        self.series -= device.series
        del self[device.host, device.physical_id]
