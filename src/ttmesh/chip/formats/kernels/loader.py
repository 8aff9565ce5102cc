"""Compiles a kernel's C file at first use into a private cache and loads it; without a compiler there is none."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from ttmesh.base import settings

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
# No contraction: a fused multiply-add would round differently from torch. psabi: vectors wider than the machine's.
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-Wno-psabi", "-fPIC", "-shared")
X86_FLAGS = ("-mprefer-vector-width=512",)  # one face row of float32 is one register; split where there is no AVX-512
COMPILE_TIMEOUT_S = 120


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """The compiled `<name>.c`, or None when kernels are off or cannot be compiled here."""
    if not settings.get_bool("TTMESH_KERNELS") or os.name != "posix":
        return None
    compiler = _compiler()
    if compiler is None:
        return None
    source = FOLDER / f"{name}.c"
    built = cache_folder() / f"{name}-{_fingerprint(source, compiler)}.so"
    if not built.exists() and not _compile(source, built, compiler):
        return None
    return ctypes.CDLL(str(built))


@functools.cache
def cache_folder() -> Path:
    """Where compiled kernels are kept; readable by this user only, because what lies there is executed."""
    named = settings.get_str("TTMESH_CACHE") or settings.get_str("TT_METAL_CACHE")
    base = Path(named) if named else Path.home() / ".cache" / "ttmesh"
    folder = base / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        log.info("kernel cache %s cannot be made (%s): kernels are compiled for this process only", folder, error)
        return Path(tempfile.mkdtemp(prefix="ttmesh-kernels-"))
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or not os.access(folder, os.W_OK):
        log.warning("kernel cache %s can be written by others or not by us: not used", folder)
        return Path(tempfile.mkdtemp(prefix="ttmesh-kernels-"))
    return folder


def forget() -> None:
    """Decide again at the next use; for tests that change settings."""
    for cached in (library, cache_folder, _compiler):
        cached.cache_clear()


@functools.cache
def _compiler() -> str | None:
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def _flags() -> tuple[str, ...]:
    return FLAGS + (X86_FLAGS if platform.machine() in ("x86_64", "AMD64") else ())


def _fingerprint(source: Path, compiler: str) -> str:
    """Changes with the code, the flags, the compiler and the processor (a cache may be shared by unlike machines)."""
    version = os.stat(compiler)
    parts = [source.read_bytes(), repr(_flags()).encode(), _processor()]
    parts.append(f"{os.path.realpath(compiler)} {version.st_size} {version.st_mtime_ns}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


def _processor() -> bytes:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.platform()}".encode()
    return b"\n".join(line for line in lines if line.startswith((b"model name", b"flags", b"Features", b"CPU part")))


def _compile(source: Path, built: Path, compiler: str) -> bool:
    handle, draft = tempfile.mkstemp(prefix=f"{built.stem}-", suffix=".draft", dir=built.parent)
    os.close(handle)
    try:
        command = [compiler, *_flags(), str(source), "-o", draft]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            log.warning("%s does not compile here, torch serves instead: %s", source.name, done.stderr.strip())
            return False
        os.replace(draft, built)  # two processes at once: each replaces the other's identical file
        return True
    finally:
        Path(draft).unlink(missing_ok=True)
