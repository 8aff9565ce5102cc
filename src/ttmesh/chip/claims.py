"""A lock per chip, so that processes which divide one system between them cannot take the same chip.

Emulated chips are not scarce: ten test processes may each emulate the whole system. So a claim is exclusive only where a
process declares that it owns some of its chips: when TT_VISIBLE_DEVICES is set (`TTMESH_CLAIMS=auto`, the default) or with
`TTMESH_CLAIMS=exclusive`. Any other process claims nothing and hinders no other; `TTMESH_CLAIMS=shared` makes that the rule.
Processes see each other when they share the directory (TTMESH_RUNTIME_DIR), the system's name and the user.

The lock is flock(2): it ends with the process, however that ends. A process may claim a chip many times (submeshes);
a forked child owns nothing of its parent's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ttmesh.base import settings
from ttmesh.base.directories import runtime_directory
from ttmesh.base.errors import BusyError, MeshError, SettingError


@dataclass(frozen=True)
class Holder:
    """The process that has claimed a chip."""

    pid: int
    command: str
    since_s: float

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.pid else "another process"


@dataclass
class _Held:
    """An open, locked file and how often this process has claimed it."""

    fd: int
    times: int


_held: dict[Path, _Held] = {}
_guard = threading.Lock()


class Claim:
    """Chips of a system that this process has until `release()` or its end."""

    def __init__(self, system_name: str, chips: tuple[int, ...], paths: tuple[Path, ...]) -> None:
        self.system_name = system_name
        self.chips = chips
        self._paths = paths
        self._pid = os.getpid()

    def release(self) -> None:
        """Release the chips; a second call, and a call in a forked child, does nothing."""
        paths, self._paths = self._paths, ()
        if self._pid != os.getpid():
            return
        with _guard:
            for path in paths:
                _unlock(path)

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def is_exclusive(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this process owns the chips it opens."""
    mode = settings.get("TTMESH_CLAIMS", environ)
    return mode == "exclusive" or (mode == "auto" and bool(settings.get("TT_VISIBLE_DEVICES", environ)))


def claim(system_name: str, chips: Iterable[int]) -> Claim:
    """Claim chips by their physical ids, all or none; BusyError names the process that has the first busy one."""
    wanted = tuple(sorted(set(chips)))
    if not is_exclusive():
        return Claim(system_name, wanted, ())
    folder = runtime_directory()
    taken: list[Path] = []
    with _guard:
        try:
            for chip in wanted:
                path = folder / _make_file_name(system_name, chip)
                if not _try_lock(path):
                    raise BusyError(
                        f"chip {chip} of {system_name} is in use by {_read_holder(path)}",
                        expected="a chip that no other process has claimed",
                        fix="End that process, choose others with TT_VISIBLE_DEVICES, or set TTMESH_CLAIMS=shared.",
                    )
                taken.append(path)
        except MeshError:
            for earlier in taken:
                _unlock(earlier)
            raise
    return Claim(system_name, wanted, tuple(taken))


def find_holder(system_name: str, chip: int) -> Holder | None:
    """The process that has claimed a chip, or None."""
    path = runtime_directory() / _make_file_name(system_name, chip)
    if path in _held:
        return _read_holder(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(path)
    finally:
        os.close(fd)
    return None


def _make_write_error(path: Path, error: OSError) -> SettingError:
    return SettingError(
        f"{path} cannot be written: {error.strerror}",
        expected="a directory where processes see each other's claims",
        fix="Set TTMESH_RUNTIME_DIR to another, or TTMESH_CLAIMS=shared.",
    )


def _make_file_name(system_name: str, chip: int) -> str:
    """One file per system and chip; a system may be named by a path, so a digest distinguishes them."""
    digest = hashlib.sha256(system_name.encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', system_name)[-40:]}-{digest}-chip{chip}.lock"


def _try_lock(path: Path) -> bool:
    known = _held.get(path)
    if known is not None:
        known.times += 1
        return True
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _make_write_error(path, error) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = " ".join(sys.argv)[:200] or "python"
        record = json.dumps({"pid": os.getpid(), "command": command, "since_s": time.time()}).encode()
        os.truncate(fd, 0)
        os.pwrite(fd, record, 0)
    except BlockingIOError:
        os.close(fd)
        return False
    except OSError as error:
        os.close(fd)
        raise _make_write_error(path, error) from None
    _held[path] = _Held(fd, 1)
    return True


def _unlock(path: Path) -> None:
    known = _held[path]
    known.times -= 1
    if known.times == 0:
        # The file stays: removing it would let two processes lock two files of one name.
        os.close(_held.pop(path).fd)


def _read_holder(path: Path) -> Holder:
    """The owner's record; it is written just after the lock is taken, so an empty file is read again for a moment."""
    for _ in range(20):
        try:
            data = json.loads(path.read_text())
            return Holder(int(data["pid"]), str(data["command"]), float(data["since_s"]))
        except (ValueError, KeyError, OSError):
            time.sleep(0.005)
    return Holder(0, "", 0.0)


def _forget_in_child() -> None:
    """A forked child shares its parent's locks while the files are open: close them, without unlocking."""
    global _guard
    _guard = threading.Lock()  # the parent's may have been taken at the fork
    for known in _held.values():
        os.close(known.fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
