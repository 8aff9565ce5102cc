"""Memory is counted by sets of chips as it would be chip by chip, and by plans as it would be call by call."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.dryrun.chip_peaks import ChipPeaks
from ttmesh.tensor.observer import Watcher, observer


def test_sets_of_chips_have_the_peaks_of_their_chips() -> None:
    draw = random.Random(3)
    peaks, used, most = ChipPeaks(), Counter[int](), Counter[int]()
    live: list[tuple[tuple[int, ...], int]] = []
    for event in range(400):
        if live and draw.random() < 0.4:
            chips, size = live.pop(draw.randrange(len(live)))
            for held in peaks.sets_of(chips):
                held.used["DRAM"] -= size
            used.subtract(dict.fromkeys(chips, size))
            continue
        chips = tuple(sorted(draw.sample(range(8), draw.choice((1, 2, 4, 8)))))
        size = draw.randrange(1, 1000)
        live.append((chips, size))
        for held in peaks.sets_of(chips):
            held.add("DRAM", size, event, "add")
        used.update(dict.fromkeys(chips, size))
        most |= used

    assert {chip: peak.size_bytes for chip, _, peak in peaks.by_chip()} == dict(most)


def run_layers() -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    x = ttnn.from_torch(
        torch.ones(1, 1, 32, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
        mesh_mapper=ttnn.ShardTensor2dMesh(mesh, dims=(None, 3), mesh_shape=(2, 4)),
    )  # fmt: skip
    cache = ttnn.zeros((1, 1, 64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    weight = ttnn.ones((1, 1, 256, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    for _ in range(3):
        whole = ttnn.all_gather(x, dim=3, cluster_axis=1)
        y = ttnn.linear(ttnn.rms_norm(whole), weight, memory_config=ttnn.L1_MEMORY_CONFIG)
        x = ttnn.reduce_scatter(y, dim=3, cluster_axis=1)
        ttnn.fill_cache(cache, ttnn.reshape(x, (1, 1, 32, 64)), 0)
        x = ttnn.add(x, x)
        parts = ttnn.concat([x, x], dim=2)
        x = ttnn.slice(parts, [0, 0, 0, 0], [1, 1, 32, 64])
    one = mesh.create_submesh(ttnn.MeshShape(1, 2))
    ttnn.relu(ttnn.ones((1, 1, 64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=one))
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def test_fast_paths_report_what_calls_report_that_are_bound() -> None:
    with ttmesh.dry_run() as fast:
        run_layers()
    slow = Watcher()
    assert slow.needs_calls
    observer.add(slow)
    try:
        with ttmesh.dry_run() as bound:
            run_layers()
    finally:
        observer.remove(slow)

    assert fast.report is not None
    assert bound.report is not None
    assert fast.report.to_json() == bound.report.to_json()
    assert fast.report.memory[0].by_kind["kv cache"] == 64 * 64 * 2
    assert fast.report.program_cache_hits > 0


def test_a_refusal_names_what_asked_for_the_memory() -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
        ttnn.relu(ttnn.ones((1, 1, 32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh))
        with pytest.raises(RuntimeError, match="Not enough space"):
            ttnn.zeros((1, 1, 1 << 20, 1 << 14), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.close_mesh_device(mesh)

    assert run.report is not None
    assert run.report.problem_operation == "ttnn.full"
