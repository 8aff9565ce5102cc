"""Optimisers whose whole update runs on the mesh, so that a training step can be captured as a trace.

The step count and the learning rate are tensors on the mesh: a replayed trace counts on, and `set_lr` changes the rate
between replays. With bfloat16 parameters a float32 master copy is kept and rounded once per step.
"""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import float32
from ttmesh.base.errors import MeshError
from ttmesh.nn.autograd.local_ops import local, same_as
from ttmesh.nn.parameters import Parameter, ParameterSet, collect, place, whole
from ttmesh.nn.weights.whole_tensors import Saved, refill
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import copy_host_to_device_tensor, from_torch


def _ticked(step: torch.Tensor) -> torch.Tensor:
    """One step later."""
    return step + 1


_tick = local("optimiser_step", _ticked, same_as(0), outputs=("out",))


def _number(values: torch.Tensor) -> float:
    """The one value that all lanes share; torch's fused steps take numbers, not tensors."""
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
    """One step of SGD with momentum and weight decay, as torch.optim.SGD takes it."""
    direction = grad.float()
    if decay:
        direction = torch.add(direction, master, alpha=decay)
    if momentum:
        velocity = torch.add(direction, velocity, alpha=momentum)
        direction = velocity
    updated = torch.sub(master, direction, alpha=_number(lr))
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
    """One step of AdamW, as torch.optim.AdamW takes it; `step` counts from 1."""
    rate, count = _number(lr), _number(step)
    gradient = grad.float()
    mean = torch.lerp(mean, gradient, 1 - beta1)
    square = torch.addcmul(square * beta2, gradient, gradient, value=1 - beta2)
    unbiased = square.sqrt().div_((1 - beta2**count) ** 0.5).add_(epsilon)
    updated = torch.addcdiv(master * (1 - rate * decay), mean, unbiased, value=-rate / (1 - beta1**count))
    return updated, updated, mean, square


_sgd = local("sgd", _sgd_lane, same_as(0, 1, 3), outputs=("out_weight", "out_master", "out_velocity"))
_adamw = local(
    "adamw", _adamw_lane, same_as(0, 1, 3, 4), outputs=("out_weight", "out_master", "out_mean", "out_square")
)


def _check_rate(lr: float) -> None:
    if not 0 <= lr < float("inf"):
        raise MeshError(f"a learning rate of {lr}", expected="0 or more", fix="Pass a positive learning rate.")


class Optimiser:
    """What optimisers share: master copies, the step count, the learning rate."""

    STATES: tuple[str, ...] = ()

    def __init__(self, parameters: ParameterSet, lr: float) -> None:
        _check_rate(lr)
        self.parameters = parameters
        self._mesh = mesh = next(iter(parameters.values())).mesh
        self.lr = place(torch.full((1, 1), lr), mesh, whole(mesh), float32)
        self.step_count = place(torch.zeros(1, 1), mesh, whole(mesh), float32)
        self.states: dict[str, dict[str, Tensor]] = {name: self._fresh(p) for name, p in parameters.items()}

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
        """Another learning rate from the next step (or replay) on."""
        _check_rate(lr)
        host = from_torch(torch.full((1, 1), lr), dtype=float32, layout=self.lr.layout)
        assert host is not None, "only None gives None"
        copy_host_to_device_tensor(host, self.lr)

    def saved(self) -> dict[str, torch.Tensor]:
        """Parameters, states, step count and learning rate as whole tensors."""
        tensors = {"step": collect(self.step_count, whole(self._mesh)), "lr": collect(self.lr, whole(self._mesh))}
        for name, parameter in self.parameters.items():
            tensors[f"parameter.{name}"] = parameter.to_torch()
            for state, tensor in self.states[name].items():
                if tensor is not parameter.tensor:
                    tensors[f"state.{state}.{name}"] = collect(tensor, parameter.cut)
        return tensors

    def saved_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names and shapes of what `saved` gives."""
        shapes: dict[str, tuple[int, ...]] = {"step": (1, 1), "lr": (1, 1)}
        for name, parameter in self.parameters.items():
            states = [state for state, tensor in self.states[name].items() if tensor is not parameter.tensor]
            shapes |= dict.fromkeys([f"parameter.{name}", *(f"state.{s}.{name}" for s in states)], parameter.shape)
        return shapes

    def restore(self, saved: Saved) -> None:
        """Take up what `saved` gave, on this mesh or another."""
        for name, parameter in self.parameters.items():
            wanted = {f"parameter.{name}": parameter.tensor}
            wanted |= {f"state.{state}.{name}": tensor for state, tensor in self.states[name].items()}
            for place_, tensor in wanted.items():
                if place_.startswith("parameter.") or tensor is not parameter.tensor:
                    refill(tensor, saved.take(place_, parameter.shape), self._mesh, parameter.cut)
        self.restore_counts(saved)

    def restore_counts(self, saved: Saved) -> None:
        """The step count and the learning rate alone."""
        for name, tensor in (("step", self.step_count), ("lr", self.lr)):
            refill(tensor, saved.take(name, (1, 1)), self._mesh, whole(self._mesh))

    def _fresh(self, parameter: Parameter) -> dict[str, Tensor]:
        mesh, cut = parameter.mesh, parameter.cut
        wide = parameter.tensor.dtype is not float32
        states = {"master": place(parameter.take_exact(), mesh, cut, float32) if wide else parameter.tensor}
        for name in self.STATES:
            states[name] = place(torch.zeros(parameter.shape), mesh, cut, float32)
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
