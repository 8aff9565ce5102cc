"""Circular buffers per core equal those that TT-NN 0.81.1 prints in graph captures on an n150, call by call.

circular_buffers.jsonl is a sample of what benchmarks/dry_runs/circular_buffers.py recorded.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
from pathlib import Path

import pytest

import ttmesh
import ttmesh.ttnn as ttnn

HERE = Path(__file__).parent
BENCHMARKS = HERE.parents[1] / "benchmarks" / "dry_runs"
RECORDED = {
    row["call"]: row["bytes"] for row in map(json.loads, (HERE / "circular_buffers.jsonl").read_text().splitlines())
}


def test_calls_take_the_circular_buffers_that_tt_nn_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    differing = []
    with ttmesh.dry_run():
        calls = importlib.import_module("circular_buffer_calls")
        tool = importlib.import_module("circular_buffers")
        left = dict(RECORDED)
        for call in calls.list_calls():
            if (expected := left.pop(call.text, None)) is None:
                continue
            arguments = call.prepare()
            calls.device().clear_program_cache()
            ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
            try:
                call.run(*arguments)
            finally:
                nodes = ttnn.graph.end_graph_capture()
            del arguments
            found = max(tool.program_sizes(nodes), default=0)
            if found != expected:
                differing.append((call.text, expected, found))
        calls.close()
    for name in [name for name in sys.modules if name.startswith(("circular_buffer", "buffer_calls"))]:
        del sys.modules[name]  # they hold the mesh of this test
    gc.collect()
    assert not left, "calls that the list no longer has"
    assert not differing


# bytes per core of a program, as captured on a T3000: of bfloat16 and of bfloat8_b
COLLECTIVES = {"all_gather": (36864, 39168), "reduce_scatter": (196608, 104448), "all_reduce": (196608, 104448)}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_take_the_circular_buffers_that_tt_nn_prints(name: str) -> None:
    with ttmesh.dry_run() as run:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
        found = []
        for dtype in (ttnn.bfloat16, ttnn.bfloat8_b):
            x = ttnn.empty((1, 1, 1024, 1024), dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh)
            ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
            getattr(ttnn, name)(x, **({} if name == "all_reduce" else {"dim": 3}))
            nodes = ttnn.graph.end_graph_capture()
            found.append(
                max(node["params"]["size"] for node in nodes if node["node_type"] == "circular_buffer_allocate")
            )
        ttnn.close_mesh_device(mesh)
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)

    assert run.report is not None
    assert tuple(found) == COLLECTIVES[name]
