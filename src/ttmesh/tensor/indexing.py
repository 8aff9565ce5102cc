"""`tensor[...]` in terms of slice and squeeze, as TT-NN does it."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.errors import MeshError
from ttmesh.tensor import operators
from ttmesh.tensor.tensor import Tensor


def normalize_index(key: Any, shape: tuple[int, ...]) -> tuple[list[slice], list[int]]:
    """One slice with plain numbers per dim, and the dims that an int picked out."""
    keys = [key] if isinstance(key, (int, slice, type(...))) else list(key)
    if sum(index is Ellipsis for index in keys) > 1:
        raise ValueError("Only one ellipsis ('...') is allowed in a slice.")
    given = [index for index in keys if index is not Ellipsis]
    if len(given) > len(shape):
        raise IndexError(f"Too many indices for tensor of dimension {len(shape)}")
    at = next((i for i, index in enumerate(keys) if index is Ellipsis), len(keys))
    indices = [*given[:at], *[slice(None)] * (len(shape) - len(given)), *given[at:]]
    slices, indexed_dims = [], []
    for dim, (index, extent) in enumerate(zip(indices, shape, strict=True)):
        if isinstance(index, int):
            position = index + extent if index < 0 else index
            if not 0 <= position < extent:
                raise IndexError(
                    f"Index {index} (converted to {position}) is out of bounds for dimension {dim} of size {extent}"
                )
            slices.append(slice(position, position + 1, 1))
            indexed_dims.append(dim)
        elif isinstance(index, slice):
            start = 0 if index.start is None else index.start
            stop = extent if index.stop is None else index.stop
            slices.append(slice(start, stop, 1 if index.step is None else index.step))
        else:
            raise TypeError(f"Invalid slice type: {index}")
    return slices, indexed_dims


def getitem(tensor: Tensor, key: Any) -> Tensor:
    """The slice of every device's values that the key names."""
    slices, indexed_dims = normalize_index(key, tuple(tensor.shape))
    if tensor.device() is not None:
        begins, ends, steps = zip(*((s.start, s.stop, s.step) for s in slices), strict=True) if slices else ((), (), ())
        result: Tensor = operators.call("slice", tensor, list(begins), list(ends), list(steps))
        for shift, dim in enumerate(indexed_dims):
            result = operators.call("squeeze", result, dim - shift)
        return result
    if any(one.step != 1 for one in slices):
        raise MeshError(
            "Host tensors cannot be accessed with non-unit stride", expected="step 1", fix="Move it to a device first."
        )
    index: tuple[Any, ...] = (..., *slices)
    lanes: torch.Tensor = tensor.lanes[index]
    axes = tensor.mesh_shape.dims()
    for shift, dim in enumerate(indexed_dims):
        lanes = lanes.squeeze(axes + dim - shift)
    spec = tensor.spec.with_shape(lanes.shape[axes:])
    return tensor.make_host_tensor(spec, lanes.contiguous())


operators.fill(getitem=getitem)
