"""Idle threads of OpenMP sleep while others want the processors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from ttmesh.chip.backends import idle_threads
from ttmesh.chip.backends.idle_threads import ProcessorUsage, waits_for_processors

QUIET, START = 5, ProcessorUsage(10.0, 1000)


@pytest.mark.parametrize(
    ("cpu_s", "switches", "busy"),
    [(0.1, QUIET, False), (0.1, 40, True), (0.001, 40, False), (0.0, 0, False)],
    ids=["alone", "beside others", "computes nothing", "sleeps"],
)
def test_involuntary_switches_tell_a_busy_machine(cpu_s, switches, busy):
    after = ProcessorUsage(START.cpu_s + cpu_s, START.involuntary_switches + switches)

    assert waits_for_processors(START, after) is busy


# Processor time that other threads than the caller's take in the pauses between operations: spinning, if they do.
MEASURE = """
import threading, time, torch
from ttmesh.chip.backends import idle_threads
torch.set_num_threads(len(__import__("os").sched_getaffinity(0)))
if torch.get_num_threads() < 2 or not idle_threads._is_gnu():
    raise SystemExit("one processor, or another OpenMP")
x = torch.ones(1 << 18)
def spin():
    total = 0
    for _ in range(20):
        torch.add(x, x, out=x)
        start = time.process_time() - time.thread_time()
        time.sleep(0.01)
        total += time.process_time() - time.thread_time() - start
    return total
spin()
before, results = spin(), x.clone()
done, ready = threading.Event(), threading.Event()
def hold():
    idle_threads.hold_team()
    ready.set()
    done.wait()
holder = threading.Thread(target=hold)
holder.start()
ready.wait()
spin()
held = spin()
done.set()
holder.join()
spin()
after = spin()
print(before, held, after)
assert held < before / 3, "idle threads sleep while a team is held"
assert held < after / 3, "they spin again afterwards"
"""


def test_a_team_held_by_a_second_thread_makes_idle_threads_sleep(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURE)], check=False, capture_output=True, text=True, timeout=120
    )

    if "one processor" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_process_that_starts_with_one_thread_is_watched_too(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    started = []
    monkeypatch.setattr(idle_threads, "_start", started.append)
    monkeypatch.setattr(idle_threads, "_is_gnu", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    try:
        idle_threads.watch_processors.__wrapped__()
    finally:
        torch.set_num_threads(before)

    assert started == [idle_threads.FIRST_SLEEP_S]


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_a_policy_that_the_user_chose_stays(monkeypatch, name):
    started = []
    monkeypatch.setattr(idle_threads, "_start", started.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv(name, "1000")

    idle_threads.watch_processors.__wrapped__()

    assert started == []
