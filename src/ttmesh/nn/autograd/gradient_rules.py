"""Explicit rules: operations whose gradient is cheaper, or can only be said, by other operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import NotEmulatedError
from ttmesh.ccl.collectives.reduce_gather import all_gather, all_reduce, reduce_scatter
from ttmesh.nn.autograd.local_ops import local, same_as, sum_to, weight_grad
from ttmesh.nn.tape import Node, rule
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.matmul.matmul import matmul
from ttmesh.tensor.tensor import Tensor

Grads = list[Tensor | None]


@rule("add", "subtract")
def _sum(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """The gradient itself, summed over what was broadcast."""
    _no_activations(node)
    signs = (1, -1 if node.name.endswith("subtract") else 1)
    grads: Grads = []
    for tensor, need, sign in zip(node.inputs, needed, signs, strict=False):
        back = _summed(grad, tensor) if need else None
        grads.append(binary["multiply"](back, -1.0) if back is not None and sign < 0 else back)
    return grads


@rule("multiply")
def _times(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """The gradient times the other factor."""
    _no_activations(node)
    if len(node.inputs) == 1:
        factor = next(v for v in node.arguments.values() if isinstance(v, (int, float)) and not isinstance(v, bool))
        return [binary["multiply"](grad, float(factor))]
    a, b = node.inputs
    first = _summed(binary["multiply"](grad, b), a) if needed[0] else None
    second = _summed(binary["multiply"](grad, a), b) if needed[1] else None
    return [first, second]


@rule("matmul", "linear")
def _product(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """dA = dY · Bᵀ, dB = Aᵀ · dY on each chip, and the bias's rows summed."""
    arguments = node.arguments
    if arguments.get("activation") is not None:
        raise NotEmulatedError(
            f"no gradient of {node.name} with a fused activation",
            expected="the activation as an operation of its own",
            fix="Call it after the product.",
        )
    if arguments.get("transpose_a"):
        raise NotEmulatedError(
            "no gradient with transpose_a", expected="a plain first operand", fix="Transpose before."
        )
    a, b = node.inputs[:2]
    turned = bool(arguments.get("transpose_b"))
    grads: Grads = [None] * len(node.inputs)
    if needed[0]:
        grads[0] = matmul(grad, b, transpose_b=not turned)
    if needed[1]:
        if len(b.shape) > 2 and any(extent != 1 for extent in b.shape[:-2]):
            grads[1] = matmul(grad, a, transpose_a=True) if turned else matmul(a, grad, transpose_a=True)
        else:
            flat = weight_grad(x=grad, grad=a) if turned else weight_grad(x=a, grad=grad)
            grads[1] = _summed(flat, b)
    if len(node.inputs) > 2 and needed[2]:
        grads[2] = _summed(grad, node.inputs[2])
    return grads


@rule("all_reduce")
def _all_reduce(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Every chip's input is in every chip's result: the gradients add up."""
    return [all_reduce(grad, cluster_axis=node.arguments["cluster_axis"], **_mode(node))]


@rule("all_gather")
def _all_gather(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """The parts that went to all chips come back summed."""
    axis, dim = node.arguments["cluster_axis"], node.arguments["dim"]
    return [reduce_scatter(grad, dim, cluster_axis=axis, **_mode(node))]


@rule("reduce_scatter")
def _reduce_scatter(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Each chip's input is in every chip's part: the parts are gathered."""
    axis, dim = node.arguments["cluster_axis"], node.arguments["dim"]
    return [all_gather(grad, dim, cluster_axis=axis, **_mode(node))]


def weighted_rows(rows: torch.Tensor, weights: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """[lanes, rows] with each row times its weight; a weight may stand for several neighbouring rows."""
    if weights is None:
        return rows
    each = weights.float().flatten(lane_axes)
    grouped = rows.reshape(*rows.shape[:-1], each.shape[-1], -1) * each.unsqueeze(-1)
    return grouped.flatten(-2)


def _cross_entropy_grad(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, grad: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """(softmax - one hot) · weight / rows, times the gradient of the mean."""
    rows = targets.numel() // max(1, _lanes(targets, lane_axes))
    soft = torch.softmax(logits.float(), -1)
    index = targets.long().reshape(*targets.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    index = index.expand(*soft.shape[:-1], 1)
    soft.scatter_add_(-1, index, soft.new_full((1,), -1.0).expand(index.shape))
    factor = grad.float().reshape(*grad.shape[:lane_axes], 1) / rows
    if weights is not None:
        each = weighted_rows(factor.expand(*factor.shape[:-1], rows), weights, lane_axes)
        return soft * each.reshape(*each.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    return soft * factor.reshape(*factor.shape[:lane_axes], *[1] * (logits.dim() - lane_axes))


cross_entropy_grad = local("cross_entropy_grad", _cross_entropy_grad, same_as(0))


def _lanes(tensor: torch.Tensor, lane_axes: int) -> int:
    count = 1
    for extent in tensor.shape[:lane_axes]:
        count *= extent
    return count


def _summed(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient brought to the shape of what it belongs to."""
    if tuple(grad.shape) == tuple(like.shape):
        return grad
    done: Tensor = sum_to(grad=grad, shape=tuple(like.shape))
    return done


def _mode(node: Node) -> dict[str, Any]:
    return {"mode": node.arguments["mode"]} if node.arguments.get("mode") is not None else {}


def _no_activations(node: Node) -> None:
    names = ("activations", "input_tensor_a_activations", "input_tensor_b_activations")
    if any(node.arguments.get(name) for name in names) or not all(t.dtype in FLOATS for t in node.inputs):
        raise NotEmulatedError(
            f"no gradient of {node.name} with fused activations or integers",
            expected="activations as operations of their own",
            fix="Call them before or after.",
        )


def add_gradients(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two gradients of the same parameter."""
    total: Tensor = binary["add"](a, b)
    return total
