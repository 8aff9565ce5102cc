"""Where views come from: asks the server, and says so when it does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.monitor.address_map import AddressMap, address_maps
from ttmesh.monitor.view import EVERYTHING, Choice, DeviceKey, DeviceView, View, build
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor
from ttmesh.tracking.state import Buffers

TREND_S = 60
BUFFERS_SHOWN = 5000


@dataclass(frozen=True)
class Detail:
    """One device with its largest buffers and the maps of its memory."""

    device: DeviceView
    buffers: Buffers
    maps: tuple[AddressMap, ...]


class Source:
    """Asks one server; an UnreachableError leaves it usable, the next question connects again."""

    def __init__(self, address: Address, *, token: str = "") -> None:
        self._monitor = Monitor(address, token=token)

    def view(self, choice: Choice = EVERYTHING, *, trends: bool = False) -> View:
        """Everything on one page."""
        histories = self._monitor.histories(window_s=TREND_S) if trends else None
        return build(self._monitor.state(), histories, choice)

    def detail(self, key: DeviceKey) -> Detail | None:
        """One device in detail, None when the server does not know it."""
        host, physical_id = key
        state = self._monitor.state()
        found = [d for d in state.devices if (d.host, d.physical_id) == key]
        if not found:
            return None
        view = build(state, self._monitor.histories(physical_id, host=host, window_s=TREND_S))
        buffers = self._monitor.buffers(physical_id, host=host, limit=BUFFERS_SHOWN)
        device = next(d for d in view.devices if d.key == key)
        return Detail(device, buffers, tuple(address_maps(found[0], buffers)))

    def close(self) -> None:
        """Hang up."""
        self._monitor.close()
