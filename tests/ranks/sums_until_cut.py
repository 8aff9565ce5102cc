"""What each host of a cable-cut launch runs: sums until the cable is gone, then writes down what it was told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric import engines

results, timeout_s = Path(sys.argv[1]), float(sys.argv[2])
w = engines.connect(timeout_s)
axis = w.subgroup(list(range(w.size)), "axis0")
began = time.monotonic()
try:
    for step in range(10_000_000):
        began = time.monotonic()
        assert axis.all_reduce(torch.ones(1000)).sum().item() == 1000 * w.size
        if step == 50:
            (results / f"summing{w.rank}").touch()
except RankError as error:
    told = f"after {time.monotonic() - began:.1f} s: {error}"
    (results / f"part{w.rank}").write_text(told)
    (results / f"part{w.rank}").rename(results / f"told{w.rank}")
os._exit(1)
