"""Pipeline parallelism: a model divided into stages, each on its own mesh, trained on micro-batches.

    stages = mesh.create_submeshes(MeshShape(2, 2))
    model = Staged(stages, [embedding, block, block, head], cross_entropy, micro_batches=4, batch_axis=0)
    losses = model.differentiate(tokens, targets)

Layers are given as functions of the mesh they are built on. Inside a stage they may shard the batch and the weights as on
any mesh. Each chip sends its activations to the chip at its coordinate in the next stage; gradients are sent back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ttmesh.base.dtypes import DataType, bfloat16
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.batches import place_rows
from ttmesh.nn.layers import Layer
from ttmesh.nn.losses import loss_value
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.staging.stage_links import StageLink
from ttmesh.nn.staging.stage_schedules import Action, make_plan, order_actions
from ttmesh.nn.synchronise import scale_gradients, square_norm, synchronize_gradients
from ttmesh.nn.tape import Tape, tape
from ttmesh.ops.elementwise.binary import binary
from ttmesh.tensor.tensor import Tensor

Loss = Callable[..., Tensor]  # (outputs, targets, weights or None) -> a number per chip
MakeLayer = Callable[[MeshDevice], Callable[[Tensor], Tensor]]


@dataclass
class Pass:
    """One micro-batch in one stage, kept from its forward to its backward pass."""

    record: Tape
    given: Tensor
    made: Tensor


@dataclass
class PipelineStage:
    """Neighbouring layers on one mesh. Parameter names begin with the layer's position in the model."""

    mesh: MeshDevice
    layers: list[Callable[[Tensor], Tensor]]
    parameters: ParameterSet
    passes: dict[int, Pass] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        """Run all layers of the stage."""
        for layer in self.layers:
            x = layer(x)
        return x


