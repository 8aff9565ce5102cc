"""Fallbacks and the small functions beside operations that TT-NN's tutorials and models use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device() -> Iterator[Any]:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=16384)
    yield mesh
    ttnn.close_mesh_device(mesh)


def test_a_fallback_computes_in_torch_and_gives_tensors_like_the_first(device: Any) -> None:
    values = torch.rand(2, 32, 64).bfloat16()
    x = ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=device, memory_config=ttnn.L1_MEMORY_CONFIG)

    y = ttnn.get_fallback_function(ttnn.reshape)(x, (64, 64))
    parts = ttnn.get_fallback_function(ttnn.split)(x, 16, dim=1)

    assert (list(y.shape), y.dtype, y.layout, y.device()) == ([64, 64], ttnn.bfloat16, ttnn.TILE_LAYOUT, device)
    assert y.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert ttnn.to_torch(y).equal(values.reshape(64, 64))
    assert [list(part.shape) for part in parts] == [[2, 16, 64]] * 2
    host = ttnn.get_fallback_function(ttnn.relu)(ttnn.from_torch(values.float()))
    assert (host.device(), host.dtype, host.layout) == (None, ttnn.float32, ttnn.ROW_MAJOR_LAYOUT)


def test_what_has_no_golden_function_has_no_fallback() -> None:
    with pytest.raises(RuntimeError, match="3 is not an operation"):
        ttnn.get_fallback_function(3)


def test_queues_are_numbered_as_ttnn_prints_them(device: Any) -> None:
    assert (repr(ttnn.QueueId(1)), int(ttnn.QueueId(1)), ttnn.QueueId(0) == 0) == ("QueueId(1)", 1, True)
    assert ttnn.get_current_command_queue_id_for_thread() == ttnn.QueueId(0)
    x = ttnn.from_torch(torch.ones(32, 32), layout=ttnn.TILE_LAYOUT, device=device)
    ttnn.record_event(device, ttnn.QueueId(0))
    assert not ttnn.is_trace_capture_active(device)

    trace = ttnn.begin_trace_capture(device, cq_id=ttnn.QueueId(0))
    ttnn.relu(x)

    assert ttnn.is_trace_capture_active(device)
    ttnn.end_trace_capture(device, trace, cq_id=0)
    assert not ttnn.is_trace_capture_active(device)


def test_padding_and_shards_can_be_asked_for() -> None:
    x = ttnn.from_torch(torch.ones(2, 5, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)

    assert ttnn.has_tile_padding(x)
    assert [ttnn.has_tile_padding(x, dim=dim) for dim in (0, 1, -1)] == [False, True, False]
    assert not ttnn.has_tile_padding(ttnn.from_torch(torch.ones(5), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT))
    assert not ttnn.is_sharded(x)


def test_what_a_chip_would_measure_is_empty(device: Any) -> None:
    assert ttnn.get_latest_programs_perf_data() == ttnn.get_all_programs_perf_data() == {}
    assert not ttnn.experimental.is_tensor_prefetcher_supported(device)
    assert [mode.name for mode in ttnn.UnpackToDestMode] == ["UnpackToDestFp32", "Default"]


def test_a_convolution_with_no_groups_has_one(device: Any) -> None:
    x, w = torch.rand(1, 1, 16, 3).bfloat16(), torch.rand(4, 3, 3, 3).bfloat16()
    options = {
        "in_channels": 3, "out_channels": 4, "device": device, "kernel_size": (3, 3), "stride": (1, 1), "padding": (1, 1),
        "batch_size": 1, "input_height": 4, "input_width": 4,
    }  # fmt: skip

    none, one = (
        ttnn.to_torch(
            ttnn.conv2d(
                input_tensor=ttnn.from_torch(x, device=device),
                weight_tensor=ttnn.from_torch(w),
                groups=groups,
                **options,
            )
        )
        for groups in (0, 1)
    )

    assert none.equal(one)
