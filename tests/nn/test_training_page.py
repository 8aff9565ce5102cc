"""The program in docs/training.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ttmesh.ttnn as ttnn

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_printed_program_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope: dict[str, object] = {}

    exec(program, scope)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)

    assert scope["optimiser"].step_count is not None
