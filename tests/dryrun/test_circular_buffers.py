"""Circular buffers per core equal those that TT-NN 0.81.1 prints in graph captures, call by call.

circular_buffers.jsonl (an n150) and collective_buffers.jsonl (a row of a T3000's eight chips) are samples of what
benchmarks/dry_runs/circular_buffers.py recorded; fused_buffers.jsonl has calls of benchmarks/agreement on 2x4 chips.
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
BENCHMARKS = HERE.parents[1] / "benchmarks"


def read_recorded(name: str) -> dict[str, int]:
    rows = map(json.loads, (HERE / name).read_text().splitlines())
    return {row["call"]: row["bytes"] for row in rows}


@pytest.mark.parametrize(
    ("recorded", "system", "chips"), [("circular_buffers.jsonl", "n150", 1), ("collective_buffers.jsonl", "t3000", 8)]
)
def test_calls_take_the_circular_buffers_that_tt_nn_prints(
    monkeypatch: pytest.MonkeyPatch, recorded: str, system: str, chips: int
) -> None:
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    monkeypatch.setenv("TTMESH_SYSTEM", system)
    monkeypatch.setenv("CHIPS", str(chips))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "dry_runs"))
    differing = []
    with ttmesh.dry_run():
        calls = importlib.import_module("circular_buffer_calls")
        tool = importlib.import_module("circular_buffers")
        left = read_recorded(recorded)
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
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    for name in [name for name in sys.modules if name.startswith(("circular_buffer", "buffer_calls"))]:
        del sys.modules[name]  # they hold the mesh of this test
    gc.collect()
    assert not left, "calls that the list no longer has"
    assert not differing


def test_fused_collectives_take_the_circular_buffers_that_tt_nn_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    for folder in ("dry_runs", "agreement"):
        monkeypatch.syspath_prepend(str(BENCHMARKS / folder))
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    tool, sessions = importlib.import_module("circular_buffers"), importlib.import_module("mesh_session")
    differing = []
    with ttmesh.dry_run():
        session = sessions.Session((2, 4), "FABRIC_1D")
        for text, expected in read_recorded("fused_buffers.jsonl").items():
            words, (before, _, asked) = session.vocabulary(), text.rpartition("=>")
            exec(before.strip(), words)
            session.mesh.clear_program_cache()
            ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
            try:
                eval(asked.strip(), words)
            finally:
                nodes = ttnn.graph.end_graph_capture()
            words.clear()
            found = tool.program_sizes(nodes)[-1]
            if found != expected:
                differing.append((text, expected, found))
        session.close()
    for name in ("circular_buffers", "mesh_session"):
        del sys.modules[name]
    assert not differing
