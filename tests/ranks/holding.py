"""What each rank of a tracked launch runs: holds some memory, says so, and waits to be ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn

mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
tensor = ttnn.from_torch(torch.ones(256, 256), layout=ttnn.TILE_LAYOUT, device=mesh)
ready = Path(sys.argv[1]) / f"holding{int(ttnn.distributed_context_get_rank())}"
ready.with_suffix(".part").write_text(str(os.getpid()))
ready.with_suffix(".part").rename(ready)
time.sleep(600)
