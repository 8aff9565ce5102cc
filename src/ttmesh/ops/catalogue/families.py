"""The files of this folder that enter operations: importing them all fills the catalogue."""

from __future__ import annotations

import importlib
import pkgutil

import ttmesh.ops
from ttmesh.ops.catalogue.definition import Entry, catalogue


def load() -> dict[str, Entry]:
    """The catalogue with every operation of this folder in it."""
    for module in pkgutil.walk_packages(ttmesh.ops.__path__, "ttmesh.ops."):
        importlib.import_module(module.name)
    return catalogue