class Staged:
    """Layers divided over meshes of one shape, followed by a loss."""

    def __init__(
        self,
        meshes: Sequence[MeshDevice],
        layers: Sequence[MakeLayer],
        loss: Loss,
        *,
        micro_batches: int,
        schedule: str = "1f1b",
        counts: Sequence[int] | None = None,
        batch_axis: int | None = None,
        dtype: DataType = bfloat16,
    ) -> None:
        """Args:

        counts: how many layers each stage has; by default as equal as possible.
        batch_axis: the axis of a stage's mesh that shards the micro-batches.
        dtype: the dtype of floating-point inputs on the mesh.
        """
        _check_meshes(meshes)
        shares = _divide_layers(len(layers), len(meshes)) if counts is None else list(counts)
        _check_counts(shares, len(layers), len(meshes))
        self._order = order_actions(make_plan(schedule, len(meshes), micro_batches))
        self._loss, self._micro_batches, self._batch_axis, self._dtype = loss, micro_batches, batch_axis, dtype
        self.stages: list[PipelineStage] = []
        start = 0
        for mesh, count in zip(meshes, shares, strict=True):
            made = [make(mesh) for make in layers[start : start + count]]
            named: dict[str, Parameter] = {}
            for position, layer in enumerate(made, start):
                named |= layer.named_parameters(f"{position}.") if isinstance(layer, Layer) else {}
            if not named:
                raise MeshError(
                    f"stage {len(self.stages)} has no parameters",
                    expected="a layer with parameters in each stage",
                    fix="Use fewer stages, or change counts.",
                )
            self.stages.append(PipelineStage(mesh, made, ParameterSet(named)))
            start += count
        pairs = list(pairwise(meshes))
        self._forward_links = [StageLink(a, b) for a, b in pairs]
        self._backward_links = [StageLink(b, a) for a, b in pairs]

    @property
    def parts(self) -> int:
        """The number that must divide the rows of a batch; see `pad_batch`."""
        mesh = self.stages[0].mesh
        return self._micro_batches * (1 if self._batch_axis is None else mesh.shape[self._batch_axis])

    def differentiate(
        self, inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> list[Tensor]:
        """Run forward and backward passes, adding to the parameters' gradients; returns the micro-batches' losses.

        Rows are dim 0 of all tensors. Gradients are those of the mean over the full batch.
        """
        self._check_rows(inputs, targets, weights)
        given = list(inputs.chunk(self._micro_batches))
        wanted = list(targets.chunk(self._micro_batches))
        row_weights = [None] * self._micro_batches if weights is None else list(weights.chunk(self._micro_batches))
        losses: list[Tensor] = []
        for action in self._order:
            stage, micro = self.stages[action.stage], action.micro
            if not action.forward:
                self._run_backward(action)
                continue
            if action.stage == 0:
                x = self._place_rows(given[micro], stage)
            else:
                x = self._forward_links[action.stage - 1].receive()
            rest = (wanted[micro], row_weights[micro]) if stage is self.stages[-1] else None
            self._run_forward(action, x, rest, losses)
        return losses

    def predict(self, inputs: torch.Tensor) -> list[Tensor]:
        """The last stage's output for each micro-batch, without gradients."""
        self._check_rows(inputs)
        results = []
        for rows in inputs.chunk(self._micro_batches):
            x = self._place_rows(rows, self.stages[0])
            for stage, link in zip(self.stages, [*self._forward_links, None], strict=True):
                x = stage(x)
                if link is not None:
                    link.send(x)
                    x = link.receive()
            results.append(x)
        return results

    def synchronize_gradients(self, *, mode: str = "fabric") -> None:
        """Sum gradients inside every stage; see `nn/synchronise.py`."""
        for stage in self.stages:
            synchronize_gradients(stage.parameters, mode=mode)

    def clip_gradients(self, max_norm: float, *, mode: str = "fabric") -> None:
        """Scale all gradients so that their norm over all stages is at most `max_norm`."""
        total: Tensor | None = None
        for place, stage in enumerate(self.stages):
            own = square_norm(stage.parameters, mode=mode)
            total = binary["add"](self._forward_links[place - 1].receive(), own) if place else own
            if place < len(self._forward_links):
                self._forward_links[place].send(total)
        assert total is not None, "there is a stage"
        for place in reversed(range(len(self.stages))):
            if place < len(self._backward_links):
                total = self._backward_links[place].receive()
            if place:
                self._backward_links[place - 1].send(total)
            scale_gradients(self.stages[place].parameters, total, max_norm)

    def zero_grad(self) -> None:
        """Drop all gradients, which frees their memory."""
        for stage in self.stages:
            stage.parameters.zero_grad()

    def mean_loss(self, losses: Sequence[Tensor]) -> float:
        """The loss of the full batch."""
        return sum(loss_value(loss) for loss in losses) / len(losses)

    def _run_forward(
        self, action: Action, x: Tensor, rest: tuple[torch.Tensor, torch.Tensor | None] | None, losses: list[Tensor]
    ) -> None:
        stage = self.stages[action.stage]
        with tape() as record:
            made = stage(x)
            if rest is not None:
                targets, weights = rest
                arguments = [
                    self._place_rows(targets, stage),
                    None if weights is None else self._place_rows(weights, stage),
                ]
                made = self._loss(made, *arguments)
        if rest is None:
            self._forward_links[action.stage].send(made)
        else:
            losses.append(made)
        stage.passes[action.micro] = Pass(record, x, made)

    def _run_backward(self, action: Action) -> None:
        stage = self.stages[action.stage]
        done = stage.passes.pop(action.micro)
        seed: float | Tensor = 1.0 / (stage.mesh.get_num_devices() * self._micro_batches)
        if action.stage < len(self.stages) - 1:
            seed = self._backward_links[action.stage].receive()
        names = list(stage.parameters)
        leaves = [stage.parameters[name].tensor for name in names]
        found = done.record.backward(done.made, [*leaves, done.given] if action.stage else leaves, seed)
        if action.stage:
            grad = found.pop()
            if grad is None:
                raise MeshError(
                    f"stage {action.stage} does not use what stage {action.stage - 1} sends",
                    expected="a stage whose result depends on its input",
                    fix="Use the input in that stage, or drop the stages before it.",
                )
            self._backward_links[action.stage - 1].send(grad)
        for name, gradient in zip(names, found, strict=True):
            stage.parameters[name].accumulate(gradient)

    def _place_rows(self, rows: torch.Tensor, stage: PipelineStage) -> Tensor:
        dtype = self._dtype if rows.dtype.is_floating_point and rows.dim() > 1 else None
        return place_rows(rows.contiguous(), stage.mesh, self._batch_axis, dtype=dtype)

    def _check_rows(self, *tensors: torch.Tensor | None) -> None:
        counts = [tensor.shape[0] for tensor in tensors if tensor is not None]
        if len(set(counts)) > 1 or counts[0] % self.parts or not counts[0]:
            raise ShapeError(
                f"a batch of {' and '.join(str(count) for count in counts)} rows in {self._micro_batches} micro-batches",
                expected=f"equally many rows, a multiple of {self.parts} (micro-batches times chips along the batch axis)",
                fix=f"Pad it with pad_batch(..., parts={self.parts}), or change micro_batches.",
            )


def _check_meshes(meshes: Sequence[MeshDevice]) -> None:
    if not meshes:
        raise MeshError("no meshes to put stages on", expected="one mesh per stage", fix="Use create_submeshes().")
    shapes = [tuple(mesh.shape) for mesh in meshes]
    if len(set(shapes)) > 1:
        raise ShapeError(
            f"stages on meshes of shapes {[list(shape) for shape in shapes]}",
            expected="meshes of one shape: each chip sends to the chip at its coordinate in the next stage",
            fix="Divide the mesh with create_submeshes().",
        )
    chips = [chip for mesh in meshes for chip in mesh.get_device_ids()]
    shared = sorted({chip for chip in chips if chips.count(chip) > 1})
    if shared:
        raise MeshError(
            f"devices {shared} are in several stages",
            expected="stages on different chips",
            fix="Divide the mesh with create_submeshes().",
        )


def _check_counts(counts: Sequence[int], layers: int, stages: int) -> None:
    if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ShapeError(
            f"{layers} layers in {stages} stages of {list(counts)} layers",
            expected="one layer or more in each stage, all layers together",
            fix=f"Use fewer stages, or pass counts that add up to {layers}.",
        )


def _divide_layers(layers: int, stages: int) -> list[int]:
    """How many layers each stage gets; the first stages get one more where they do not divide evenly."""
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]
