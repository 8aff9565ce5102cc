"""Where convolutions run and what they take of L1, beside calls that TT-NN 0.81.1 recorded on an n150.

convolutions.jsonl is a sample of what benchmarks/dry_runs/random_convolutions.py recorded.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import ttmesh
import ttmesh.ttnn as ttnn

HERE = Path(__file__).parent


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    monkeypatch.syspath_prepend(str(HERE.parents[2] / "benchmarks" / "dry_runs"))
    yield importlib.import_module("random_convolutions")
    for name in ("random_convolutions", "circular_buffers"):
        sys.modules.pop(name, None)


@pytest.fixture
def device(recorder: Any) -> Any:
    with ttmesh.dry_run():
        opened = ttnn.open_device(device_id=0, l1_small_size=32768)
        yield opened
        ttnn.close_device(opened)


def test_random_convolutions_take_the_memory_that_tt_nn_gives_them(recorder: Any, device: Any) -> None:
    differing = []
    for line in (HERE / "convolutions.jsonl").read_text().splitlines():
        expected = json.loads(line)
        case = expected.pop("case")
        found = recorder.record_case(case, device)
        if found != expected:
            differing.append((case, expected, found))

    assert not differing


@pytest.mark.parametrize(("channels", "taps_at_once"), [(512, True), (1280, False)])
def test_depthwise_rows_longer_than_a_read_of_the_noc_take_one_tap_at_a_time(
    recorder: Any, device: Any, channels: int, taps_at_once: bool
) -> None:
    config = {
        "shard_layout": "HEIGHT",
        "act_block_h_override": 32,
        "override_sharding_config": True,
        "core_grid": [8, 1],
    }
    case = {
        "kind": "conv1d", "batch": 1, "size": [1, 512], "channels": channels, "filters": channels, "groups": channels,
        "kernel": [1, 7], "bias": False, "stride": [1, 1], "dilation": [1, 1], "padding": [0, 3], "dtype": "bfloat16",
        "layout": "ROW_MAJOR", "where": "host", "slices": None, "config": config,
    }  # fmt: skip
    tile, wide = 2048, channels // 32
    weights, activations = 7 * wide * tile, wide * tile * (7 if taps_at_once else 1)

    taken = recorder.record_case(case, device)["bytes"]

    sums = 0 if taps_at_once else activations  # of the taps so far
    assert taken == weights + 2 * activations + sums + 64
