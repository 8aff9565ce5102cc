"""What every rank of a fault launch runs: the last rank does something bad while the others are in an operation."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric import engines

fault, timeout_s = sys.argv[1], float(sys.argv[2])
w = engines.connect(timeout_s)
victim = 0 if "first" in fault else w.size - 1
axis = w.subgroup(list(range(w.size)), "axis1")
axis.all_reduce(torch.ones(10))
w.barrier()

if w.rank == victim:
    time.sleep(0.3)  # the others are inside the operation by then
    if fault.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.startswith("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "elsewhere":
        w.barrier(timeout_s=60)
    if fault == "abort":
        w.abort("out of paper")
    if fault == "leave":
        w.close()
    os._exit(0 if fault in ("leave", "abort") else 3)

began = time.monotonic()
try:
    if "subgroup" in fault:
        w.subgroup(list(range(w.size)), "axis2")
    elif "message" in fault:
        axis.recv(torch.empty(5), victim)
    else:
        axis.all_reduce(torch.ones(1 << 16))
except RankError as error:
    print(f"rank {w.rank} after {time.monotonic() - began:.1f} s: {error}", flush=True)
    again = time.monotonic()
    try:
        w.barrier()
    except RankError:
        assert time.monotonic() - again < 0.1, "a broken job fails at once"
else:
    print(f"rank {w.rank} saw no error", flush=True)
# Until everybody has printed: an early exit would look like a second fault.
time.sleep(1.0)
os._exit(1)
