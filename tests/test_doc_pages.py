"""The pages of docs/ and the README: their programs run, their commands exist, their links lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from api_reference import list_reference_pages
from markdown_blocks import find_anchors, find_blocks, find_commands, find_links, list_pages
from settings_page import format_settings_page
from tutorial_notebook import NOTEBOOK, format_notebook

import ttmesh.ttnn as ttnn
from ttmesh import cli
from ttmesh.base.settings import SETTINGS, override
from ttmesh.mesh.device.mesh_device import list_open_meshes
from ttmesh.ops.catalogue.definition import catalogue

ROOT = Path(__file__).parent.parent
PAGES = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in list_pages(ROOT)}
PROGRAMS = [name for name, text in PAGES.items() if any(block.language == "python" for block in find_blocks(text))]
UNWRAPPED = ("|", "#", "![", "    ")  # tables, headings, images and indented code
SYSTEM = re.compile(r"<!-- system: (\S+) -->")  # the system that a page's programs need


@pytest.fixture
def clean_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Whatever a page opens or configures ends with it; its files go to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    yield
    for mesh in list_open_meshes():
        ttnn.close_mesh_device(mesh)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    for setting in SETTINGS:
        override(setting.variable, None)


@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize("page", PROGRAMS)
def test_the_programs_of_the_page_run_and_print_what_it_shows(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system := SYSTEM.search(PAGES[page]):
        monkeypatch.setenv("TTMESH_SYSTEM", system[1])
    scope: dict[str, object] = {"__name__": "__main__"}

    for block in find_blocks(PAGES[page]):
        if block.language == "python":
            program = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's own line
            run(program, page, scope, block.output)


def run(program: str, where: str, scope: dict[str, object], output: str | None) -> None:
    """Execute a block; it prints the output that stands under it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(program, str(ROOT / where), "exec"), scope)
    if output is not None:
        assert_printed(output, printed.getvalue(), where)


def assert_printed(expected: str, printed: str, where: str) -> None:
    """The output is the page's, where `...` stands for anything."""
    lines = ["\n".join(line.rstrip() for line in text.splitlines()) + "\n" for text in (expected, printed)]
    if not doctest.OutputChecker().check_output(*lines, doctest.ELLIPSIS):
        pytest.fail(f"{where} prints\n{lines[1]}\nbut the page shows\n{lines[0]}")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_page_exists_with_the_options_it_shows(page: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    for command in find_commands(PAGES[page]):
        if command.startswith("make"):
            assert command.split()[1] in targets, command
        else:
            assert_parses(command)


def assert_parses(command: str) -> None:
    """The subcommand takes these options; of a lone name, or a form with [brackets] or …, only the name counts."""
    known = cli.subcommands()
    words = shlex.split(re.split(r" [|>&;] ?", command)[0], comments=True)[1:]
    if len(words) == 1 or any(re.search(r"[\[\]…|*]|^[A-Z]+$|^\.\.\.$", word) for word in words):
        assert words[0] in known, command
    else:
        status = find_status(words)
        assert status == 0, command


def find_status(words: list[str]) -> int:
    """0 where the command line can be parsed."""
    try:
        cli.build_parser(cli.subcommands()).parse_args(words)
    except SystemExit as done:  # --help ends with 0, an error with 2
        return int(done.code or 0)
    return 0


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_page_leads_to_a_file_and_a_heading(page: str) -> None:
    here = ROOT / page
    for link in find_links(PAGES[page]):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{page} links to {link}, which does not exist"
        assert target.is_relative_to(ROOT), f"{page} links to {link}, outside the repository"
        if anchor:
            assert anchor in find_anchors(target.read_text(encoding="utf-8")), (
                f"{page} links to {link}: no such heading"
            )


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_of_the_page_is_wrapped_at_120_columns(page: str) -> None:
    """Tables, code and images are one line each, however long."""
    prose = re.sub(
        r"^```.*?^```", lambda match: "\n" * match[0].count("\n"), PAGES[page], flags=re.MULTILINE | re.DOTALL
    )

    lines = enumerate(prose.splitlines(), 1)
    assert [f"{page}:{n}" for n, line in lines if len(line) > 120 and not line.startswith(UNWRAPPED)] == []


def test_the_page_of_settings_is_what_the_table_says() -> None:
    assert format_settings_page() == PAGES["docs/settings.md"], "run `make pages`: settings.md is out of date"


def test_the_notebook_of_the_tutorial_is_what_its_page_says() -> None:
    assert format_notebook() == NOTEBOOK.read_text(encoding="utf-8"), "run `make pages`: tutorial.ipynb is out of date"


@pytest.mark.usefixtures("clean_process")
def test_the_code_cells_of_the_notebook_run_in_their_order() -> None:
    scope: dict[str, object] = {"__name__": "__main__"}

    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            outputs = ["".join(output["text"]) for output in cell["outputs"]]
            run("".join(cell["source"]), "docs/tutorial.ipynb", scope, outputs[0] if outputs else None)


def test_the_reference_has_a_heading_and_a_call_for_every_operation() -> None:
    text = "\n".join(list_reference_pages().values())

    assert not [name for name in catalogue if f"\n## {name}\n\n```py\n{name}(" not in text]


def test_every_page_that_the_navigation_of_the_site_names_exists_and_stands_there_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(list_files(settings["nav"]))

    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    made = {"index.md", "decisions/index.md", *list_reference_pages()}
    guides = {name for name in written if name.startswith("guides/")}
    assert len(listed) == len(set(listed))
    assert set(listed) - written <= made <= set(listed)
    assert guides <= set(listed)


def list_files(nav: list[dict[str, object]]) -> Iterator[str]:
    """The files of a navigation, in its order."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from list_files(value)  # type: ignore[arg-type]
