"""Buffers allocated after a capture: refused before a replay where tracking is on, in both spellings of TT-NN."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ttmesh.ttnn as ttnn
from ttmesh.ttnn.tools.trace_allocation_tracker import acknowledge_corruptible

tracked = ttnn._ttnn.operations.trace.get_unsafe_tracked_ids
with ttnn.manage_device(0) as device:
    make = lambda: ttnn.allocate_tensor_on_device(ttnn.Shape((32, 32)), ttnn.bfloat16, ttnn.TILE_LAYOUT, device)
    x = make()
    ttnn.neg(x)
    ids = []
    for _ in range(2):
        ids.append(ttnn.begin_trace_capture(device, cq_id=0))
        out = ttnn.neg(x)
        ttnn.end_trace_capture(device, ids[-1], cq_id=0)
        between = make()
    late = between
    assert set(tracked(device, ids[1])) == {late.buffer_unique_id()}
    assert len(tracked(device, ids[0])) == 2  # the second capture's result, and what came after it
    held = {"a": [ttnn.neg(x)]}
    assert tracked(device, ids[1])[held["a"][0].buffer_unique_id()].startswith("ttnn.")
    try:
        ttnn.execute_trace(device, ids[1], cq_id=0)
    except RuntimeError as error:
        print(error)
    assert ttnn.mark_corruptible(late) == late.buffer_unique_id()
    acknowledge_corruptible(held["a"][0])
    with ttnn.corruptible_allocation_scope(device):
        scoped = make()
    make()  # freed at once
    assert tracked(device, ids[1]) == {}
    ttnn.execute_trace(device, ids[1], cq_id=0)
    for id in ids:
        ttnn.release_trace(device, id)
"""


@pytest.mark.parametrize("diagnostics", ["0", "1"])
def test_a_replay_refuses_to_overwrite_buffers_that_nobody_acknowledged(diagnostics: str) -> None:
    on = {"TT_METAL_TRACE_ALLOC_TRACKING": "1", "TT_METAL_TRACE_ALLOC_TRACEBACKS": diagnostics}

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **on}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Found 2 device buffer(s) still alive before trace replay. These will be corrupted on replay." in done.stdout
    assert ("held['a'][0]" in done.stdout and "allocated at:" in done.stdout) == (diagnostics == "1")
