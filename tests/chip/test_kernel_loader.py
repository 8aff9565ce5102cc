"""Kernels are compiled once, privately, and never needed."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ttmesh.base import settings
from ttmesh.base.dtypes import Layout, bfloat8_b
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.kernels import loader, threads
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.tilize import tilize, untilize

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
        "assert block_tiles.serves(values)\n"
        "for dtype in BLOCK_FLOATS:\n"
        "    for packer in ('host', 'device'):\n"
        "        plain = block_float.decode(*block_float.encode(values.view(-1, 16), dtype, packer), dtype)\n"
        "        mine = block_float.quantise(values, dtype, packer=packer).view(-1, 16)\n"
        "        assert torch.equal(mine.view(torch.int16), plain.view(torch.int16)), (dtype, packer)\n"
        "    packed = packing.pack(values, dtype, Layout.TILE)\n"
        "    lanes = packing.unpack(packed, tuple(values.shape), dtype, Layout.TILE)\n"
        "    again = block_float.quantise(values, dtype)\n"
        "    assert torch.equal(lanes.view(torch.int16), again.view(torch.int16)), dtype\n"
        "from ttmesh.chip.formats.kernels.lane_sum import _chained, lane_sum\n"
        "terms = torch.randn(1, 8, 9001)\n"
        "for kind in (torch.float32, torch.bfloat16):\n"
        "    assert torch.equal(lane_sum(terms.to(kind), (1,)), _chained(terms.to(kind), (1,), kind)), kind\n"
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


def test_without_a_compiler_torch_serves(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "COMPILERS", ("no-such-compiler",))
    loader.forget()

    assert loader.library("block_tiles") is None
    assert quantise(torch.ones(2, 16), bfloat8_b).eq(1).all()


def test_kernels_can_be_switched_off(cache: Path) -> None:
    settings.override("TTMESH_KERNELS", "0")
    loader.forget()

    assert loader.library("block_tiles") is None
    assert not cache.exists()


def test_a_folder_that_others_can_write_is_not_used(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)

    with caplog.at_level(logging.WARNING):
        folder = loader.cache_folder()

    assert folder != cache
    assert "can be written by others" in caplog.text
    folder.rmdir()


def test_code_that_does_not_compile_is_reported_and_replaced_by_torch(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.c").write_text("this is not C")
    monkeypatch.setattr(loader, "FOLDER", tmp_path)

    with caplog.at_level(logging.WARNING):
        assert loader.library("broken") is None

    assert "broken.c does not compile here" in caplog.text
    assert list(cache.iterdir()) == []


def test_large_work_is_split_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    parts: list[tuple[int, int]] = []

    threads.run(lambda begin, end: parts.append((begin, end)), 10, threads.SPLIT_BYTES)

    assert sorted(parts) == [(0, 3), (3, 6), (6, 10)]


def test_small_work_stays_on_its_thread() -> None:
    parts: list[tuple[int, int]] = []

    threads.run(lambda begin, end: parts.append((begin, end)), 10, threads.SPLIT_BYTES - 1)

    assert parts == [(0, 10)]


def test_threads_give_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(3, 70, 90, generator=torch.Generator().manual_seed(4))

    def everything() -> list[torch.Tensor]:
        packed = pack(values, bfloat8_b, Layout.TILE)
        ordered = tilize(values)
        lanes = unpack(packed, (70, 90), bfloat8_b, Layout.TILE)
        return [
            quantise(values, bfloat8_b),
            packed,
            lanes,
            ordered,
            untilize(ordered, (70, 90)),
            lane_sum(values[:, None], (0,)),
        ]

    alone = everything()
    monkeypatch.setattr(threads, "SPLIT_BYTES", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)

    assert all(torch.equal(one, many) for one, many in zip(alone, everything(), strict=True))
