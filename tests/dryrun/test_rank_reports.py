"""Several ranks run dry and give one report: that of the whole mesh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ttmesh.dryrun.memory_log import MemoryLog
from ttmesh.dryrun.rank_reports import merge_reports, read_report
from ttmesh.dryrun.run_report import make_report

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
import sys

import torch
import ttnn

ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
mapper = ttnn.ShardTensor2dMesh(mesh, dims=(2, 3), mesh_shape=(2, 4))
weights = torch.nn.functional.layer_norm(torch.randn(1, 1, 64, 1024), (1024,))
x = ttnn.from_torch(weights, device=mesh, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
y = ttnn.all_reduce(ttnn.all_gather(x, dim=3, cluster_axis=1), cluster_axis=0)
ttnn.close_mesh_device(mesh)
assert "torch._dynamo" not in sys.modules, "a dry run loads torch's compiler, which takes seconds"
"""


def run_dry(folder: Path, *options: str) -> dict[str, Any]:
    program, report = folder / "program.py", folder / "report.json"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "ttmesh", "dry-run", "--system", "t3000", "--json", str(report), *options]
    done = subprocess.run(
        [*command, str(program)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_two_ranks_report_what_one_process_reports(tmp_path: Path) -> None:
    one = run_dry(tmp_path)
    two = run_dry(tmp_path, "--ranks", "2")

    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert sorted(two["links"]) == sorted(one["links"])
    counts = ("fits", "finished", "shapes", "operations", "program_runs", "programs", "collectives", "host_bytes")
    assert {name: two[name] for name in counts} == {name: one[name] for name in counts}
    for own, whole in zip(two["memory"], one["memory"], strict=True):
        assert own["by_chip"] == whole["by_chip"]
        assert own["by_kind"] == whole["by_kind"]


@pytest.mark.parametrize(
    ("answers", "whole"), [((None, None), None), ((True, None), True), ((None, False), False), ((True, False), False)]
)
def test_ranks_that_ran_nothing_do_not_answer_for_the_others(
    answers: tuple[bool | None, ...], whole: bool | None
) -> None:
    empty = make_report(MemoryLog())
    assert empty.fits is None
    reports = [replace(empty, fits=answer) for answer in answers]

    assert merge_reports(reports, len(reports)).fits is whole
    assert [read_report(json.loads(json.dumps(report.to_json()))) for report in reports] == reports
