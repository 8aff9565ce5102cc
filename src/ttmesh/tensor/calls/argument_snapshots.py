"""Snapshots: copies of arguments, so that later changes by the caller do not reach a plan, a trace or a queue."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import torch

from ttmesh.tensor.calls.plan_keys import ATOMS
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


def snapshot(value: Any) -> Any:
    """A copy of the containers, configurations and arrays in a value; tensors and owners of memory are not copied."""
    kind = type(value)
    if kind in ATOMS or kind is Tensor or kind is float:
        return value
    if kind is list:
        return [snapshot(item) for item in value]
    if kind is tuple:
        return tuple([snapshot(item) for item in value])
    if kind is MemoryConfig:
        return copy(value)
    if isinstance(value, dict):
        own = copy(value)
        own.update({name: snapshot(item) for name, item in value.items()})
        return own
    if isinstance(value, (list, set, bytearray)):
        return copy(value)
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _snapshot_fields(value)
    return value


def is_mutable(value: Any) -> bool:
    """Whether a snapshot is another object."""
    return snapshot(value) is not value


def snapshot_all(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of every argument."""
    return {name: snapshot(value) for name, value in arguments.items()}


def _snapshot_fields(value: Any) -> Any:
    own = copy(value)
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        kept = snapshot(given)
        if kept is not given:
            object.__setattr__(own, field.name, kept)
    return own
