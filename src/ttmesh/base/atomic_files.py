"""Files replaced atomically: readers find the old contents or the new ones, even if a writer is killed."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".unfinished"


@contextmanager
def replace_file(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the path's place when the block ends, flushed to the disk; unchanged if it raises.

    The temporary has a name of its own, or none where the system allows it, and its writer holds a lock on it: the next
    writer of the path removes what killed ones left. Links are followed; a device or a pipe is written to as it is.
    """
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        with open(path, "wb") as given:
            yield given
        return
    target = Path(os.path.realpath(path))
    remove_unfinished(target)
    fd, name = _open_temporary(target)
    try:
        with open(fd, "wb", closefd=False) as file:
            yield file
        if before is not None:
            os.fchmod(fd, stat.S_IMODE(before.st_mode))
        os.fsync(fd)  # otherwise a power failure could leave the new name without its contents
        if name is None:
            name = _temporary_name(target)
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=0)  # src_dir_fd makes Python follow the link in /proc
        os.replace(name, target)
        name = None
        _sync_folder(target.parent)
    finally:
        if name is not None:
            with suppress(FileNotFoundError):
                name.unlink()
        os.close(fd)


def write_file(path: str | Path, contents: bytes | str) -> None:
    """Replace a file by these contents; text as UTF-8."""
    with replace_file(path) as file:
        file.write(contents.encode(errors="backslashreplace") if isinstance(contents, str) else contents)


def remove_unfinished(target: Path) -> None:
    """Remove the temporaries of killed writers of this path; those of living ones are locked."""
    for name in target.parent.glob(f"{glob.escape(_prefix(target))}*{SUFFIX}"):
        with suppress(OSError):  # another user's, or another process was faster
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                name.unlink()
            finally:
                os.close(fd)


def _open_temporary(target: Path) -> tuple[int, Path | None]:
    """A locked file beside the target, and its name where it has one."""
    with suppress(OSError, AttributeError):  # not every system and file system has files without a name
        os.stat("/proc/self/fd")  # through which it gets one
        fd = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
        _lock(fd)
        return fd, None
    while True:
        name = _temporary_name(target)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _lock(fd)
        if os.fstat(fd).st_nlink:  # else another writer took it for a killed one's before it was locked
            return fd, name
        os.close(fd)


def _lock(fd: int) -> None:
    with suppress(OSError):  # a file system without locks: nothing is ever removed there either
        fcntl.flock(fd, fcntl.LOCK_EX)


def _temporary_name(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{SUFFIX}")


def _prefix(target: Path) -> str:
    """How temporaries of this path begin; names may have 255 bytes."""
    name = os.fsencode(target.name)
    return f".{target.name if len(name) < 200 else hashlib.sha256(name).hexdigest()}."


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # some file systems cannot; the rename itself is done
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
