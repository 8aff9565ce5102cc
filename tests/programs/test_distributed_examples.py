"""Every example runs and checks itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
EXAMPLES = sorted(path.name for path in FOLDER.glob("*.py") if path.name != "elementwise.py")
ALONE = [name for name in EXAMPLES if not name.endswith("_over_ranks.py")]  # tests/ranks starts the others


@pytest.mark.parametrize("name", ALONE)
def test_example_checks_itself(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))

    runpy.run_path(str(FOLDER / name), run_name="__main__")

    assert len(capsys.readouterr().out.splitlines()) == 1  # one line that says what was checked


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_fits_on_a_page(name: str) -> None:
    assert len((FOLDER / name).read_text().splitlines()) < 80
