"""docs/collectives.md: its program runs, and it names every algorithm there is."""

from __future__ import annotations

import re
from pathlib import Path

from ttmesh.ccl.planning.algorithm_choice import names

PAGE = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text(encoding="utf-8")


def test_the_program_runs(capsys) -> None:
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/collectives.md", "exec"), {})

    assert "[Dev 4]" in capsys.readouterr().out


def test_every_algorithm_is_explained() -> None:
    assert all(f"| `{name}` |" in PAGE for name in names())
