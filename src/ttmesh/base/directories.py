"""Directories of this user alone, for sockets, locks, compiled code and what is temporary.

One rule for all of them. The directory is a real one (no link), belongs to this user and admits no other user (0700);
no other user can replace a folder above it: none of them is writable for all, unless it is sticky as /tmp is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

import platformdirs

from ttmesh.base import settings
from ttmesh.base.errors import MeshError

ENDING = (signal.SIGTERM, signal.SIGHUP)  # by default they end Python without leaving its `with` blocks


class DirectoryError(MeshError):
    """A directory that must be this user's alone is not, or cannot be made."""


def runtime_directory() -> Path:
    """Sockets and locks: TTMESH_RUNTIME_DIR, else `ttmesh` in the system's runtime directory of this user."""
    fix = "Set TTMESH_RUNTIME_DIR to a directory of your own."
    if named := settings.get_str("TTMESH_RUNTIME_DIR"):
        return make_private(Path(named), fix=fix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that XDG_RUNTIME_DIR is unset or not private: the fallback is checked below
        try:
            found = platformdirs.user_runtime_path("ttmesh")
        except OSError as error:
            raise DirectoryError(
                f"there is no runtime directory: {error}", expected="a directory that you own", fix=fix
            ) from None
    return make_private(found, fix=fix)


def cache_directory(name: str) -> Path:
    """What can be made again: `name` in TTMESH_CACHE or TT_METAL_CACHE, else in the user's cache."""
    named = settings.get_str("TTMESH_CACHE") or settings.get_str("TT_METAL_CACHE")
    base = Path(named) if named else _user_cache()
    return make_private(base / name, fix="Set TTMESH_CACHE to a directory of your own.")


def make_private(directory: Path, *, fix: str) -> Path:
    """Make the directory where it is missing; returns it, or a DirectoryError says what of the rule is broken."""
    try:
        directory = directory.absolute()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _find_problem(directory)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        problem = f"cannot be made: {getattr(error, 'strerror', None) or error}"
    if problem:
        raise DirectoryError(
            f"{directory} {problem}",
            expected="a directory of mode 0700 that you own and no other user can replace",
            fix=fix,
        )
    return directory


def _user_cache() -> Path:
    try:
        found = platformdirs.user_cache_path("ttmesh")
    except RuntimeError:  # how newer versions say that the user has no home
        found = Path("~")
    if not found.is_absolute():
        raise DirectoryError("this user has no home directory", expected="a cache", fix="Set HOME or TTMESH_CACHE.")
    return found


def _find_problem(directory: Path) -> str:
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return "is a link" if stat.S_ISLNK(found.st_mode) else "is not a directory"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to you ({os.geteuid()})"
    if found.st_mode & 0o077:
        return f"lets others in (mode {stat.S_IMODE(found.st_mode):04o})"
    for parent in directory.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"can be exchanged by others: all may write to {parent}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return "cannot be written to"
    return ""


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder that goes at the end of the block, or with a signal that ends the process.

    A process that was killed cannot remove its folder: the next call with the same prefix does.
    """
    remove_abandoned(prefix)
    with ExitStack() as stack:
        folder = _make_locked(prefix, stack)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_removed_by_signals(folder))
        yield folder


def remove_abandoned(prefix: str) -> None:
    """Remove this user's folders of this prefix whose processes are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError), ExitStack() as stack:  # another user's, or just gone
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, held)
            if os.fstat(held).st_uid == os.geteuid():
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error while its process lives
                shutil.rmtree(folder)


def _make_locked(prefix: str, stack: ExitStack) -> Path:
    """A new folder, with a lock that says that this process lives."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with suppress(FileNotFoundError), ExitStack() as opened:
            held = os.open(folder, os.O_RDONLY)
            opened.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
            folder.stat()  # another process may have removed it before it was locked
            stack.push(opened.pop_all())
            return folder


@contextmanager
def _removed_by_signals(folder: Path) -> Iterator[None]:
    """While entered, signals that would end this process remove the folder first."""
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:  # a forked child has the handler too
            shutil.rmtree(folder, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    in_main = threading.current_thread() is threading.main_thread()
    changed = [number for number in ENDING if in_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)
