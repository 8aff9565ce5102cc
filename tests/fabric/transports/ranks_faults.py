"""What every rank of a fault launch runs: one rank does something bad while the others are in an operation.

python ranks_faults.py FAULT TIMEOUT_S FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging import engines

fault, timeout_s, folder = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
w = engines.connect(300.0)
victim = 0 if "first" in fault else w.size - 1
axis = w.subgroup(list(range(w.size)), "axis1")
axis.all_reduce(torch.ones(10))
w.barrier()
w.timeout_s = axis.timeout_s = timeout_s  # only from here on: joining takes as long as it takes

if w.rank == victim:
    time.sleep(0.3)  # most often the others are inside the operation by then
    if fault.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.startswith("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "elsewhere":
        w.barrier(timeout_s=300)
    if fault == "abort":
        w.abort("out of paper")
    if fault == "leave":
        w.close()
    os._exit(0 if fault in ("leave", "abort") else 3)

with pytest.raises(RankError) as told:
    if "subgroup" in fault:
        w.subgroup(list(range(w.size)), "axis2")
    elif "message" in fault:
        axis.recv(torch.empty(5), victim)
    else:
        axis.all_reduce(torch.ones(1 << 16))
print(f"rank {w.rank} was told: {told.value}", flush=True)
with pytest.raises(RankError) as again:
    w.barrier()
assert again.value is told.value, "a broken job fails at once, without asking anybody"
# Until everybody has printed: an early exit would look like a second fault.
(folder / f"told{w.rank}").touch()
deadline = time.monotonic() + 120
while time.monotonic() < deadline and len(list(folder.glob("told*"))) < w.size - 1:
    time.sleep(0.02)
os._exit(1)
