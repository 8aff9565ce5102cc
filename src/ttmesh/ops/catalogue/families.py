"""Imports all modules of ttmesh.ops, which define the operations of the catalogue."""

from __future__ import annotations

import importlib
import pkgutil

import ttmesh.ops
from ttmesh.ops.catalogue.definition import Entry, catalogue


def load() -> dict[str, Entry]:
    """The catalogue with every operation of ttmesh.ops."""
    for module in pkgutil.walk_packages(ttmesh.ops.__path__, "ttmesh.ops."):
        importlib.import_module(module.name)
    return catalogue
