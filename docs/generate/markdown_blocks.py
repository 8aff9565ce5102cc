"""Fenced blocks, commands, headings and links of a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<target>[^()\s]+)\)|!\[[^\]]*\]\((?P<image>[^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*$", re.MULTILINE)
COMMAND = re.compile(r"^(?:\w*\$ )?(?:[A-Z_]+=\S* )*(?P<command>(?:ttmesh|make) .*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block, the line it begins on, and the text of the `text` block that follows a `python` block."""

    language: str
    text: str
    line: int
    output: str | None = None


def find_blocks(page: str) -> list[Block]:
    """The fenced blocks in their order; a `text` block is the output of the `python` block before it."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(page):
        language, text = match["language"].strip(), match["text"]
        alone = page[end : match.start()].strip() != "" or not found or found[-1].language != "python"
        end = match.end()
        if language == "text" and not alone:
            found[-1] = Block("python", found[-1].text, found[-1].line, text)
        else:
            found.append(Block(language, text, page.count("\n", 0, match.start()) + 2))
    return found


def find_commands(page: str) -> list[str]:
    """Every `ttmesh ...` and `make ...` line of the page's blocks, and every one set in code within a sentence."""
    lines = [line for block in find_blocks(page) if block.language != "python" for line in block.text.splitlines()]
    prose = FENCE.sub("", page)
    lines += [line.strip() for line in prose.splitlines() if line.startswith("    ")]
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)
    return [match["command"] for match in map(COMMAND.match, lines) if match]


def find_links(page: str) -> Iterator[str]:
    """Targets of links and images outside code."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page))
    for match in LINK.finditer(prose):
        yield match["target"] or match["image"]


def find_anchors(page: str) -> set[str]:
    """What the headings of a page are called in an address."""
    titles = [re.sub(r"[`*]", "", match["text"]) for match in HEADING.finditer(FENCE.sub("", page))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def list_pages(root: Path) -> list[Path]:
    """Every page of the documentation, the README and the notes for contributors."""
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
