"""Ctrl-C while Python finalizes an object, in a real process with a real signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys, threading, time
from ttmesh.mesh.allocation.lost_interrupts import redeliver_lost_interrupts

calls = []
sys.unraisablehook = calls.append
for _ in range(3):
    redeliver_lost_interrupts()

if sys.argv[3:] == ["slow"]:  # a busy machine: the thread that sends it again runs before the hook is left
    start = threading.Thread.start
    threading.Thread.start = lambda thread: (start(thread), time.sleep(0.2))

class Held:
    def __del__(self):
        if sys.argv[1] == "interrupt":
            signal.raise_signal(signal.SIGINT)
        raise ValueError

Held.__del__.__module__ = sys.argv[2]
try:
    Held()
    if sys.argv[1:3] == ["interrupt", "ttmesh.mesh"]:
        while True:
            pass
except KeyboardInterrupt:
    print("interrupted")
print(len(calls))
"""


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("interrupt ttmesh.mesh", ["interrupted", "0"]),
        ("interrupt ttmesh.mesh slow", ["interrupted", "0"]),
        ("interrupt elsewhere", ["1"]),  # as Python does it
        ("error ttmesh.mesh", ["1"]),  # errors go where they went before
    ],
)
def test_an_interrupt_inside_a_finalizer_of_ttmesh_reaches_the_program(words: str, printed: list[str]) -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM, *words.split()], capture_output=True, text=True, timeout=300)

    assert found.stdout.split() == printed, found.stderr
