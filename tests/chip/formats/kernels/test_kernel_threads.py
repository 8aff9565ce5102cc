"""Kernels share work between threads inside one native call: whatever interrupts a program finds them done."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

from ttmesh.base.dtypes import Layout, bfloat8_b
from ttmesh.chip.formats.block_float import quantise
from ttmesh.chip.formats.kernels import loader, threads
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.formats.packing import pack, unpack
from ttmesh.chip.formats.tilize import tilize, untilize

pytestmark = pytest.mark.skipif(loader._compiler() is None, reason="no C compiler")

# Starts a team as OpenMP does; the signal comes when every thread has begun and none has worked.
TEAM = """
#include <pthread.h>
#include <sched.h>
#include <signal.h>

static pthread_barrier_t begun;
static void (*function)(void *);
static void *argument;
int running, finished, signals, entered, held;

static void *member(void *unused) {
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    pthread_barrier_wait(&begun);
    function(argument);
    __atomic_add_fetch(&finished, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    return unused;
}

void parallel(void (*run)(void *), void *data, unsigned members, unsigned flags) {
    pthread_t others[64];
    (void)flags;
    function = run;
    argument = data;
    pthread_barrier_init(&begun, 0, members);
    for (unsigned i = 1; i < members; i++) pthread_create(&others[i], 0, member, 0);
    for (int i = 0; i < signals; i++) raise(SIGINT);
    __atomic_store_n(&entered, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&held, __ATOMIC_SEQ_CST)) sched_yield();
    member(0);
    for (unsigned i = 1; i < members; i++) pthread_join(others[i], 0);
}
"""

VALUES = torch.arange(3 * 70 * 90, dtype=torch.float32).reshape(3, 70, 90) % 61
PACKED = pack(VALUES, bfloat8_b, Layout.TILE)
ORDERED = tilize(VALUES)

KERNELS: dict[str, Callable[[], torch.Tensor]] = {
    "tilize": lambda: tilize(VALUES),
    "untilize": lambda: untilize(ORDERED, (70, 90)),
    "quantise": lambda: quantise(VALUES, bfloat8_b),
    "pack": lambda: pack(VALUES, bfloat8_b, Layout.TILE),
    "unpack": lambda: unpack(PACKED, (70, 90), bfloat8_b, Layout.TILE),
    "lane_sum": lambda: lane_sum(VALUES[:, None], (0,)),
}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("team")
    (folder / "team.c").write_text(TEAM)
    compiler = loader._compiler()
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "team.c", "-o", "team.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "team.so"))


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads for any amount of work."""
    monkeypatch.setattr(threads, "SPLIT_BYTES", 0)
    monkeypatch.setattr(threads, "team", threads.Team())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)


@pytest.fixture
def interrupted(team: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """A team in whose midst a signal arrives."""
    monkeypatch.setattr(threads, "parallel", lambda: ctypes.cast(team.parallel, ctypes.c_void_p).value)
    before = signal.getsignal(signal.SIGINT)
    for name, value in (("signals", 1), ("finished", 0), ("running", 0), ("entered", 0), ("held", 0)):
        ctypes.c_int.in_dll(team, name).value = value
    yield team
    ctypes.c_int.in_dll(team, "signals").value = 0
    signal.signal(signal.SIGINT, before)


def _count(team: ctypes.CDLL, name: str) -> int:
    return ctypes.c_int.in_dll(team, name).value


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_interrupt_comes_when_all_threads_are_done(kernel: str, interrupted: ctypes.CDLL) -> None:
    with pytest.raises(KeyboardInterrupt):
        KERNELS[kernel]()

    assert _count(interrupted, "running") == 0
    assert _count(interrupted, "finished") >= 3  # as many as there are rows of tiles, at most eight


@pytest.mark.parametrize("kernel", KERNELS)
def test_whatever_a_handler_raises_finds_the_threads_done(kernel: str, interrupted: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(interrupted, "signals").value = 3
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(_count(interrupted, "running"))
        if len(seen) == 1:
            KERNELS[kernel]()  # a handler that computes, and is interrupted itself
        raise SystemExit(3)

    signal.signal(signal.SIGINT, handler)

    with pytest.raises(SystemExit):
        KERNELS[kernel]()

    assert len(seen) >= 2
    assert set(seen) == {0}


@pytest.mark.parametrize("kernel", KERNELS)
def test_an_exception_from_another_thread_finds_the_threads_done(kernel: str, interrupted: ctypes.CDLL) -> None:
    """PyThreadState_SetAsyncExc, as debuggers and notebooks use it."""
    raised: list[int] = []

    def work() -> None:
        try:
            KERNELS[kernel]()
        except TimeoutError:
            raised.append(_count(interrupted, "running"))

    for name, value in (("signals", 0), ("held", 1)):
        ctypes.c_int.in_dll(interrupted, name).value = value
    thread = threading.Thread(target=work)
    thread.start()
    while not _count(interrupted, "entered"):
        time.sleep(0.001)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(TimeoutError))
    ctypes.c_int.in_dll(interrupted, "held").value = 0
    thread.join()

    assert raised == [0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("own", [True, False], ids=["own threads", "torch's threads"])
def test_threads_give_the_bits_of_one(kernel: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        monkeypatch.setattr(threads, "parallel", lambda: None)

    many = KERNELS[kernel]()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    alone = KERNELS[kernel]()

    assert torch.equal(many, alone)


@pytest.mark.parametrize(("count", "members", "step"), [(1, 1, 1), (7, 7, 1), (8, 8, 1), (100, 8, 4), (3200, 8, 100)])
def test_work_is_shared_in_steps(count: int, members: int, step: int) -> None:
    shared = threads.share(count, 1)

    assert (shared.count, shared.step) == (members, step)


def test_small_work_stays_on_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "SPLIT_BYTES", 100)

    assert threads.share(10, 99).count == 1
    assert threads.share(10, 100).count == 8
