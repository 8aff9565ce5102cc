"""Keys: what of a call's arguments decides its plan, by value; nothing that a caller changes later changes a key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from enum import Enum
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from ttmesh.base.cores import CoreGrid, CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.floats import float_key
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.global_circular_buffers import GlobalCircularBuffer
from ttmesh.tensor.spec.kind import Kind
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor

# Immutable types: their values enter a key as they are, together with their type, because 1 and True are equal in
# Python but not here. Enums are added when they are first seen.
ATOMS: set[type] = {int, bool, str, bytes, type(None), type(...), DataType, Layout, CoreGrid, CoreRangeSet}
INTERLEAVED = TensorMemoryLayout.INTERLEAVED
SLICE_BOUND_TYPES = {int, type(None)}
SEQUENCES = frozenset({list, tuple, Shape})

Fields = Callable[[Any], tuple[Any, ...]]


def add_to_key(value: Any, key: list[Any], tensors: list[Tensor]) -> bool:
    """Append to the key what the plan depends on; False if calls with such an argument must be bound every time."""
    kind = type(value)
    if kind is Tensor:
        key.append(value.kind)
        tensors.append(value)
    elif kind is tuple or kind in SEQUENCES:
        for item in value:
            if type(item) is not int:
                break
        else:  # a shape, or dims
            if kind is tuple:
                key.append(value)
            else:
                key += (kind, len(value), *value)
            return True
        key += (kind, len(value))
        for item in value:
            if not add_to_key(item, key, tensors):
                return False
    elif kind in ATOMS:
        key += (kind, value)
    elif kind is float:
        key.append(kind)
        key.append(value if value > 0 or value < 0 else float_key(value))
    elif (
        kind is slice and {type(value.start), type(value.stop), type(value.step)} <= SLICE_BOUND_TYPES
    ):  # 1 µs less for x[:, :, :16]
        key += (slice, value.start, value.stop, value.step)
    elif kind is MemoryConfig and value.memory_layout is INTERLEAVED:
        key += (MemoryConfig, value.buffer_type)
    else:
        fields = _FIELDS.get(kind) or _fields_of(kind)
        if fields is None:
            if kind in ATOMS:  # an enum, added just now
                key += (kind, value)
            return kind in ATOMS
        key.append(kind)
        count = len(tensors)
        for field in fields(value):
            if not add_to_key(field, key, tensors):
                return False
        return len(tensors) == count  # plans look for tensors in lists, not in fields
    return True


def add_named(named: Mapping[str, Any], runtime: frozenset[str], key: list[Any], tensors: list[Tensor]) -> bool:
    """The same for keyword arguments; runtime values enter by their type only."""
    for name, value in named.items():
        key.append(name)
        if name in runtime and type(value) is not Tensor:
            key.append(type(value))
        elif not add_to_key(value, key, tensors):
            return False
    return True


def without_topology(key: Hashable) -> Hashable:
    """The key of a plan's program: how a tensor is placed on a mesh does not change the program on a chip."""
    if isinstance(key, Kind):
        return key.spec, key.presence
    return tuple(map(without_topology, key)) if type(key) is tuple else key


def key_of(value: Any, runtime: bool = False) -> Hashable:
    """The key of any argument: a tensor's kind, the type of a runtime number, else the value."""
    if type(value) is Tensor:
        return value.kind
    if runtime:
        return type(value).__name__
    key: list[Any] = []
    if add_to_key(value, key, []):
        return tuple(key)
    if type(value) is MeshDevice:
        return "mesh"  # plans live on the mesh, so it needs no name in them, and must not be held by them
    if type(value) is GlobalCircularBuffer:
        return value.form  # its memory must not be held either
    if type(value) in SEQUENCES:
        return (type(value), *map(key_of, value))
    if isinstance(value, dict):
        return (dict, *((key_of(name), key_of(item)) for name, item in value.items()))
    if isinstance(value, (set, frozenset)):
        return (type(value), frozenset(map(key_of, value)))
    if isinstance(value, torch.Tensor):
        return (torch.Tensor, tuple(value.shape), value.dtype, _digest(_bytes_of(value)))
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value), value.shape, value.dtype.str, _digest(value.tobytes()))
    if isinstance(value, complex):
        return (type(value), float_key(value.real), float_key(value.imag))
    if isinstance(value, float):
        return (type(value), float_key(value))
    if isinstance(value, int):
        return (type(value), value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # a key made before holds classes
        return (type(value), *(key_of(getattr(value, field.name)) for field in dataclasses.fields(value)))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value  # type: ignore[no-any-return]


def _memory_fields(config: MemoryConfig) -> tuple[Any, ...]:
    """The fields that count; of the two shard specs the one it was made with, since the other follows from the tensor."""
    nd = config.created_with_nd_shard_spec
    shards = config.nd_shard_spec if nd else config.shard_spec
    return config.memory_layout, config.buffer_type, config.per_core_allocation, nd, shards


def _slice_fields(bounds: slice) -> tuple[Any, ...]:
    return bounds.start, bounds.stop, bounds.step


_FIELDS: dict[type, Fields | None] = {
    MemoryConfig: _memory_fields,
    slice: _slice_fields,
    MeshCoordinate: MeshCoordinate.coords,
}


def _fields_of(kind: type) -> Fields | None:
    """A function from a dataclass's value to its fields; None for other types. Enums are added to the atoms."""
    if kind in _FIELDS:
        return None
    fields: Fields | None = None
    if issubclass(kind, Enum):
        ATOMS.add(kind)
        return None
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        fields = _getter(names)
    _FIELDS[kind] = fields
    return fields


def _getter(names: list[str]) -> Fields:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _bytes_of(values: torch.Tensor) -> bytes:
    whole = values.detach().cpu().contiguous()
    return bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""


def _digest(values: bytes) -> bytes:
    """Large values are compared by a hash: a key must not hold a copy of them."""
    return values if len(values) <= 64 else blake2b(values, digest_size=32).digest()
