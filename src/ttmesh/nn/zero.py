"""Optimiser state sharded over the data-parallel axis (ZeRO stage 1): each chip keeps and updates a shard of the weights.

    optimiser = Zero(parameters, lambda shards: AdamW(shards, 1e-3), axis=0, max_norm=1.0)
    ...
    optimiser.step()  # reduce-scatters and clips gradients, updates the shards, gathers the weights

It replaces `synchronize_gradients` over that axis and `clip_gradients`; gradients of parameters that are
replicated along other axes are summed there first. Checkpoints are the same as without Zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ttmesh.base.errors import MeshError
from ttmesh.ccl.collectives.reduce_gather import all_gather, reduce_scatter
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.autograd.row_packing import count_rows, flatten_to_rows, pack_tensors, unpack_tensors
from ttmesh.nn.optimisers import Optimiser
from ttmesh.nn.parameters import Parameter, ParameterSet, collect
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.weights.saved_state import SavedState, refill
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class ShardGroup:
    """Parameters of one dtype that `other` shards, or that are replicated; packed as [model shards, rows, 32]."""

    parameters: dict[str, Parameter]
    other: int | None  # the mesh axis that shards the parameters (tensor parallel)
    model_shards: int
    rows: int

    def pack(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Full parameters (or optimiser states) as packed rows."""
        shards = []
        for i in range(self.model_shards):
            local = [
                value if self.other is None else value.chunk(self.model_shards, _find_dim(p, self.other))[i]
                for value, p in zip(values, self.parameters.values(), strict=True)
            ]
            shards.append(flatten_to_rows(local, self.rows, 0))
        return torch.cat(shards)

    def unpack(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """The full parameters (or optimiser states) from their packed rows."""
        flat = rows.flatten(1)
        found, start = [], 0
        for parameter in self.parameters.values():
            shape = tuple(parameter.tensor.shape)
            pieces = [shard.reshape(shape) for shard in flat[:, start : start + prod(shape)]]
            found.append(pieces[0] if self.other is None else torch.cat(pieces, _find_dim(parameter, self.other)))
            start += prod(shape)
        return found


class Zero:
    """An optimiser of sharded weights: `make` gets parameters of which each chip holds one shard."""

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
        self._groups = _make_groups(parameters, self._mesh, axis)
        self.shares = ParameterSet({name: _make_share(group, self._mesh, axis) for name, group in self._groups.items()})
        self.optimiser = make(self.shares)

    def step(self) -> None:
        """Reduce-scatter and clip the gradients, update each chip's shard, gather the weights."""
        for axis in range(self._mesh.shape.dims()):
            if axis != self._axis:
                synchronize_gradients(self.parameters, axis, mode=self._mode)
        for name, group in self._groups.items():
            gradients = [_require_gradient(parameter) for parameter in group.parameters.values()]
            packed = pack_tensors(tensors=gradients, rows=group.rows)
            self.shares[name].grad = reduce_scatter(packed, 1, cluster_axis=self._axis, mode=self._mode)
            del gradients, packed
        if self._max_norm is not None:
            clip_gradients(self.shares, self._max_norm, mode=self._mode)
        self.optimiser.step()
        self.shares.zero_grad()
        for name, group in self._groups.items():
            row = all_gather(self.shares[name].tensor, 1, cluster_axis=self._axis, mode=self._mode)
            tensors = [p.tensor for p in group.parameters.values()]
            unpack_tensors(packed=row, shapes=tuple(tuple(t.shape) for t in tensors), out=tensors)

    def set_lr(self, lr: float) -> None:
        """Change the learning rate from the next step (or replay) on."""
        self.optimiser.set_lr(lr)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Full tensors with the names they have without Zero."""
        inner = self.optimiser.state_dict()
        tensors = {"step": inner["step"], "lr": inner["lr"]}
        tensors |= {f"parameter.{name}": parameter.to_torch() for name, parameter in self.parameters.items()}
        for share, group in self._groups.items():
            for state, tensor in self.optimiser.states[share].items():
                if tensor is not self.shares[share].tensor:
                    full = group.unpack(collect(tensor, self.shares[share].shard_dims))
                    tensors |= dict(zip((f"state.{state}.{name}" for name in group.parameters), full, strict=True))
        return tensors

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what `state_dict` gives."""
        shapes: dict[str, tuple[int, ...]] = {"step": (1, 1), "lr": (1, 1)}
        for share, group in self._groups.items():
            weights = self.shares[share].tensor
            states = [state for state, tensor in self.optimiser.states[share].items() if tensor is not weights]
            for name, parameter in group.parameters.items():
                shapes |= dict.fromkeys([f"parameter.{name}", *(f"state.{s}.{name}" for s in states)], parameter.shape)
        return shapes

    def restore(self, saved: SavedState) -> None:
        """Load what `state_dict` gave, with or without Zero, on this mesh or another."""
        for share, group in self._groups.items():
            target = self.shares[share]
            for name, parameter in group.parameters.items():
                values = saved.take(f"parameter.{name}", parameter.shape)
                refill(parameter.tensor, values, self._mesh, parameter.shard_dims)
            filled = {"parameter": target.tensor}
            states = self.optimiser.states[share].items()
            filled |= {f"state.{state}": tensor for state, tensor in states if tensor is not target.tensor}
            for kind, tensor in filled.items():
                values_of_group = [saved.take(f"{kind}.{name}", p.shape) for name, p in group.parameters.items()]
                refill(tensor, group.pack(values_of_group), self._mesh, target.shard_dims)
        self.optimiser.restore_counts(saved)


def _make_groups(parameters: ParameterSet, mesh: MeshDevice, axis: int) -> dict[str, ShardGroup]:
    """Groups by dtype and sharding axis: a norm must count replicated parameters once and sharded ones with all shards."""
    found: dict[str, tuple[int | None, dict[str, Parameter]]] = {}
    for name, parameter in parameters.items():
        other = next((i for i, dim in enumerate(parameter.shard_dims) if dim is not None and mesh.shape[i] > 1), None)
        key = f"{parameter.tensor.dtype.name} {'replicated' if other is None else f'sharded along {other}'}"
        found.setdefault(key, (other, {}))[1][name] = parameter
    groups = {}
    for key, (other, grouped) in found.items():
        shapes = [tuple(p.tensor.shape) for p in grouped.values()]
        model_shards = 1 if other is None else mesh.shape[other]
        groups[key] = ShardGroup(grouped, other, model_shards, count_rows(shapes, mesh.shape[axis]))
    return groups


def _make_share(group: ShardGroup, mesh: MeshDevice, axis: int) -> Parameter:
    """The group's packed weights as a parameter, rows sharded over `axis`, model shards over `group.other`."""
    dims: dict[int | None, int] = {group.other: 0, axis: 1}
    shard_dims = tuple(dims.get(i) for i in range(mesh.shape.dims()))
    weights = list(group.parameters.values())
    return Parameter(group.pack([p.take_exact() for p in weights]), mesh, shard_dims, weights[0].tensor.dtype)


def _find_dim(parameter: Parameter, axis: int) -> int:
    dim = parameter.shard_dims[axis]
    assert dim is not None, "groups are made by sharding axis"
    return dim


def _require_gradient(parameter: Parameter) -> Tensor:
    if parameter.grad is None:
        raise MeshError(
            f"{parameter!r} has no gradient",
            expected="a gradient for every parameter of a Zero optimiser",
            fix="Leave out parameters that the loss does not depend on.",
        )
    return parameter.grad


def _check(parameters: ParameterSet, axis: int) -> None:
    for name, parameter in parameters.items():
        if parameter.shard_dims[axis] is not None:
            raise MeshError(
                f"parameter {name!r} is sharded along mesh axis {axis}",
                expected="parameters that are replicated along the data-parallel axis",
                fix="Pass the axis along which the batch is sharded.",
            )
        if sum(dim is not None for dim in parameter.shard_dims) > 1:
            raise MeshError(
                f"parameter {name!r} is sharded along several mesh axes: {parameter.shard_dims}",
                expected="one tensor-parallel axis at most",
                fix="Use a mesh of two axes.",
            )
