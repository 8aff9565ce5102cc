"""The table of TT-NN's names points at what exists."""

from __future__ import annotations

import importlib

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.ttnn import names

OWN = [(module, name) for module, table in names.OWN_NAMES.items() for name in table]


@pytest.mark.parametrize("name", names.NAMES)
def test_every_name_of_the_table_is_there(name) -> None:
    assert hasattr(ttnn, name)


@pytest.mark.parametrize(("module", "name"), OWN)
def test_every_name_of_a_submodule_is_there(module, name) -> None:
    assert hasattr(importlib.import_module(f"ttmesh.ttnn.{module}"), name)
