"""Tall columns are reduced in parts by cores that would have no work, as TT-NN 0.81.1 does on an n150."""

from __future__ import annotations

from typing import Any

import pytest

import ttmesh
import ttmesh.ttnn as ttnn

B16, B8, F32, I32 = ttnn.bfloat16, ttnn.bfloat8_b, ttnn.float32, ttnn.int32
# call: programs, bytes of circular buffers of the largest, then size and page of the rows between the two programs
RECORDED = {
    ("sum", (1, 1, 608, 32), 2, B16): (1, 10240, None),
    ("sum", (1, 1, 640, 32), 2, B16): (2, 30720, (2560, 128)),
    ("sum", (1, 1, 1024, 1024), 2, B16): (2, 30720, (8192, 4096)),
    ("sum", (1, 1, 1024, 1056), 2, B16): (1, 10240, None),
    ("sum", (32, 1, 1024, 32), 2, B16): (2, 30720, (8192, 128)),
    ("sum", (33, 1, 1024, 32), 2, B16): (1, 10240, None),
    ("mean", (2, 3, 1024, 64), 2, B16): (2, 30720, (7680, 256)),
    ("max", (1, 1, 1024, 64), 2, B16): (2, 22528, (4096, 128)),
    ("max", (1, 1, 1024, 64), 2, B8): (1, 6400, None),
    ("min", (1, 1, 1024, 64), 2, F32): (2, 36864, (8192, 256)),
    ("sum", (1, 1, 1024, 64), 2, B8): (2, 27840, (8192, 256)),
    ("sum", (1, 1, 1024, 64), 2, I32): (1, 18432, None),
    ("sum", (1, 1, 1024, 64), 3, B16): (1, 10240, None),
    ("mean", (1, 1, 1024, 1024), (2, 3), B16): (2, 22528, (65536, 2048)),
    ("var", (1, 1, 640, 64), 2, B16): (1, 20480, None),
    ("var", (1, 1, 768, 64), 2, B16): (1, 53248, None),
    ("var", (1, 1, 384, 4096), 2, B16): (1, 28672, None),
}


@pytest.mark.parametrize("call", RECORDED, ids=str)
def test_columns_take_the_programs_and_the_memory_of_tt_nn(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    name, shape, dim, dtype = call
    with ttmesh.dry_run(), ttnn.manage_device(0) as device:
        x = ttnn.zeros(shape, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device)
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
        getattr(ttnn, name)(x, dim=dim, keepdim=True)
        nodes = ttnn.graph.end_graph_capture()
    programs = [node for node in nodes if "ReduceDeviceOperation" in node["params"].get("name", "")]
    buffers = [int(n["params"]["size"]) for n in nodes if n["node_type"].endswith("r_buffer_allocate")]
    buffers += [int(n["params"]["size"]) for n in nodes if n["node_type"] == "dataflow_buffer_allocate"]
    rows = [n["params"] for n in nodes if n["node_type"] == "buffer_allocate"][:-1]

    starts = [node for node in programs if node["node_type"] == "function_start"]
    assert (len(starts), max(buffers)) == RECORDED[call][:2]
    assert [(int(row["size"]), int(row["page_size"])) for row in rows] == (
        [RECORDED[call][2]] if RECORDED[call][2] else []
    )
