"""Compiles a kernel's C file at first use into a private cache and loads it; if that fails, torch computes instead."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from ttmesh.base import settings
from ttmesh.base.directories import DirectoryError, cache_directory

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
# No contraction: a fused multiply-add would round differently from torch. psabi: vectors wider than the machine's.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-Wno-psabi", "-fPIC", "-shared", "-pthread")
X86_FLAGS = ("-mprefer-vector-width=512",)  # one face row of float32 is one register; split where there is no AVX-512
COMPILE_TIMEOUT_S = 120.0
CHECK_TIMEOUT_S = 60.0
FORGOTTEN_S = 3600.0  # a draft this old was left by a process that was killed
LEAST_BYTES = 1 << 20  # what compiling a kernel needs of the disk
DIGEST_BYTES = 32  # behind a cached library: what was written whole

# In a separate process: a damaged library may crash the process that loads it.
CHECK = """
import ctypes, sys
try:
    sys.exit(0 if ctypes.CDLL(sys.argv[1]).check() == 1 else "it computes wrongly")
except (OSError, AttributeError) as error:
    sys.exit(str(error))
"""


class _Unusable(Exception):
    """Why a kernel is not available."""


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """The compiled `<name>.c`, or None when kernels are off or not available."""
    if not settings.get_bool("TTMESH_KERNELS") or os.name != "posix":
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        source = FOLDER / f"{name}.c"
        built = cache_directory("kernels") / f"{name}-{_fingerprint(source, compiler)}.so"
        if not _is_whole(built):
            _compile(source, built, compiler)
        return ctypes.CDLL(str(built))
    except (OSError, DirectoryError, _Unusable) as error:
        log.warning("compiled %s is not available, torch computes instead: %s", name, error)
        return None


@functools.cache
def find_function(library_name: str, name: str, *argtypes: Any) -> ctypes._NamedFuncPointer:
    """A function of a library that is there; it returns an int."""
    compiled = library(library_name)
    assert compiled is not None, "called without asking supports()"
    function: ctypes._NamedFuncPointer = getattr(compiled, name)
    function.argtypes, function.restype = list(argtypes), ctypes.c_int
    return function


def cached_until_forgotten(choose: Callable[P, R]) -> Callable[P, R]:
    """A choice that depends on whether a library is there, kept until `forget` is called."""
    cached = functools.lru_cache(maxsize=1024)(choose)
    _choices.append(cached.cache_clear)
    return cast("Callable[P, R]", cached)


def forget() -> None:
    """Decide again at the next use; for tests that change settings."""
    for clear in (library.cache_clear, _compiler.cache_clear, *_choices):
        clear()
    _hung.clear()


_choices: list[Callable[[], None]] = []
_hung: set[str] = set()  # compilers that did not come to an end: not waited for again


@functools.cache
def _compiler() -> str | None:
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def _flags() -> tuple[str, ...]:
    return FLAGS + (X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())


def _fingerprint(source: Path, compiler: str) -> str:
    """Changes with the code, the flags, the compiler and the processor (a cache may be shared by unlike machines)."""
    version = os.stat(compiler)
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    inputs = [source.read_bytes(), *headers, repr(_flags()).encode(), _processor()]
    inputs.append(f"{os.path.realpath(compiler)} {version.st_size} {version.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(inputs)).hexdigest()[:20]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}".encode()
    return b"\n".join(line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part")))


def _is_whole(built: Path) -> bool:
    """Whether a cached library is as it was written: to load half of one ends the process."""
    try:
        data = built.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-DIGEST_BYTES]).digest() == data[-DIGEST_BYTES:]


def _compile(source: Path, built: Path, compiler: str) -> None:
    """Compile in a temporary folder, try the result there, and move it into place as a whole."""
    if compiler in _hung:
        raise _Unusable(f"{compiler} did not come to an end before")
    _remove_forgotten(built.parent)
    drafts = Path(tempfile.mkdtemp(prefix="draft-", dir=built.parent))
    try:
        draft = drafts / built.name
        _run([compiler, *_flags(), str(source), "-o", str(draft)], drafts, COMPILE_TIMEOUT_S)
        with draft.open("ab") as file:
            file.write(hashlib.sha256(draft.read_bytes()).digest())
            file.flush()
            os.fsync(file.fileno())
        _run([sys.executable, "-I", "-S", "-c", CHECK, str(draft)], drafts, CHECK_TIMEOUT_S)
        os.replace(draft, built)  # two processes at once: each replaces the other's identical file
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


def _run(command: list[str], folder: Path, timeout_s: float) -> None:
    """Run a command that must succeed, with temporary files in `folder`; no process of it is left running."""
    with (folder / "output").open("w+b") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a compiler has children
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _hung.add(command[0])
            raise _Unusable(f"{command[0]} did not come to an end in {timeout_s:.0f} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            output.seek(0)
            message = output.read(2000).decode(errors="replace").strip()
            raise _Unusable(f"{command[0]} ended with {code}: {message or _explain_silence(folder)}")


def _explain_silence(folder: Path) -> str:
    """The reason why a failed compiler left no message."""
    if shutil.disk_usage(folder).free >= LEAST_BYTES:
        return "no message"
    return f"{folder.parent} is full. Make room there, or set TTMESH_CACHE to another directory"


def _remove_forgotten(folder: Path) -> None:
    for draft in folder.glob("draft-*"):
        try:
            old = time.time() - draft.stat().st_mtime > FORGOTTEN_S
        except FileNotFoundError:
            continue
        if old:
            shutil.rmtree(draft, ignore_errors=True)
