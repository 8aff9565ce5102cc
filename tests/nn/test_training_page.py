"""The program in docs/training.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ttmesh.ttnn as ttnn

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("place", range(len(PROGRAMS)))
def test_the_printed_programs_train(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    scope: dict[str, object] = {}

    exec(PROGRAMS[place].replace("ttnn.close_mesh_device(mesh)", ""), scope)

    count = ttnn.to_torch(ttnn.get_device_tensors(scope["optimiser"].step_count)[0])
    mesh = scope["mesh"]
    scope.clear()
    ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    assert count.item() == 3
