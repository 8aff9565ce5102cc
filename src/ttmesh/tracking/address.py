"""Where the allocation server listens: a private Unix socket, or HOST:PORT with a token."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from ttmesh.base import settings
from ttmesh.base.directories import runtime_directory
from ttmesh.base.errors import MeshError

LOOK_S = 0.05  # how often `waiting` is called during a name look-up
Place = tuple[int, tuple[object, ...] | str]  # a socket family and the argument of `socket.connect`


class AddressError(MeshError):
    """The address of the allocation server cannot be used."""


class Address(NamedTuple):
    """A Unix socket's path, or a host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    @property
    def is_tcp(self) -> bool:
        """Whether a token is needed."""
        return not self.path

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """A path if it has a slash or no colon, else HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if "/" in text or not colon:
        if len(os.fsencode(text)) > 107:  # sun_path holds 108 bytes, the last one zero
            raise AddressError(
                f"the socket path {text!r} is too long", expected="at most 107 bytes", fix="Choose a shorter path."
            )
        return Address(path=text)
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise AddressError(
            f"{text!r} has no port number", expected="HOST:PORT", fix="Add a port, for example 127.0.0.1:7000."
        )
    return Address(host=host.strip("[]") or "127.0.0.1", port=int(port))


def parse_tcp(text: str) -> Address:
    """HOST:PORT and nothing else."""
    address = parse(text)
    if not address.is_tcp:
        raise AddressError(
            f"{text!r} has no port number", expected="HOST:PORT", fix="Add a port, for example 127.0.0.1:7000."
        )
    return address


def choose_address(text: str = "") -> Address:
    """The given address, otherwise TTMESH_SOCKET, otherwise the user's default socket."""
    text = text or settings.get_str("TTMESH_SOCKET")
    return parse(text) if text else Address(path=str(runtime_directory() / "ttmesh.sock"))


def connect(address: Address, *, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> socket.socket:
    """A connected socket, or an OSError; `waiting` is called repeatedly while a name is looked up."""
    if address.is_tcp:
        connection = _connect_to_first(look_up(address, timeout_s=timeout_s, waiting=waiting), timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000
            )  # ms until a host counts as unreachable
        return connection
    return _connect_to_first([(socket.AF_UNIX, address.path)], timeout_s)


def look_up(address: Address, *, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> list[Place]:
    """The addresses of a host; the system's look-up has no time limit, so it runs in its own thread."""
    look = _lookups.get(address)
    if look is None:
        look = _lookups[address] = _Lookup(address)
        look.start()
    deadline_s = time.monotonic() + timeout_s
    while look.is_alive():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"looking up {address.host} takes more than {timeout_s:g} s")
        look.join(LOOK_S)
        waiting()
    _lookups.pop(address, None)
    if look.problem is not None:
        raise look.problem
    return look.targets


class _Lookup(threading.Thread):
    """One name look-up; a later call finds it running or gets its result."""

    def __init__(self, address: Address) -> None:
        super().__init__(name="ttmesh-look-up", daemon=True)
        self.targets: list[Place] = []
        self.problem: OSError | None = None
        self._address = address

    def run(self) -> None:
        """Look the name up with the system's resolver."""
        try:
            found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM)
            self.targets = [(entry[0], entry[4]) for entry in found]
        except OSError as error:
            self.problem = error
        except UnicodeError:  # for example a label of more than 63 characters
            self.problem = OSError(f"{self._address.host!r} is not a name of a host")


_lookups: dict[Address, _Lookup] = {}


def _connect_to_first(targets: list[Place], timeout_s: float) -> socket.socket:
    """A connection to the first address that accepts one."""
    problem: OSError = OSError("no address was found")
    for family, place in targets:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(place)
        except OSError as error:
            connection.close()
            problem = error
        else:
            return connection
    raise problem


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot, which with the pid identifies it uniquely; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
