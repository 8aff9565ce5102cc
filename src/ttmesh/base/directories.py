"""Private directories of this user for sockets, locks and compiled code.

One rule for all of them. The directory is a real one (no link), belongs to this user and admits no other user (0700);
no other user can replace a folder above it: none of them is writable for all, unless it is sticky as /tmp is.
"""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

import platformdirs

from ttmesh.base import settings
from ttmesh.base.errors import MeshError


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
