"""Imports point downwards only; this file holds the table."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "ttmesh"

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
    "drift": {"ops", "tensor", "mesh", "chip"},
    "tracking": set(),
    "monitor": {"tracking"},
    "launch": set(),
}
# room -> the rooms of the same layer it may import. A module in the layer's own folder is named with a dot: "tensor.tensor".
# Imports for type checkers alone do not count: they do not run.
_OPERATIONS = {"ops.goldens", "ops.lane_functions", "ops.configs", "ops.requirements", "ops.catalogue", "ops.stages"}
ROOMS: dict[str, set[str]] = {
    "chip.formats": {"chip.formats.kernels"},
    "chip.formats.kernels": {"chip.formats"},
    "chip.formats.kernels.gpu": {"chip.formats"},
    "chip.numerics": {"chip.formats", "chip.formats.kernels"},
    "chip.backends": {"chip.*", "chip.formats.kernels"},  # the CPU's threads and the GPU's clamps are the kernels'
    "fabric.messaging": {"fabric.*"},
    "fabric.transports": {"fabric.messaging", "fabric.*"},
    "mesh.system": set(),
    "mesh.allocation": {"mesh.system"},
    "mesh.queue": {"mesh.allocation", "mesh.system"},
    "mesh.ranks": {"mesh.queue", "mesh.allocation", "mesh.system"},
    "mesh.device": {"mesh.ranks", "mesh.queue", "mesh.allocation", "mesh.system"},
    "mesh.functions": {"mesh.device", "mesh.ranks", "mesh.queue", "mesh.allocation", "mesh.system"},
    "programs.buffers": set(),
    "programs.*": {"programs.buffers"},
    "programs.execution": {"programs.*", "programs.buffers"},
    "tensor.spec": set(),
    "tensor.distribution": {"tensor.spec"},
    "tensor.*": {"tensor.spec", "tensor.distribution"},  # Tensor itself
    "tensor.transfer": {"tensor.spec", "tensor.distribution", "tensor.*", "tensor.calls"},
    "tensor.calls": {"tensor.spec", "tensor.distribution", "tensor.*"},
    "ops.goldens": set(),
    "ops.lane_functions": set(),
    "ops.configs": {"ops.lane_functions", "ops.goldens"},  # an activation brings its golden
    "ops.buffers": {"ops.stages"},  # the map of a reshape is computed there
    "ops.requirements": set(),  # tables of what operands must be
    "ops.catalogue": {"ops.lane_functions", "ops.configs", "ops.requirements"},
    "ops.stages": {"ops.catalogue"},
    "ops.*": _OPERATIONS,
    "ops.graph": _OPERATIONS,
    "ops.elementwise": _OPERATIONS | {"ops.*"},
    "ops.creation": _OPERATIONS | {"ops.elementwise"},
    "ops.complex": _OPERATIONS | {"ops.elementwise", "ops.creation"},
    "ops.reduction": _OPERATIONS | {"ops.elementwise"},
    "ops.norm": _OPERATIONS,
    "ops.conv": _OPERATIONS,
    "ops.pool": _OPERATIONS | {"ops.conv"},
    "ops.movement": _OPERATIONS | {"ops.elementwise", "ops.pool"},
    "ops.matmul": _OPERATIONS | {"ops.*", "ops.movement"},
    "ops.moe": _OPERATIONS | {"ops.matmul"},
    "ops.caches": _OPERATIONS,
    "ops.attention": _OPERATIONS | {"ops.caches"},
    "ops.models": _OPERATIONS | {"ops.attention", "ops.caches", "ops.norm"},
    "ops.moreh": _OPERATIONS | {"ops.creation", "ops.elementwise", "ops.matmul", "ops.reduction"},
    "ccl.planning": {"ccl.algorithms"},  # finds them by file name
    "ccl.algorithms": {"ccl.planning"},  # builds its transfer plans
    "ccl.collectives": {"ccl.planning"},
    "ccl.sockets": {"ccl.planning"},
    "ccl.experts": {"ccl.planning", "ccl.collectives"},
    "ccl.fused": {"ccl.planning", "ccl.collectives"},
    # What users import stands in nn itself; the folders hold what is behind it and know the tape and the parameters.
    "nn.*": {"nn.autograd", "nn.staging", "nn.weights"},
    "nn.autograd": {"nn.*"},
    "nn.staging": set(),
    "nn.weights": {"nn.*"},
    "monitor.*": {"monitor.exports"},
    "monitor.exports": {"monitor.*"},
    "monitor.graph_reports": {"monitor.exports"},
}
MODULES_PER_FOLDER = 20
ROOTS = {
    "cli",
    "dryrun",
    "ttnn",
    "testing",
    "showcase",
    "dropin",
    "notebook",
    "shim",
    "__main__",
}  # composition roots: they may import every layer
TORCH_FREE = {"base", "tracking", "monitor", "launch"}
TORCH_FOLDERS_BELOW_MESH = (
    "chip/backends",
    "chip/formats",
    "chip/numerics",
    "chip/cells",
    "fabric/transports",
    "fabric/messaging",
)

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


def _room(module: list[str]) -> str:
    """The folder of a module such as ["tensor", "spec", "shape"]; a layer's own folder is "tensor.*"."""
    return ".".join(module[:-1]) if len(module) > 2 else f"{module[0]}.*"


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _running_nodes(child)


