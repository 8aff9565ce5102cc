"""Imports point downwards only; this file holds the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ttmesh"

# layer -> the layers it may import besides base and itself (see docs/architecture.md)
TABLE: dict[str, set[str]] = {
    "base": set(),
    "chip": set(),
    "fabric": set(),
    "mesh": {"chip", "fabric"},
    "programs": {"mesh", "chip"},
    "tensor": {"mesh", "chip"},
    "ops": {"tensor", "programs", "mesh", "chip"},
    "ccl": {"ops", "tensor", "mesh", "fabric", "chip"},
    "nn": {"ccl", "ops", "tensor", "programs", "mesh", "fabric", "chip"},
    "tracking": set(),
    "monitor": {"tracking"},
    "launch": set(),
}
ROOTS = {"cli", "ttnn", "testing", "dropin", "shim", "__main__"}  # composition roots: they may import every layer
TORCH_FREE = {"base", "tracking", "monitor", "launch"}
TORCH_FOLDERS_BELOW_MESH = ("chip/backends", "chip/formats", "chip/cells", "fabric/transports")

FILES = sorted(SOURCE.rglob("*.py"))


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):  # walks into functions: an arrow hidden there counts too
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    layer = _layer(path)
    if layer in ROOTS or layer == "__init__":
        return
    allowed = TABLE[layer] | {"base", layer}

    reached = {name.split(".")[1] for name in _imports(path) if name.startswith("ttmesh.")}

    assert reached <= allowed, f"{layer} may not import {sorted(reached - allowed)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_stays_where_lanes_are(path: Path) -> None:
    relative = path.relative_to(SOURCE).as_posix()
    layer = _layer(path)
    low = layer in TORCH_FREE or layer in ("chip", "fabric")
    if not low or relative.startswith(TORCH_FOLDERS_BELOW_MESH):
        return

    assert not any(name.split(".")[0] == "torch" for name in _imports(path))


def test_every_folder_is_a_layer() -> None:
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and not p.name.startswith("_")}

    assert folders <= TABLE.keys() | ROOTS


def test_folder_inits_hold_only_a_docstring() -> None:
    for path in SOURCE.rglob("__init__.py"):
        if _layer(path) in ROOTS | {"__init__", "tracking"}:  # tracking exports mark(): users call ttmesh.tracking.mark
            continue
        body = ast.parse(path.read_text()).body
        assert [type(node) for node in body] == [ast.Expr], f"{path} holds more than a docstring"


def test_no_file_is_named_after_nothing() -> None:
    assert not [p for p in FILES if p.stem in {"utils", "common", "helpers", "misc"}]


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]

    assert sorted(names) == sorted(set(names)), "pytest imports test files by their name alone"
