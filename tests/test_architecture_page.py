"""docs/architecture.md and CONTRIBUTING.md name files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ttmesh"
NAMED = re.compile(r"(?<![\w./-])((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|txt|md))?)(?![\w/])")


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "docs/glossary.md"])
def test_every_path_on_the_page_exists(page: str) -> None:
    paths = NAMED.findall((ROOT / page).read_text())

    missing = [path for path in paths if not (SOURCE / path).exists() and not (ROOT / path).exists()]

    assert not missing


def test_the_page_of_the_architecture_walks_through_every_layer_it_names() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()

    for walk in ("from_torch", "add(a, b)", "all_reduce", "execute_trace", "to_torch", "allocation record"):
        assert walk in page
