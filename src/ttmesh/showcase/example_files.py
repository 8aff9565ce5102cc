"""The example programs that come with ttmesh: where they are, what each shows."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import NamedTuple

from ttmesh.base.errors import MeshError, one_of, suggest_names


class Example(NamedTuple):
    """A program by its name, such as `models/mlp`."""

    name: str
    path: Path
    summary: str


def find_folder() -> Path:
    """The folder of examples: beside the package where it was installed, in the checkout otherwise."""
    places = (Path(__file__).parents[1] / "examples", Path(__file__).parents[3] / "examples")
    for place in places:
        if (place / "mesh_allocation.py").is_file():
            return place
    raise MeshError(
        "this installation of ttmesh has no examples",
        expected=f"a folder {places[0]}",
        fix="Install ttmesh again from a wheel or a checkout.",
    )


def list_examples() -> list[Example]:
    """Every example that is a program; tests and modules that others import are none."""
    folder = find_folder()
    found = []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path.name.startswith(("test_", "conftest")) or "__main__" not in source:
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        # The files name the command of a checkout; the one here is there wherever ttmesh is installed.
        found.append(Example(name, path, summary.replace(f"python examples/{name}.py", f"ttmesh examples {name}")))
    return found


def find_example(name: str) -> Example:
    """The example of this name, with or without its folder and its suffix."""
    wanted = name.removesuffix(".py")
    examples = list_examples()
    for example in examples:
        if wanted in (example.name, example.path.stem):
            return example
    names = [example.name for example in examples]
    raise MeshError(f"no example named {name!r}", expected=one_of(names), fix=suggest_names(wanted, names))


def copy_examples(target: Path) -> int:
    """Copy every example to a new folder; returns how many files were written."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise MeshError(
            f"{target} exists and is not an empty folder",
            expected="a folder that does not exist yet, or an empty one",
            fix="Choose another folder.",
        )
    try:
        shutil.copytree(find_folder(), target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise MeshError(
            f"the examples cannot be copied to {target}: {error}",
            expected="a writable folder",
            fix="Choose another one.",
        ) from error
    return sum(path.is_file() for path in target.rglob("*"))
