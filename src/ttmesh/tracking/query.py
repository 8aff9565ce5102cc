"""How a monitor queries the server: a blocking connection, one query at a time."""

from __future__ import annotations

import os
import socket
import threading
from types import TracebackType
from typing import TypeVar

import msgspec

from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.tracking import wire
from ttmesh.tracking.address import Address, connect, start_ticks
from ttmesh.tracking.history import HOUR
from ttmesh.tracking.state import Buffers, DeviceKey, Histories, Leaks, State

EVERY_DEVICE: DeviceKey = ("", "", -1)

Reply = TypeVar("Reply", State, Buffers, Histories, Leaks)


class UnreachableError(MeshError):
    """No allocation server answers."""


class Monitor:
    """A connection to the allocation server that reconnects when it breaks; threads may share it."""

    def __init__(self, address: Address, *, token: str = "", timeout_s: float = 5.0) -> None:
        self.address = address
        self._token = token or settings.get_str("TTMESH_TOKEN")
        self._timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._asking = threading.Lock()

    def state(self) -> State:
        """Every device and process."""
        return self._ask(wire.Query("state"), State)

    def buffers(self, device: DeviceKey | None = None, *, limit: int = 2000) -> Buffers:
        """The largest buffers of one device, or of all."""
        host, system, physical_id = EVERY_DEVICE if device is None else device
        return self._ask(wire.Query("buffers", physical_id, host, limit, system=system), Buffers)

    def histories(self, device: DeviceKey | None = None, *, window_s: int = 120, points: int = HOUR) -> Histories:
        """Memory use over the last seconds of one device, or of all, each pool in at most `points` points."""
        host, system, physical_id = EVERY_DEVICE if device is None else device
        return self._ask(wire.Query("history", physical_id, host, 0, window_s, system, points), Histories)

    def leaks(self) -> Leaks:
        """What ended processes and closed meshes still held."""
        return self._ask(wire.Query("leaks"), Leaks)

    def close(self) -> None:
        """Close the connection."""
        with self._asking:
            if self._sock:
                self._sock.close()
                self._sock = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, query: wire.Query, answer: type[Reply]) -> Reply:
        try:
            with self._asking:
                if self._sock is None:
                    self._sock = self._connect()
                self._sock.sendall(wire.frame(wire.QUERY, query))
                kind, body = self._receive(self._sock)
        except (OSError, wire.FrameError) as error:
            self.close()
            raise UnreachableError(
                f"the allocation server at {self.address} does not answer ({error})",
                expected="a running server",
                fix="Start one with `ttmesh server`.",
            ) from None
        if kind == wire.REFUSED:
            self.close()
            reason = msgspec.msgpack.decode(body, type=wire.Refused).reason
            raise UnreachableError(
                f"the allocation server at {self.address} refused: {reason}",
                expected="a server of this version and its token",
                fix="Check TTMESH_SOCKET and TTMESH_TOKEN.",
            )
        return msgspec.msgpack.decode(body, type=answer)

    def _connect(self) -> socket.socket:
        sock = connect(self.address, timeout_s=self._timeout_s)
        pid = os.getpid()
        hello = wire.Hello(
            "monitor", pid, start_ticks(pid), "monitor", socket.gethostname(), wire.token_text(self._token)
        )
        sock.sendall(wire.frame(wire.HELLO, hello))
        return sock

    def _receive(self, sock: socket.socket) -> tuple[int, bytes]:
        frames = wire.Frames(max_body=wire.MAX_REPLY)
        while (taken := frames.take()) is None:
            data = sock.recv(1 << 20)
            if not data:
                raise ConnectionError("it closed the connection")
            frames.feed(data)
        return taken
