"""docs/collectives.md names every algorithm there is."""

from __future__ import annotations

from pathlib import Path

from ttmesh.ccl.planning.algorithm_choice import names

PAGE = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text(encoding="utf-8")


def test_every_algorithm_is_explained() -> None:
    assert all(f"| `{name}` |" in PAGE for name in names())
