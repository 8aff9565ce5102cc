"""Optimiser state cut over the data-parallel axis (ZeRO stage 1): each chip keeps, and updates, its part of the weights.

    optimiser = Zero(parameters, lambda parts: AdamW(parts, 1e-3), axis=0, max_norm=1.0)
    ...
    optimiser.step()  # gradients are reduce-scattered, clipped, parts updated, weights gathered

It takes the place of `synchronize_gradients` over that axis, and of `clip_gradients`; gradients of parameters that are
replicated along other axes are summed there first. Checkpoints are those of the optimiser that is not cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives.reduce_gather import all_gather, reduce_scatter
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.autograd.row_packing import flat_rows, join_tensors, part_tensors, row_count
from ttmesh.nn.optimisers import Optimiser
from ttmesh.nn.parameters import Parameter, ParameterSet, collect
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.weights.whole_tensors import Saved, refill
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class ShardGroup:
    """Parameters of one format, all cut along `other` or all whole there: end to end as [model parts, rows, 32]."""

    parameters: dict[str, Parameter]
    other: int | None  # the mesh axis that cuts the parameters
    ways: int
    rows: int

    def joined(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Whole parameters (or states of theirs) as rows."""
        parts = []
        for way in range(self.ways):
            local = [
                value if self.other is None else value.chunk(self.ways, _dim(p, self.other))[way]
                for value, p in zip(values, self.parameters.values(), strict=True)
            ]
            parts.append(flat_rows(local, self.rows, 0))
        return torch.cat(parts)

    def parted(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The whole parameters (or states) from their rows."""
        flat = rows.flatten(1)
        found, start = [], 0
        for parameter in self.parameters.values():
            shape = tuple(parameter.tensor.shape)
            pieces = [part.reshape(shape) for part in flat[:, start : start + prod(shape)]]
            found.append(pieces[0] if self.other is None else torch.cat(pieces, _dim(parameter, self.other)))
            start += prod(shape)
        return found


class Zero:
    """An optimiser on parts: `make` gets parameters that are each chip's share of the weights."""

    def __init__(
        self,
        parameters: ParameterSet,
        make: Callable[[ParameterSet], Optimiser],
        *,
        axis: int,
        mode: str = "fabric",
        max_norm: float | None = None,
    ) -> None:
        self.parameters, self._axis, self._mode, self._max_norm = parameters, axis, mode, max_norm
        self._mesh = next(iter(parameters.values())).mesh
        _check(parameters, axis)
        self._groups = _grouped(parameters, self._mesh, axis)
        self.shares = ParameterSet({name: _share(group, self._mesh, axis) for name, group in self._groups.items()})
        self.optimiser = make(self.shares)

    def step(self) -> None:
        """Sum the gradients, each chip its part; clip; update the parts; put the weights together again."""
        for axis in range(self._mesh.shape.dims()):
            if axis != self._axis:
                synchronize_gradients(self.parameters, axis, mode=self._mode)
        for name, group in self._groups.items():
            gradients = [_gradient(parameter) for parameter in group.parameters.values()]
            joined = join_tensors(tensors=gradients, rows=group.rows)
            self.shares[name].grad = reduce_scatter(joined, 1, cluster_axis=self._axis, mode=self._mode)
            del gradients, joined
        if self._max_norm is not None:
            clip_gradients(self.shares, self._max_norm, mode=self._mode)
        self.optimiser.step()
        self.shares.zero_grad()
        for name, group in self._groups.items():
            row = all_gather(self.shares[name].tensor, 1, cluster_axis=self._axis, mode=self._mode)
            tensors = [p.tensor for p in group.parameters.values()]
            part_tensors(joined=row, shapes=tuple(tuple(t.shape) for t in tensors), out=tensors)

    def set_lr(self, lr: float) -> None:
        """Another learning rate from the next step (or replay) on."""
        self.optimiser.set_lr(lr)

    def saved(self) -> dict[str, torch.Tensor]:
        """Whole tensors, named as those of an optimiser that is not cut."""
        cut = self.optimiser.saved()
        tensors = {"step": cut["step"], "lr": cut["lr"]}
        tensors |= {f"parameter.{name}": parameter.to_torch() for name, parameter in self.parameters.items()}
        for share, group in self._groups.items():
            for state, tensor in self.optimiser.states[share].items():
                if tensor is not self.shares[share].tensor:
                    whole = group.parted(collect(tensor, self.shares[share].cut))
                    tensors |= dict(zip((f"state.{state}.{name}" for name in group.parameters), whole, strict=True))
        return tensors

    def saved_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what `saved` gives."""
        shapes: dict[str, tuple[int, ...]] = {"step": (1, 1), "lr": (1, 1)}
        for share, group in self._groups.items():
            own = self.shares[share].tensor
            states = [state for state, tensor in self.optimiser.states[share].items() if tensor is not own]
            for name, parameter in group.parameters.items():
                shapes |= dict.fromkeys([f"parameter.{name}", *(f"state.{s}.{name}" for s in states)], parameter.shape)
        return shapes

    def restore(self, saved: Saved) -> None:
        """Take up what `saved` gave, here or by an optimiser that is not cut, on this mesh or another."""
        for share, group in self._groups.items():
            target = self.shares[share]
            for name, parameter in group.parameters.items():
                values = saved.take(f"parameter.{name}", parameter.shape)
                refill(parameter.tensor, values, self._mesh, parameter.cut)
            filled = {"parameter": target.tensor}
            states = self.optimiser.states[share].items()
            filled |= {f"state.{state}": tensor for state, tensor in states if tensor is not target.tensor}
            for kind, tensor in filled.items():
                parts = [saved.take(f"{kind}.{name}", p.shape) for name, p in group.parameters.items()]
                refill(tensor, group.joined(parts), self._mesh, target.cut)
        self.optimiser.restore_counts(saved)


def _grouped(parameters: ParameterSet, mesh: MeshDevice, axis: int) -> dict[str, ShardGroup]:
    """Groups by format and by the axis that cuts: a norm counts parameters once that are whole along an axis."""
    found: dict[str, tuple[int | None, dict[str, Parameter]]] = {}
    for name, parameter in parameters.items():
        other = next((i for i, dim in enumerate(parameter.cut) if dim is not None and mesh.shape[i] > 1), None)
        key = f"{parameter.tensor.dtype.name} {'whole' if other is None else f'cut along {other}'}"
        found.setdefault(key, (other, {}))[1][name] = parameter
    groups = {}
    for key, (other, members) in found.items():
        shapes = [tuple(p.tensor.shape) for p in members.values()]
        ways = 1 if other is None else mesh.shape[other]
        groups[key] = ShardGroup(members, other, ways, row_count(shapes, mesh.shape[axis]))
    return groups


def _share(group: ShardGroup, mesh: MeshDevice, axis: int) -> Parameter:
    """The group's weights, rows cut over the axis, model parts over the other."""
    dims: dict[int | None, int] = {group.other: 0, axis: 1}
    cut = tuple(dims.get(i) for i in range(mesh.shape.dims()))
    members = list(group.parameters.values())
    return Parameter(group.joined([p.take_exact() for p in members]), mesh, cut, members[0].tensor.dtype)


def _dim(parameter: Parameter, axis: int) -> int:
    dim = parameter.cut[axis]
    assert dim is not None, "groups are made by the axis that cuts"
    return dim


def _gradient(parameter: Parameter) -> Tensor:
    if parameter.grad is None:
        raise MeshError(
            f"{parameter!r} has no gradient",
            expected="a gradient for every parameter of a Zero optimiser",
            fix="Leave parameters out that the loss does not depend on.",
        )
    return parameter.grad


def _check(parameters: ParameterSet, axis: int) -> None:
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
