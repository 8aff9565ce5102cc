"""Optimiser state cut over the data-parallel axis (ZeRO stage 1): each chip keeps, and updates, its part of the weights.

    optimiser = Zero(parameters, lambda parts: AdamW(parts, 1e-3), axis=0)
    ...
    optimiser.step()  # gradients are reduce-scattered, parts updated, weights gathered

It takes the place of `synchronize_gradients` over that axis; gradients of parameters that are replicated along other
axes are summed there first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import torch

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives import all_gather, reduce_scatter
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.nn.optimisers import Optimiser
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.rows import flat_rows, join_tensors, part_tensors, row_count
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.tensor.tensor import Tensor


class Zero:
    """An optimiser on parts: `make` gets parameters that are each chip's share of the weights."""

    def __init__(
        self, parameters: ParameterSet, make: Callable[[ParameterSet], Optimiser], *, axis: int, mode: str = "fabric"
    ) -> None:
        self.parameters, self._axis, self._mode = parameters, axis, mode
        mesh = next(iter(parameters.values())).mesh
        _check(parameters, mesh, axis)
        by_format = sorted(parameters.values(), key=lambda p: p.tensor.dtype.name)
        self._groups = [list(group) for _, group in groupby(by_format, key=lambda p: p.tensor.dtype)]
        shares = {group[0].tensor.dtype.name: _share(group, mesh, axis) for group in self._groups}
        self.shares = ParameterSet(shares)
        self.optimiser = make(self.shares)

    def step(self) -> None:
        """Sum the gradients, each chip its part; update the parts; put the weights together again."""
        for axis in range(next(iter(self.parameters.values())).mesh.shape.dims()):
            if axis != self._axis:
                synchronize_gradients(self.parameters, axis, mode=self._mode)
        for group, share in zip(self._groups, self.shares.values(), strict=True):
            gradients = [_gradient(parameter) for parameter in group]
            joined = join_tensors(tensors=gradients, rows=share.shape[1])
            share.grad = reduce_scatter(joined, 1, cluster_axis=self._axis, mode=self._mode)
            del gradients, joined
        self.optimiser.step()
        self.shares.zero_grad()
        for group, share in zip(self._groups, self.shares.values(), strict=True):
            row = all_gather(share.tensor, 1, cluster_axis=self._axis, mode=self._mode)
            shapes = tuple(tuple(p.tensor.shape) for p in group)
            part_tensors(joined=row, shapes=shapes, out=[p.tensor for p in group])

    def set_lr(self, lr: float) -> None:
        """Another learning rate from the next step (or replay) on."""
        self.optimiser.set_lr(lr)


def _gradient(parameter: Parameter) -> Tensor:
    if parameter.grad is None:
        raise MeshError(
            f"{parameter!r} has no gradient",
            expected="a gradient for every parameter of a Zero optimiser",
            fix="Leave parameters out that the loss does not depend on.",
        )
    return parameter.grad


def _check(parameters: ParameterSet, mesh: MeshDevice, axis: int) -> None:
    for name, parameter in parameters.items():
        if parameter.cut[axis] is not None:
            raise MeshError(
                f"parameter {name!r} is cut along mesh axis {axis}",
                expected="parameters that are replicated along the data-parallel axis",
                fix="Choose the axis that the batch is cut along.",
            )
        if sum(dim is not None for dim in parameter.cut) > 1:
            raise MeshError(
                f"parameter {name!r} is cut along several mesh axes: {parameter.cut}",
                expected="one tensor-parallel axis at most",
                fix="Use a mesh of two axes.",
            )


def _share(group: list[Parameter], mesh: MeshDevice, axis: int) -> Parameter:
    """The group's weights as [model parts, rows, 32], rows cut over the axis, model parts over the other."""
    other = next((i for p in group for i, dim in enumerate(p.cut) if dim is not None), None)
    ways = 1 if other is None else mesh.shape[other]
    rows = row_count([tuple(p.tensor.shape) for p in group], mesh.shape[axis])
    exact = [p.take_exact() for p in group]
    parts = [
        flat_rows([_local(v, p, other, way, ways) for v, p in zip(exact, group, strict=True)], rows, 0)
        for way in range(ways)
    ]
    dims: dict[int | None, int] = {axis: 1, other: 0}
    cut = tuple(dims.get(i) for i in range(mesh.shape.dims()))
    dtype: DataType = group[0].tensor.dtype
    return Parameter(torch.cat(parts), mesh, cut, dtype)


def _local(values: torch.Tensor, parameter: Parameter, axis: int | None, way: int, ways: int) -> torch.Tensor:
    """What the chips at one place of an axis hold of a parameter."""
    dim = None if axis is None else parameter.cut[axis]
    return values if dim is None else values.chunk(ways, dim)[way]
