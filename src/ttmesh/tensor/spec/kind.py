"""Kinds: everything about a device tensor but its values, one object per combination so that it hashes by identity."""

from __future__ import annotations

import weakref

from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology

Presence = frozenset[tuple[int, ...]]


class Kind:
    """Spec, topology and presence of a tensor; made by `kind_of`, compared by identity."""

    __slots__ = ("__weakref__", "presence", "spec", "topology")

    def __init__(self, spec: TensorSpec, topology: TensorTopology, presence: Presence | None) -> None:
        self.spec = spec
        self.topology = topology
        self.presence = presence  # None: every coordinate of the mesh; else only these

    def __repr__(self) -> str:
        return f"Kind({self.spec!r}, {self.topology!r}, presence={self.presence!r})"


_kinds: weakref.WeakValueDictionary[tuple[TensorSpec, bool, TensorTopology, Presence | None], Kind]
_kinds = weakref.WeakValueDictionary()


def kind_of(spec: TensorSpec, topology: TensorTopology, presence: Presence | None = None) -> Kind:
    """The one kind with this spec, topology and presence."""
    key = (spec, spec.tile.transpose_tile, topology, presence)  # specs with transposed tiles compare equal to others
    kind = _kinds.get(key)
    if kind is None:
        kind = _kinds[key] = Kind(spec, topology, presence)
    return kind
