"""Kernels are compiled once, privately, and never needed."""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import bfloat8_b
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.kernels import loader

pytestmark = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    settings.override("TTMESH_CACHE", str(tmp_path / "cache"))
    loader.forget()
    yield tmp_path / "cache" / "kernels"
    settings.override("TTMESH_CACHE", None)
    settings.override("TTMESH_KERNELS", None)
    loader.forget()


def test_a_kernel_is_compiled_once_into_a_private_folder(cache: Path) -> None:
    assert loader.library("tile_order") is not None
    (built,) = cache.iterdir()
    compiled_at = built.stat().st_mtime_ns

    loader.forget()

    assert loader.library("tile_order") is not None
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert built.name.startswith("tile_order-")
    assert built.stat().st_mtime_ns == compiled_at


def test_every_c_file_compiles_without_warnings(tmp_path: Path) -> None:
    compiler = loader._compiler()
    assert compiler is not None
    for source in loader.FOLDER.glob("*.c"):
        command = [compiler, *loader._flags(), "-Wall", "-Wextra", "-Werror", str(source), "-o", str(tmp_path / "x.so")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_portable_branches_give_the_same_bits(tmp_path: Path) -> None:
    """Without this machine's vector extensions the C file takes its other branches."""
    script = (
        "import torch\n"
        "from ttmesh.chip.formats.kernels import loader\n"
        "loader.FLAGS = tuple(f for f in loader.FLAGS if f != '-march=native')\n"
        "loader.X86_FLAGS = ()\n"
        "from ttmesh.base.dtypes import BLOCK_FLOATS, Layout\n"
        "from ttmesh.chip.formats import block_float, packing\n"
        "from ttmesh.chip.formats.kernels import block_tiles\n"
        "bits = torch.randint(-2**31, 2**31, (96, 80), generator=torch.Generator().manual_seed(1)).to(torch.int32)\n"
        "values = torch.cat([bits.view(torch.float32), torch.randn(96, 80)])\n"
        "assert block_tiles.supports(values)\n"
        "for dtype in BLOCK_FLOATS:\n"
        "    for packer in ('host', 'device'):\n"
        "        plain = block_float.decode(*block_float.encode(values.view(-1, 16), dtype, packer), dtype)\n"
        "        mine = block_float.quantise(values, dtype, packer=packer).view(-1, 16)\n"
        "        assert torch.equal(mine.view(torch.int16), plain.view(torch.int16)), (dtype, packer)\n"
        "    packed = packing.pack(values, dtype, Layout.TILE)\n"
        "    lanes = packing.unpack(packed, tuple(values.shape), dtype, Layout.TILE)\n"
        "    again = block_float.quantise(values, dtype)\n"
        "    assert torch.equal(lanes.view(torch.int16), again.view(torch.int16)), dtype\n"
        "from ttmesh.chip.formats.kernels.lane_sum import _sum_in_order, lane_sum\n"
        "terms = torch.randn(1, 8, 9001)\n"
        "for kind in (torch.float32, torch.bfloat16):\n"
        "    assert torch.equal(lane_sum(terms.to(kind), (1,)), _sum_in_order(terms.to(kind), (1,), kind)), kind\n"
    )
    environment = {**os.environ, "TTMESH_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=300
    )

    assert done.returncode == 0, done.stderr


def test_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    script = "from ttmesh.chip.formats.kernels import loader; print(loader.library('lane_sum') is not None)"
    environment = {**os.environ, "TTMESH_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    assert [process.communicate(timeout=300)[0].strip() for process in started] == ["True", "True"]
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".so"]


def test_without_a_compiler_torch_computes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "COMPILERS", ("no-such-compiler",))
    loader.forget()

    assert loader.library("block_tiles") is None
    assert quantise(torch.ones(2, 16), bfloat8_b).eq(1).all()


def test_kernels_can_be_switched_off(cache: Path) -> None:
    settings.override("TTMESH_KERNELS", "0")
    loader.forget()

    assert loader.library("block_tiles") is None
    assert not cache.exists()


