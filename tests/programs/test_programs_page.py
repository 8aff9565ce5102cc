"""The program on docs/programs.md runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "programs.md"


def test_the_page_s_program_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    assert len(blocks) == 1
    exec(compile(blocks[0], str(PAGE), "exec"), {})
