"""Paths, module paths and names on the pages of docs/ exist."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ttmesh"
PAGES = [
    *(
        str(page.relative_to(ROOT))
        for folder in ("docs", "docs/guides", "docs/decisions")
        for page in sorted((ROOT / folder).glob("*.md"))
    ),
    "README.md",
    "CONTRIBUTING.md",
]
PATH = re.compile(r"(?<![\w./-])((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|c|txt|md|yaml))?)(?![\w/])")
DOTTED = re.compile(r"(?<![\w./-])ttmesh(?:\.[A-Za-z_]\w*)+")
CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
AMERICAN = re.compile(
    r"\b(?:behavior|color|center|favor|gray|neighbor|(?:optim|initial|special|synchron|serial|recogn|vector|quant)iz)"
    r"(?:s|e|ed|er|ers|es|ing|ation)?\b",
    re.IGNORECASE,
)  # words of TT-NN and torch are in backticks
IN_TT_METAL = {"tests/ttnn/distributed/test_multi_mesh.py"}  # and everything in its folder of models
MADE_BY_PROGRAMS = {"generated/reports/"}
NOT_OURS = {  # names in examples of commands, of TT-NN's that do not exist here, and of the seeds' scripts
    "API_KEY", "build_metal", "get_config_buffer_address", "receiver_mesh", "sender_mesh", "test_demo",
    "test_long_inference", "test_my_model", "two_meshes",
}  # fmt: skip


@cache
def names_in_code() -> frozenset[str]:
    """Every word of the code, and the names of its files."""
    files = [f for folder in ("src", "examples", "benchmarks", "tests") for f in (ROOT / folder).rglob("*")]
    files = [f for f in files if f.suffix in (".py", ".pyi", ".c", ".js", ".txt", ".yaml") and f != Path(__file__)]
    texts = [f.read_text(errors="ignore") for f in (*files, ROOT / "pyproject.toml", ROOT / "Makefile")]
    return frozenset({word for text in texts for word in re.findall(r"[A-Za-z_]\w+", text)} | {f.stem for f in files})


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_exists(page: str) -> None:
    paths = PATH.findall((ROOT / page).read_text())

    places = (SOURCE, ROOT, (ROOT / page).parent)
    missing = [path for path in paths if not any((place / path).exists() for place in places)]
    missing = [path for path in missing if not path.startswith("models/")]

    assert set(missing) <= IN_TT_METAL | MADE_BY_PROGRAMS


@pytest.mark.parametrize("page", PAGES)
def test_every_module_path_on_the_page_can_be_imported(page: str) -> None:
    for name in sorted(set(DOTTED.findall((ROOT / page).read_text()))):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_the_page_is_in_the_code(page: str) -> None:
    text = CODE_BLOCK.sub("", (ROOT / page).read_text())
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[A-Za-z_]\w*", span)]

    missing = {word for word in words if "_" in word.strip("_") and not word.startswith("_")} - names_in_code()

    assert missing <= NOT_OURS


def test_the_page_of_the_architecture_walks_through_every_layer_it_names() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()

    for walk in ("from_torch", "add(a, b)", "all_reduce", "execute_trace", "to_torch", "allocation record"):
        assert walk in page


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_spelt_in_british_english(page: str) -> None:
    prose = re.sub(r"`[^`]*`", "", CODE_BLOCK.sub("", (ROOT / page).read_text()))

    assert not AMERICAN.findall(prose)