def _serves_by_torch(cache: Path, tmp_path: Path) -> None:
    """No kernel, right values, and no file left in the cache or in the folder for temporary files."""
    loader.forget()
    before = sorted(cache.iterdir()) if cache.is_dir() else []

    assert loader.library("block_tiles") is None
    assert quantise(torch.ones(2, 16), bfloat8_b).eq(1).all()
    assert (sorted(cache.iterdir()) if cache.is_dir() else []) == before
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles without optimising, which takes a tenth of the time."""
    monkeypatch.setattr(loader, "FLAGS", tuple("-O0" if flag == "-O3" else flag for flag in loader.FLAGS))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def _output_of(body: str) -> str:
    """A compiler that takes its own source and writes where it was told to."""
    compile_it = f'exec {loader._compiler()} -shared -fPIC -o "$last" "$last.c"'
    return f"for last; do :; done\nprintf '%s' '{body}' > \"$last.c\"\n{compile_it}"


COMPILERS = {
    "fails": "exit 1",
    "says that all is well and writes nothing": "exit 0",
    "is killed": "kill -9 $$",
    "speaks no UTF-8": "printf '\\377\\376' >&2; exit 1",
    "leaves files behind": "echo > $TMPDIR/left; exit 1",
    "writes no library": 'for last; do :; done; echo nonsense > "$last"',
    "gives a library without the functions": _output_of("int x;"),
    "gives a library that crashes": _output_of("int check(void) { return *(volatile int *)0; }"),
    "gives a library that cannot be entered": _output_of(
        "__attribute__((constructor)) void f(void) { __builtin_trap(); }"
    ),
    "gives a library that computes wrongly": _output_of("int check(void) { return 0; }"),
}


@pytest.mark.parametrize("body", COMPILERS.values(), ids=COMPILERS.keys())
def test_torch_serves_when_the_compiler(
    body: str,
    cache: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{body}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(loader, "COMPILERS", (str(compiler),))
    cache.mkdir(parents=True, mode=0o700)

    _serves_by_torch(cache, tmp_path)

    assert "block_tiles is not available, torch computes instead" in caplog.text


def test_a_compiler_that_hangs_is_ended_with_its_children_and_not_asked_again(
    cache: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler, pids = tmp_path / "cc", tmp_path / "pids"
    compiler.write_text(f"#!/bin/sh\nsleep 1000 & echo $! $$ >> {pids}; wait\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(loader, "COMPILERS", (str(compiler),))
    monkeypatch.setattr(subprocess.Popen, "wait", _hasty(subprocess.Popen.wait, pids))
    cache.mkdir(parents=True, mode=0o700)

    _serves_by_torch(cache, tmp_path)
    assert loader.library("lane_sum") is None

    assert "did not come to an end" in caplog.text
    (line,) = pids.read_text().splitlines()  # asked once
    child, own = map(int, line.split())
    while _is_running(child):
        time.sleep(0.01)
    assert not _is_running(own)


def _is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _hasty(wait: Callable[..., int], pids: Path) -> Callable[..., int]:
    """Waiting with a time limit ends as soon as the compiler has started its child."""

    def hasty(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        while not (pids.exists() and pids.read_text().endswith("\n")):
            time.sleep(0.01)
        raise subprocess.TimeoutExpired(process.args, timeout)

    return hasty


def test_a_compiler_that_is_no_program_is_replaced_by_torch(
    cache: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cc").write_bytes(b"\x7fnonsense")
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setattr(loader, "COMPILERS", (str(tmp_path / "cc"),))
    cache.mkdir(parents=True, mode=0o700)

    _serves_by_torch(cache, tmp_path)


@pytest.mark.parametrize("damage", ["cut short", "emptied", "zeros", "a changed byte"])
def test_a_damaged_library_in_the_cache_is_compiled_again(quick: None, cache: Path, damage: str) -> None:
    assert loader.library("tile_order") is not None
    (built,) = cache.iterdir()
    whole = built.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    damaged = {"cut short": whole[:5000], "emptied": b"", "zeros": bytes(20000), "a changed byte": changed}[damage]
    built.unlink()  # this process has the file mapped
    built.write_bytes(damaged)
    loader.forget()

    assert loader.library("tile_order") is not None
    assert [path.name for path in cache.iterdir()] == [built.name]
    assert loader._is_whole(built)


@pytest.mark.parametrize("wrong", ["others may write", "a file", "below a file", "a link", "a directory in its place"])
def test_torch_serves_when_the_cache_is(
    wrong: str, cache: Path, temporary: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if wrong == "others may write":
        cache.mkdir(parents=True)
        cache.chmod(0o777)
    elif wrong == "a file":
        cache.parent.mkdir()
        cache.write_text("")
    elif wrong == "below a file":
        cache.parent.write_text("")
    elif wrong == "a link":
        cache.parent.mkdir()
        cache.symlink_to(temporary)
    else:
        cache.mkdir(parents=True, mode=0o700)
        compiler = loader._compiler()
        assert compiler is not None
        fingerprint = loader._fingerprint(loader.FOLDER / "block_tiles.c", compiler)
        (cache / f"block_tiles-{fingerprint}.so").mkdir()

    _serves_by_torch(cache, tmp_path)

    assert "torch computes instead" in caplog.text


def test_a_full_disk_is_no_failure(
    quick: None,
    cache: Path,
    temporary: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    cache.mkdir(parents=True, mode=0o700)

    _serves_by_torch(cache, tmp_path)

    assert "No space left on device" in caplog.text


def test_a_compiler_that_cannot_even_write_its_message_is_explained_by_a_full_disk(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    silent = tmp_path / "cc"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setattr(loader, "_compiler", functools.cache(lambda: str(silent)))
    monkeypatch.setattr(loader, "LEAST_BYTES", 1 << 80)

    assert loader.library("tile_order") is None

    assert f"{silent} ended with 1: {cache} is full. Make room there, or set TTMESH_CACHE" in caplog.text


def test_an_interrupt_ends_the_compiler_and_leaves_nothing(
    cache: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\nkill -INT {os.getpid()}\nexec sleep 1000\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(loader, "COMPILERS", (str(compiler),))
    loader.forget()

    with pytest.raises(KeyboardInterrupt):
        loader.library("block_tiles")

    assert list(cache.iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_later(quick: None, cache: Path) -> None:
    old, young = cache / "draft-old", cache / "draft-young"
    for draft in (old, young):
        draft.mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    os.utime(old, (0, 0))

    assert loader.library("tile_order") is not None

    assert not old.exists()
    assert young.exists()


def test_code_that_does_not_compile_is_reported_and_replaced_by_torch(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.c").write_text("this is not C")
    monkeypatch.setattr(loader, "FOLDER", tmp_path)

    with caplog.at_level(logging.WARNING):
        assert loader.library("broken") is None

    assert "compiled broken is not available" in caplog.text
    assert "broken.c:1" in caplog.text
    assert list(cache.iterdir()) == []
