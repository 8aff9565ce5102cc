"""Names in src use the field's words: words that this project once invented for known things do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ttmesh"

# A word of an identifier, by its underscores -> the field's words for it (docs/glossary.md).
BANNED = {
    "apart": "separate, reserved",
    "cut": "shard, split, slice",
    "cuts": "shards, splits, slices",
    "fellow": "peer",
    "fellows": "peers",
    "folded": "flattened, merged",
    "laid": "stored",
    "lie": "be stored",
    "lies": "is stored",
    "likes": "variants",
    "parted": "sharded",
    "picked": "selected",
    "picture": "image, drawing",
    "pictures": "images",
    "placed": "placement, on_device",
    "placing": "placement",
    "said": "recorded, description, message",
    "standing": "persistent",
    "told": "recorded, reported, sent",
    "turned": "transposed, permuted, rotated",
    "way": "path, route, stream",
    "ways": "paths, routes, streams",
}

CANDIDATE = re.compile(rf"(?<![A-Za-z])({'|'.join(BANNED)})(?![A-Za-z])", re.IGNORECASE)

# Names that users type; they stay.
EXCEPTIONS = {
    ("cli/monitor.py", "pictures"): "option --pictures of `ttmesh monitor`",
    ("cli/monitor.py", "MAX_PICTURES"): "option --pictures of `ttmesh monitor`",
}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module defines: functions, classes, parameters, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def violations(source: str, path: str) -> list[str]:
    """The names of a module that hold a banned word, each with what to use instead."""
    if not CANDIDATE.search(source):  # most modules need no parsing
        return []
    found = []
    for name, line in names(ast.parse(source)):
        for word in name.strip("_").lower().split("_"):
            if word in BANNED and (path, name) not in EXCEPTIONS:
                found.append(f"{path}:{line}: {name}: say {BANNED[word]}")
    return sorted(set(found))


def test_names_use_the_words_of_the_field() -> None:
    found = [
        line
        for path in sorted(SOURCE.rglob("*.py"))
        for line in violations(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix())
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    ["def _told(): ...", "class Placed: ...", "def f(cut): ...", "turned = 1", "self.ways = 2", "for way in (): ..."],
)
def test_banned_words_are_found_in_every_kind_of_name(source: str) -> None:
    assert len(violations(source, "ops/new.py")) == 1


def test_words_that_only_contain_a_banned_one_are_fine() -> None:
    assert violations("shortcut = always = understanding = displaced = 1", "ops/new.py") == []


def test_every_exception_is_still_needed() -> None:
    used = {
        (path, name)
        for path, name in EXCEPTIONS
        if name in {found for found, _ in names(ast.parse((SOURCE / path).read_text(encoding="utf-8")))}
    }

    assert used == set(EXCEPTIONS)
