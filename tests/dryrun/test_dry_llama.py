"""A small Llama takes the same addresses, programs and links dry as with values."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.dryrun.memory_log import MemoryLog
from ttmesh.dryrun.run_report import make_report
from ttmesh.showcase.model_placement import Placement

FOLDER = Path(__file__).parents[2] / "examples" / "models"


def make_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Prompts and four tokens of eight users, weights over the four columns of a mesh, users over its two rows."""
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    example = importlib.import_module("llama_decoder")

    def run() -> None:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
        try:
            with torch.no_grad():
                example.decoder(Placement("users and weights", mesh, 0, 1, ttnn.bfloat8_b))
        finally:
            example.HELD.clear()
            ttnn.close_mesh_device(mesh)
            ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)

    return run


def list_uses(log: MemoryLog) -> list[tuple[str, str, int, int, tuple[int, ...]]]:
    return [(use.label, use.memory, use.address, use.size_bytes, tuple(use.chips)) for use in log.uses.values()]


def test_a_small_llama_takes_the_same_dry_as_with_values(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_program(monkeypatch)
    real = MemoryLog()
    real.start()
    try:
        run()
    finally:
        real.stop()

    with ttmesh.dry_run() as dry:
        run()

    assert list_uses(dry.log) == list_uses(real)
    assert dry.log.operations == real.operations
    assert (dry.log.links, dry.log.peaks) == (real.links, real.peaks)
    assert (dry.log.program_runs, dry.log.programs) == (real.program_runs, real.programs)
    assert dry.report is not None
    assert dry.report.memory == make_report(real).memory
    assert real.program_runs > 100
    assert real.links
