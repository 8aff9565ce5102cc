"""The contract of a backend, run over every file of the folder."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ttmesh.chip.backends import cpu
from ttmesh.chip.backends.backend_protocol import Backend
from ttmesh.chip.backends.registry import backend_names, find_usable_backend, load_backend


@pytest.fixture(params=backend_names())
def any_backend(request: pytest.FixtureRequest) -> Backend:
    found = load_backend(request.param)
    reason = found.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return found


def test_the_name_is_the_torch_device(any_backend: Backend) -> None:
    assert any_backend.device.type in backend_names()
    assert find_usable_backend(any_backend.device.type) is any_backend


def test_empty_lanes_are_on_the_device(any_backend: Backend) -> None:
    lanes = any_backend.empty([2, 4, 3, 5], torch.bfloat16)

    assert lanes.shape == (2, 4, 3, 5)
    assert lanes.dtype == torch.bfloat16
    assert lanes.device.type == any_backend.device.type


def test_starting_and_releasing_may_be_repeated(any_backend: Backend) -> None:
    for _ in range(2):
        any_backend.start()
        any_backend.synchronize()
        any_backend.release()


def test_a_seed_gives_one_stream(any_backend: Backend) -> None:
    first, second = (any_backend.generator(3) for _ in range(2))

    assert first.initial_seed() == second.initial_seed() == 3
    assert first is not second


def test_any_size_has_a_thread_count(any_backend: Backend) -> None:
    for size_bytes in (0, 1 << 10, 1 << 30):
        any_backend.use_threads(size_bytes)

    assert torch.get_num_threads() >= 1


def test_small_ops_use_one_thread() -> None:
    before = torch.get_num_threads()
    try:
        find_usable_backend("cpu").use_threads(4096)

        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_an_unknown_backend_lists_the_names() -> None:
    with pytest.raises(RuntimeError, match=r"no backend named 'gpu'; expected one of \['cpu', 'cuda', 'meta'"):
        find_usable_backend("gpu")


def test_an_absent_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(RuntimeError, match="backend 'cuda' cannot be used here: torch sees no CUDA device"):
        find_usable_backend("cuda")


@pytest.mark.skipif(cpu._glibc() is None, reason="the heap is glibc's")
def test_large_blocks_stay_in_the_heap_until_released() -> None:
    script = """
import torch
from ttmesh.chip.backends.registry import find_usable_backend

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

cpu = find_usable_backend("cpu")
cpu.start()
block = torch.ones(64 << 20, dtype=torch.uint8)
del block
kept = resident_mib()
cpu.release()
print(kept - resident_mib())
"""
    freed_mib = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)

    assert int(freed_mib.stdout) >= 60
