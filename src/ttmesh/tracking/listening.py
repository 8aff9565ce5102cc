"""Sockets to listen on: a Unix socket that only its owner (or group) can open, or TCP with a token."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import resource
import socket
import struct
import termios
from pathlib import Path

from ttmesh.base.errors import MeshError
from ttmesh.tracking.address import Address, connect


class ServerError(MeshError):
    """The allocation server cannot start."""


def listen(address: Address, files: contextlib.ExitStack, *, mode: int, token: str) -> tuple[socket.socket, Address]:
    """A listening socket and its real address; `files` closes it and removes its files."""
    if not address.is_tcp:
        listener = _listen_at_path(address, files, mode)
    elif token:
        try:
            listener = files.enter_context(socket.create_server((address.host, address.port), backlog=128))
        except OSError as error:
            raise ServerError(
                f"listening on {address} is not possible: {os.strerror(error.errno or 0)}",
                expected="an address of this machine and a port that is free",
                fix="Choose another address, such as 0.0.0.0:7000.",
            ) from None
        address = Address(host=address.host, port=listener.getsockname()[1])
    else:
        raise ServerError(
            f"listening on {address} needs a token",
            expected="TTMESH_TOKEN or --token-file",
            fix="Choose a secret and give it to the server and to its clients.",
        )
    listener.setblocking(False)
    return listener, address


def _listen_at_path(address: Address, files: contextlib.ExitStack, mode: int) -> socket.socket:
    try:
        lock = os.open(f"{address.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerError(
            f"{address} cannot be made: {error.strerror}",
            expected="a path in a directory that exists and may be written to",
            fix="Choose another path with --socket or TTMESH_SOCKET.",
        ) from None
    files.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ServerError(
            f"a server listens at {address} already",
            expected="a free address",
            fix="Stop that server or choose another address.",
        ) from None
    path = Path(address.path)
    if path.is_socket():
        if _is_served(address):  # its lock file was removed
            raise ServerError(
                f"a server listens at {address} already",
                expected="a free address",
                fix="Stop that server or choose another address.",
            )
        path.unlink()  # the lock is ours, so the server that made it has ended
    elif path.exists():
        raise ServerError(f"{address} is not a socket", expected="a free path", fix="Choose another path.")
    listener = files.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    previous = os.umask(0o777 & ~mode)  # never accessible to others, not even before the chmod
    try:
        listener.bind(address.path)
    finally:
        os.umask(previous)
    made = os.stat(address.path)
    files.callback(_remove_if_same, path, (made.st_dev, made.st_ino))
    os.chmod(address.path, mode)
    listener.listen(128)
    return listener


def _is_served(address: Address) -> bool:
    try:
        connect(address, timeout_s=1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return False
    except OSError:  # its queue is full, or access is denied
        return True
    return True


def _remove_if_same(path: Path, made: tuple[int, int]) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if (found.st_dev, found.st_ino) == made:
            path.unlink()


def peer_pid(sock: socket.socket) -> int:
    """The pid at the other end of a Unix socket, from the kernel; 0 if unknown."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def unread_bytes(sock: socket.socket) -> int:
    """The number of received bytes that were not read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(sock, termios.FIONREAD, count)
    return count[0]


def process_handle(pid: int) -> int:
    """A file descriptor that becomes readable when the process ends; -1 if the system has none."""
    if not pid or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:  # it has ended already, which its socket shows
        return -1


def notice_loss(sock: socket.socket) -> None:
    """Let the kernel detect within 20 s that the other host is unreachable."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of file descriptors as far as the system allows; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
