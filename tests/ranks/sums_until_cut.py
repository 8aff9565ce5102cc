"""What each host of a cable-cut launch runs: sums until the cable is gone, then writes down what it was told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging import engines

results, timeout_s = Path(sys.argv[1]), float(sys.argv[2])
w = engines.connect(300.0)
axis = w.subgroup(list(range(w.size)), "axis0")
w.barrier()
w.timeout_s = axis.timeout_s = timeout_s  # only from here on: joining takes as long as it takes
try:
    for step in range(10_000_000):
        assert axis.all_reduce(torch.ones(1000)).sum().item() == 1000 * w.size
        if step == 50:
            (results / f"summing{w.rank}").touch()
except RankError as error:
    (results / f"part{w.rank}").write_text(str(error))
    (results / f"part{w.rank}").rename(results / f"told{w.rank}")
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline and len(list(results.glob("told*"))) < w.size
    ):  # an early exit would be a second fault
        time.sleep(0.02)
os._exit(1)
