"""Writes docs/tutorial.ipynb from docs/tutorial.md. python docs/generate/tutorial_notebook.py"""

from __future__ import annotations

import json
from pathlib import Path

from markdown_blocks import find_blocks

DOCS = Path(__file__).parent.parent
PAGE = DOCS / "tutorial.md"
NOTEBOOK = DOCS / "tutorial.ipynb"


def format_notebook() -> str:
    """The notebook as JSON: text between blocks is a Markdown cell, a Python block a code cell with the output shown."""
    page = PAGE.read_text(encoding="utf-8")
    lines = page.splitlines(keepends=True)
    cells: list[dict[str, object]] = []
    end = 0  # the line after the last block
    for block in find_blocks(page):
        start = block.line - 1  # of the code; its fence is the line before
        _append_text(cells, "".join(lines[end : start - 1]))
        end = start + block.text.count("\n") + 1
        if block.output is not None:
            fence = next(i for i in range(end, len(lines)) if lines[i].startswith("```text"))
            end = fence + block.output.count("\n") + 2
        cells.append(_make_code_cell(len(cells), block.text, block.output))
    _append_text(cells, "".join(lines[end:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _append_text(cells: list[dict[str, object]], text: str) -> None:
    if text.strip():
        cells.append({"cell_type": "markdown", "id": f"cell-{len(cells)}", "metadata": {}, "source": _split(text)})


def _make_code_cell(place: int, text: str, output: str | None) -> dict[str, object]:
    outputs = [] if output is None else [{"name": "stdout", "output_type": "stream", "text": _split(output)}]
    return {
        "cell_type": "code", "execution_count": None, "id": f"cell-{place}", "metadata": {}, "outputs": outputs,
        "source": _split(text),
    }  # fmt: skip


def _split(text: str) -> list[str]:
    return text.strip("\n").splitlines(keepends=True)


if __name__ == "__main__":
    NOTEBOOK.write_text(format_notebook(), encoding="utf-8")
