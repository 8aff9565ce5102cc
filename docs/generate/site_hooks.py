"""What mkdocs asks while it builds the site: the pages that are made from the code, and a home page from the README."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from api_reference import list_reference_pages
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent


def on_config(config: Any) -> Any:
    """Give pages of docs/ that the navigation does not name a place under Topics."""
    topics = next(entry["Topics"] for entry in config.nav if "Topics" in entry)
    named = set(list_files(config.nav))
    topics += [
        {_read_title(page): page.name} for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in named
    ]
    return config


def list_files(nav: Any) -> Iterator[str]:
    """The files of a navigation, in its order."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from list_files(value)


def on_files(files: Files, config: Any) -> Files:
    """Add the home page and the API reference."""
    for path, text in {
        "index.md": format_home(),
        "decisions/index.md": format_decisions(),
        **list_reference_pages(),
    }.items():
        files.append(File.generated(config, path, content=text))
    return files


def format_home() -> str:
    """The README with links that hold inside docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/(decisions/)?", lambda match: "](" + ("decisions/index.md" if match[1] else ""), text)


def format_decisions() -> str:
    """A list of the decisions by their titles."""
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    return "# Decisions\n\n" + "".join(f"- [{_read_title(page)}]({page.name})\n" for page in pages)


def _read_title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
