"""Optimisers whose whole update runs on the mesh, so that a training step can be captured as a trace.

The step count and the learning rate are tensors on the mesh: a replayed trace keeps counting, and `set_lr` changes the rate
between replays. With bfloat16 parameters a float32 master copy is kept and rounded once per step.
"""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import float32
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.local_ops import define_local_op, keep_specs
from ttmesh.nn.parameters import Parameter, ParameterSet, collect, place, replicate
from ttmesh.nn.weights.saved_state import SavedState, refill
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor, from_torch


def _count_step(step: torch.Tensor) -> torch.Tensor:
    """The step count plus one."""
    return step + 1


_tick = define_local_op("optimiser_step", _count_step, keep_specs(0), outputs=("out",))


def _read_number(values: torch.Tensor) -> float:
    """The value that all lanes share, as torch's fused optimiser steps take numbers, not tensors.

    Not of a GPU, where the host would wait for it: a CUDA graph cannot hold that.
    """
    assert values.numel() == 1, "step count and learning rate are replicated"
    return 1.0 if values.is_meta else float(values)


def _sgd_lane(
    weight: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    velocity: torch.Tensor,
    lr: torch.Tensor,
    momentum: float,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of SGD with momentum and weight decay, as in torch.optim.SGD."""
    direction = grad.float()
    if decay:
        direction = torch.add(direction, master, alpha=decay)
    if momentum:
        velocity = torch.add(direction, velocity, alpha=momentum)
        direction = velocity
    if lr.is_cuda:
        updated = torch.addcmul(master, direction, lr.reshape(()), value=-1)
    else:
        updated = torch.sub(master, direction, alpha=_read_number(lr))
    return updated, updated, velocity


def _adamw_lane(
    weight: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    step: torch.Tensor,
    lr: torch.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    decay: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of AdamW, as in torch.optim.AdamW; `step` counts from 1."""
    rate, count = (_read_number(x) if not x.is_cuda else x.double().reshape(()) for x in (lr, step))
    gradient = grad.float()
    mean = torch.lerp(mean, gradient, 1 - beta1)
    square = torch.addcmul(square * beta2, gradient, gradient, value=1 - beta2)
    unbiased = square.sqrt().div_((1 - beta2**count) ** 0.5).add_(epsilon)
    kept, factor = master * (1 - rate * decay), -rate / (1 - beta1**count)
    if isinstance(factor, torch.Tensor):
        updated = torch.addcmul(kept, mean / unbiased, factor.float())
    else:
        updated = torch.addcdiv(kept, mean, unbiased, value=factor)
    return updated, updated, mean, square


_sgd = define_local_op("sgd", _sgd_lane, keep_specs(0, 1, 3), outputs=("out_weight", "out_master", "out_velocity"))
_adamw = define_local_op(
    "adamw", _adamw_lane, keep_specs(0, 1, 3, 4), outputs=("out_weight", "out_master", "out_mean", "out_square")
)


def _check_rate(lr: float) -> None:
    if not 0 <= lr < float("inf"):
        raise MeshError(
            f"a learning rate of {lr}", expected="0 or more", fix="Pass a finite rate that is not negative."
        )


class Optimiser:
    """Base class of optimisers: master copies, step count and learning rate."""

    STATES: tuple[str, ...] = ()

    def __init__(self, parameters: ParameterSet, lr: float) -> None:
        _check_rate(lr)
        self.parameters = parameters
        self._mesh = mesh = next(iter(parameters.values())).mesh
        self.lr = place(torch.full((1, 1), lr, dtype=torch.float32, device="cpu"), mesh, replicate(mesh), float32)
        self.step_count = place(torch.zeros(1, 1, dtype=torch.float32, device="cpu"), mesh, replicate(mesh), float32)
        self.states: dict[str, dict[str, Tensor]] = {name: self._make_states(p) for name, p in parameters.items()}

    def step(self) -> None:
        """Update every parameter that has a gradient, in place."""
        if all(parameter.grad is None for parameter in self.parameters.values()):
            raise MeshError(
                "no parameter has a gradient",
                expected="gradients of the same parameters",
                fix="Call parameters.backward(record, loss) before, and zero_grad() after the step.",
            )
        _tick(step=self.step_count, out=self.step_count)
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self._update(parameter, self.states[name])

    def set_lr(self, lr: float) -> None:
        """Change the learning rate from the next step (or replay) on."""
        _check_rate(lr)
        host = from_torch(
            torch.full((1, 1), lr, dtype=torch.float32, device="cpu"), dtype=float32, layout=self.lr.layout
        )
        assert host is not None, "only None gives None"
        copy_host_to_device_tensor(host, self.lr)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Parameters, states, step count and learning rate as full tensors."""
        tensors = {
            "step": collect(self.step_count, replicate(self._mesh)),
            "lr": collect(self.lr, replicate(self._mesh)),
        }
        for name, parameter in self.parameters.items():
            tensors[f"parameter.{name}"] = parameter.to_torch()
            for state, tensor in self.states[name].items():
                if tensor is not parameter.tensor:
                    tensors[f"state.{state}.{name}"] = collect(tensor, parameter.shard_dims)
        return tensors

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what `state_dict` gives."""
        shapes: dict[str, tuple[int, ...]] = {"step": (1, 1), "lr": (1, 1)}
        for name, parameter in self.parameters.items():
            states = [state for state, tensor in self.states[name].items() if tensor is not parameter.tensor]
            shapes |= dict.fromkeys([f"parameter.{name}", *(f"state.{s}.{name}" for s in states)], parameter.shape)
        return shapes

    def restore(self, saved: SavedState) -> None:
        """Load what `state_dict` gave, on this mesh or another."""
        for name, parameter in self.parameters.items():
            wanted = {f"parameter.{name}": parameter.tensor}
            wanted |= {f"state.{state}.{name}": tensor for state, tensor in self.states[name].items()}
            for key, tensor in wanted.items():
                if key.startswith("parameter.") or tensor is not parameter.tensor:
                    refill(tensor, saved.take(key, parameter.shape), self._mesh, parameter.shard_dims)
        self.restore_counts(saved)

    def restore_counts(self, saved: SavedState) -> None:
        """Load only the step count and the learning rate."""
        for name, tensor in (("step", self.step_count), ("lr", self.lr)):
            refill(tensor, saved.take(name, (1, 1)), self._mesh, replicate(self._mesh))

    def _make_states(self, parameter: Parameter) -> dict[str, Tensor]:
        mesh, dims = parameter.mesh, parameter.shard_dims
        rounded = parameter.tensor.dtype is not float32
        states = {"master": place(parameter.take_exact(), mesh, dims, float32) if rounded else parameter.tensor}
        for name in self.STATES:
            states[name] = place(torch.zeros(parameter.shape, dtype=torch.float32, device="cpu"), mesh, dims, float32)
        return states

    def _update(self, parameter: Parameter, states: dict[str, Tensor]) -> None:
        raise NotImplementedError


class SGD(Optimiser):
    """Stochastic gradient descent with momentum and weight decay."""

    STATES = ("velocity",)

    def __init__(
        self, parameters: ParameterSet, lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr)
        self._momentum, self._decay = momentum, weight_decay

    def _update(self, parameter: Parameter, states: dict[str, Tensor]) -> None:
        _sgd(
            weight=parameter.tensor, master=states["master"], grad=parameter.grad, velocity=states["velocity"], lr=self.lr,
            momentum=self._momentum, decay=self._decay, out_weight=parameter.tensor, out_master=states["master"],
            out_velocity=states["velocity"],
        )  # fmt: skip


class AdamW(Optimiser):
    """Adam with decoupled weight decay."""

    STATES = ("mean", "square")

    def __init__(
        self,
        parameters: ParameterSet,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr)
        self._betas, self._eps, self._decay = betas, eps, weight_decay

    def _update(self, parameter: Parameter, states: dict[str, Tensor]) -> None:
        _adamw(
            weight=parameter.tensor, master=states["master"], grad=parameter.grad, mean=states["mean"],
            square=states["square"], step=self.step_count, lr=self.lr, beta1=self._betas[0], beta2=self._betas[1],
            epsilon=self._eps, decay=self._decay, out_weight=parameter.tensor, out_master=states["master"],
            out_mean=states["mean"], out_square=states["square"],
        )  # fmt: skip