def _rooms_reached(path: Path) -> set[str]:
    """Rooms of the same layer that a file imports when it runs."""
    reached: set[str] = set()
    for node in _running_nodes(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if (SOURCE.parent / (name.replace(".", "/") + ".py")).exists() and name.startswith(
                f"ttmesh.{_layer(path)}."
            ):
                reached.add(_room(name.split(".")[1:]))
    return reached


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_rooms_of_a_layer_import_as_the_table_says(path: Path) -> None:
    parts = list(path.relative_to(SOURCE).with_suffix("").parts)
    if len(parts) < 2 or parts[0] in ROOTS or path.name == "__init__.py":
        return
    room = _room(parts)

    reached = _rooms_reached(path) - {room}

    assert reached <= ROOMS.get(room, set()), f"{room} may not import {sorted(reached - ROOMS.get(room, set()))}"


def test_rooms_form_no_cycle_beside_the_named_pairs() -> None:
    pairs = [
        {"chip.formats", "chip.formats.kernels"},
        {"ccl.planning", "ccl.algorithms"},
        {"monitor.*", "monitor.exports"},
    ]
    graph = {room: {other for other in others if {room, other} not in pairs} for room, others in ROOMS.items()}
    graph = {room: {o for o in others if not room.startswith("nn.")} for room, others in graph.items()}

    TopologicalSorter(graph).prepare()


def test_no_folder_holds_more_modules_than_one_can_read() -> None:
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")

    assert not {folder.name: count for folder, count in counts.items() if count > MODULES_PER_FOLDER}


def test_no_module_name_exists_twice() -> None:
    stems = Counter(path.stem for path in FILES if path.name != "__init__.py")

    assert not [stem for stem, count in stems.items() if count > 1]


# TT-NN's TensorAccessorArgs takes a tensor; TT-Metal's, which it extends, a buffer. Both are public by this name.
CLASSES_OF_ONE_NAME = {"TensorAccessorArgs"}


def test_no_class_name_exists_twice() -> None:
    classes = Counter(
        node.name for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )

    assert {name for name, count in classes.items() if count > 1} <= CLASSES_OF_ONE_NAME


def test_no_import_hides_inside_a_function() -> None:
    """The pytest plugin is excepted: pytest loads it for every project, and it must not import torch there."""
    hidden = [
        f"{path.relative_to(SOURCE)}:{inner.lineno}"
        for path in FILES
        if _layer(path) != "testing"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    ]

    assert not hidden


def test_no_layer_imports_a_private_module_of_another() -> None:
    for path in FILES:
        for name in _imports(path):
            parts = name.split(".")
            private = [part for part in parts[1:-1] if part.startswith("_")]
            assert not (parts[0] == "ttmesh" and private and parts[1] != _layer(path)), f"{path} imports {name}"


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


# Folders of tests that are about no layer of src: what examples do, programs over several ranks, kernels under sanitizers.
OTHER_TESTS = {"agreement", "examples", "ranks", "sanitizers"}


def test_tests_lie_in_folders_as_the_code_they_test() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - OTHER_TESTS

    assert not {folder for folder in folders if not (SOURCE / folder).is_dir()}


def test_helper_modules_on_the_tests_path_hide_no_module(pytestconfig: pytest.Config) -> None:
    folders = [TESTS.parent / folder for folder in pytestconfig.getini("pythonpath")]
    names = Counter(
        path.stem
        for folder in folders
        for path in folder.glob("*.py")
        if not path.stem.startswith(("test_", "conftest"))
    )

    assert names.keys().isdisjoint({"ttmesh", "ttnn", "models", "tests"} | sys.stdlib_module_names)
    assert [name for name, count in names.items() if count > 1] == []


def test_what_catches_everything_says_why() -> None:
    unexplained = []
    for path in sorted(SOURCE.rglob("*.py")):
        lines = path.read_text().splitlines()
        for number, (line, below) in enumerate(pairwise(lines), 1):
            catches = line.strip().startswith(("except Exception", "except BaseException", "except:"))
            if catches and "#" not in line and not below.strip().startswith("#"):
                unexplained.append(f"{path.relative_to(SOURCE)}:{number}")
    assert unexplained == []
