"""Gets views from the server; raises if it does not answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ttmesh.monitor.address_map import AddressMap, address_maps
from ttmesh.monitor.exports import shared_memory
from ttmesh.monitor.view import EVERYTHING, Choice, DeviceView, View, build
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor, UnreachableError
from ttmesh.tracking.state import Buffers, DeviceKey, Histories, Leaks, ServerState, State

TREND_S = 60
TREND_POINTS = 30
BUFFERS_SHOWN = 5000


@dataclass(frozen=True)
class Detail:
    """One device with its largest buffers and the maps of its memory."""

    device: DeviceView
    buffers: Buffers
    maps: tuple[AddressMap, ...]


class Source:
    """Queries one server; after an UnreachableError the next query connects again.

    Chips that real tt-metal uses on this machine are shown beside ours, also without a server.
    """

    def __init__(self, address: Address, *, token: str = "", shared: Path | None = None) -> None:
        self._monitor = Monitor(address, token=token)
        self._shared = shared_memory.default_directory() if shared is None else shared
        self.problem = ""  # why the last view holds chips of real tt-metal alone

    def view(self, choice: Choice = EVERYTHING, *, trends: bool = False) -> View:
        """Everything on one page."""
        state = self.state()
        wanted = trends and state.server.pid
        histories = self._monitor.histories(window_s=TREND_S, points=TREND_POINTS) if wanted else None
        return build(state, histories, choice, problem=self.problem)

    def state(self) -> State:
        """What the server knows, and real chips' statistics."""
        self.problem = ""
        devices, processes = shared_memory.as_states(shared_memory.read(self._shared))
        try:
            known = self._monitor.state()
        except UnreachableError as error:
            if not devices:
                raise
            self.problem = str(error)
            now_s = time.time()
            known = State(ServerState(0, 0, now_s, now_s, 0, 0, 0), [], [])
        return State(known.server, [*known.devices, *devices], [*known.processes, *processes], known.left_out)

    def detail(self, key: DeviceKey) -> Detail | None:
        """One device in detail, None when it is not open; without a system it is looked for in all of the host's."""
        state = self.state()
        host, system, physical_id = key
        found = [
            d for d in state.devices if (d.host, d.physical_id) == (host, physical_id) and system in ("", d.system)
        ]
        if not found:
            return None
        key = found[0].key
        if found[0].host == shared_memory.HOST:
            histories, buffers = Histories(), Buffers([], 0, [])
        else:
            histories = self._monitor.histories(key, window_s=TREND_S, points=TREND_POINTS)
            buffers = self._monitor.buffers(key, limit=BUFFERS_SHOWN)
        view = build(state, histories)
        device = next(d for d in view.devices if d.key == key)
        return Detail(device, buffers, tuple(address_maps(found[0], buffers)))

    def histories(self, device: DeviceKey | None, *, window_s: int, points: int) -> Histories:
        """What one device or all held over time, closed devices included; nothing without a server."""
        if self.problem or (device is not None and device[0] == shared_memory.HOST):
            return Histories()
        return self._monitor.histories(device, window_s=window_s, points=points)

    def leaks(self) -> Leaks:
        """What processes and meshes left."""
        return self._monitor.leaks()

    def close(self) -> None:
        """Close the connection."""
        self._monitor.close()
