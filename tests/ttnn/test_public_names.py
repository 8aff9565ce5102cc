"""The public names of TT-NN 0.81.1 exist here, except those of a list that may only become shorter."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.ttnn import not_emulated

FOLDER = Path(__file__).parent / "recorded"


def read(file: str) -> list[str]:
    """The lines of a recorded file without its remarks."""
    return [line for line in (FOLDER / file).read_text().splitlines() if not line.startswith("#")]


def recorded() -> Iterator[str]:
    """Every recorded name: `ttnn.module.name`, or `ttnn.module.Class.attribute`."""
    for line in read("public_names.txt"):
        holder, _, names = line.removeprefix("class ").partition(": ")
        yield from (f"{holder}.{name}" for name in names.split())


@functools.cache
def find(path: str) -> Any:
    """What a program gets under this name, None if nothing."""
    if path == "ttnn":
        return ttnn
    holder, _, name = path.rpartition(".")
    found = getattr(find(holder), name, None)
    if found is None:
        try:
            return importlib.import_module(f"ttmesh.{path}")
        except ModuleNotFoundError:
            return None
    return found


def exists(path: str) -> bool:
    """Whether the name is there; fields of a class count although only its objects have them."""
    holder, _, name = path.rpartition(".")
    where = find(holder)
    if hasattr(where, name) or find(path) is not None:
        return True
    return any(name in inspect.get_annotations(kind) for kind in getattr(where, "__mro__", ()))


def test_what_is_missing_is_listed_and_the_list_only_shrinks() -> None:
    missing = {name for name in recorded() if not exists(name)}
    listed = set(read("missing_names.txt"))

    assert sorted(missing - listed) == [], "names that were here are gone"
    assert sorted(listed - missing) == [], "these names are here now: take them off the list"


@pytest.mark.parametrize(
    "name", ["binary.add", "unary.relu", "transformer.concatenate_heads", "experimental.rotate_half"]
)
def test_compiled_operations_are_the_public_ones_and_have_a_type(name: str) -> None:
    operation = find(f"ttnn._ttnn.operations.{name}")

    assert isinstance(operation, find(f"ttnn._ttnn.operations.{name}_t"))
    assert operation is find(operation.python_fully_qualified_name)
    assert operation.name == name.partition(".")[2]


def test_names_that_are_not_emulated_can_be_imported_and_raise_when_they_are_used() -> None:
    from ttmesh.ttnn.download_sfpi import main

    for use, name in (
        (main, "ttnn.download_sfpi.main"),
        (ttnn.LightMetalReplay, "ttnn.LightMetalReplay"),
        (ttnn.LightMetalReplay.run, "ttnn.LightMetalReplay.run"),
        (ttnn.setup_fabric_connection, "ttnn.setup_fabric_connection"),
    ):
        with pytest.raises(NotImplementedError, match=rf"^{name} is not emulated; "):
            use()


def test_enumerations_have_their_values_although_nothing_takes_them() -> None:
    assert (ttnn.H2DMode.HOST_PUSH.value, ttnn.H2DMode.DEVICE_PULL.value) == (0, 1)
    assert ttnn.BinaryOpType.ADD.name == "ADD"


def test_every_name_that_is_not_emulated_is_one_of_ttnn() -> None:
    known = set(recorded())
    listed = {f"{module}.{name}" for module in not_emulated.list_modules() for name in not_emulated.list_names(module)}

    assert sorted(listed - known) == []
