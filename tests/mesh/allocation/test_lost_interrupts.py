"""Ctrl-C while Python finalizes an object, in a real process with a real signal."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
from ttmesh.mesh.allocation.lost_interrupts import redeliver_lost_interrupts

calls = []
sys.unraisablehook = calls.append
for _ in range(3):
    redeliver_lost_interrupts()

class Held:
    def __del__(self):
        if sys.argv[1] == "interrupt":
            signal.raise_signal(signal.SIGINT)
        raise ValueError

Held.__del__.__module__ = sys.argv[2]
try:
    Held()
    if sys.argv[1:] == ["interrupt", "ttmesh.mesh"]:
        while True:
            pass
except KeyboardInterrupt:
    print("interrupted")
print(len(calls))
"""


@pytest.mark.parametrize(
    ("what", "module", "printed"),
    [
        ("interrupt", "ttmesh.mesh", ["interrupted", "0"]),
        ("interrupt", "elsewhere", ["1"]),  # as Python does it
        ("error", "ttmesh.mesh", ["1"]),  # errors go where they went before
    ],
)
def test_an_interrupt_inside_a_finalizer_of_ttmesh_reaches_the_program(what, module, printed):
    found = subprocess.run([sys.executable, "-c", PROGRAM, what, module], capture_output=True, text=True, timeout=60)

    assert found.stdout.split() == printed, found.stderr
