"""Where the allocation server listens: a private Unix socket, or HOST:PORT with a token."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from ttmesh.base import settings
from ttmesh.base.directories import runtime_directory
from ttmesh.base.errors import MeshError


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
            raise AddressError(f"the socket path {text!r} is too long", expected="at most 107 bytes", fix="Shorten it.")
        return Address(path=text)
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        raise AddressError(f"{text!r} has no port number", expected="HOST:PORT", fix="Write 127.0.0.1:7000, say.")
    return Address(host=host.strip("[]") or "127.0.0.1", port=int(port))


def parse_tcp(text: str) -> Address:
    """HOST:PORT and nothing else."""
    address = parse(text)
    if not address.is_tcp:
        raise AddressError(f"{text!r} has no port number", expected="HOST:PORT", fix="Write 127.0.0.1:7000, say.")
    return address


def chosen(text: str = "") -> Address:
    """The address given, else TTMESH_SOCKET, else the user's own socket."""
    text = text or settings.get_str("TTMESH_SOCKET")
    return parse(text) if text else Address(path=str(runtime_directory() / "ttmesh.sock"))


def connect(address: Address, *, timeout_s: float) -> socket.socket:
    """A connected socket, or an OSError."""
    if address.is_tcp:
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 20_000)  # ms until a host is gone
        return connection
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address.path)
    except OSError:
        connection.close()
        raise
    return connection


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since boot: with the pid it names a process for good. 0 where unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
