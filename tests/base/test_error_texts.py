"""Every error says what was wrong, what was expected and what to do; no part is a filler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ttmesh
from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.errors import ShapeError, require

SOURCE = Path(ttmesh.__file__).parent

# Texts that fit any error and therefore help with none.
FILLERS = re.compile(
    r"(?:(?:Change|Check|Correct|Fix|Adjust) (?:it|them|both|this|that|the (?:call|calls|arguments?|inputs?|tensors?|shapes?"
    r"|options?|number|configuration))\.?"
    r"|Choose (?:one|another|others?)\.?|Pass (?:it|them|one)\.?|Add (?:it|one)\.?|Name one\.?|Reshape(?: it)?\.?"
    r"|such(?: an?)?(?: \w+)?|one of (?:them|the two|those)|something else|what TT-NN takes|the same|others?"
    r"|another (?:one|format|tensor|value))"
)


def error_parts(tree: ast.Module) -> Iterator[ast.expr]:
    """What is passed as `expected` and `fix`, by keyword or to `require` by position."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        yield from (keyword.value for keyword in node.keywords if keyword.arg in ("expected", "fix"))
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name.endswith(("require", "_error")):
            yield from node.args[-2:]


def literals(part: ast.expr) -> Iterator[str]:
    if isinstance(part, ast.Constant) and isinstance(part.value, str):
        yield part.value
    elif isinstance(part, ast.IfExp):
        yield from literals(part.body)
        yield from literals(part.orelse)


def test_no_error_text_in_the_source_is_a_filler() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{part.lineno}: {text!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        for part in error_parts(ast.parse(path.read_text()))
        for text in literals(part)
        if not text.strip() or FILLERS.fullmatch(text)
    ]

    assert not found, "say what to do instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text", ["Change the call.", "Check the arguments.", "one of them", "something else", "such a k"]
)
def test_the_pattern_knows_fillers(text: str) -> None:
    assert FILLERS.fullmatch(text)


def test_one_function_refuses_for_every_layer() -> None:
    definitions = [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "require"
    ]

    assert definitions == ["base/errors.py"]


def test_require_raises_the_three_parts() -> None:
    require(True, "unused", "unused", "unused")

    with pytest.raises(ShapeError, match=r"^dim 5 of a matrix; expected 0 or 1\. Choose a smaller dim\.$"):
        require(False, "dim 5 of a matrix", "0 or 1", "Choose a smaller dim.")


def test_an_error_inside_a_function_that_takes_anything_is_not_hidden() -> None:
    @name_wrong_types
    def read(values: Any, optional: Any | None = None) -> Any:
        raise TypeError("what is really wrong")

    with pytest.raises(TypeError, match="what is really wrong"):
        read([1], optional=2)
