"""Gradient rules written out: operations whose gradient is cheaper as other operations than as torch's vjp."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import FLOATS
from ttmesh.nn.autograd.local_ops import define_local_op, keep_specs, sum_to, weight_grad
from ttmesh.nn.autograd.rule_registry import Node, rule
from ttmesh.ops.elementwise.binary import binary
from ttmesh.ops.matmul.matmul import activations_of, matmul
from ttmesh.tensor.tensor import Tensor

Grads = list[Tensor | None]


@rule("add", "subtract", "add_", "subtract_", reads=False)
def _sum(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads | None:
    """The gradient itself, summed over what was broadcast."""
    if not _is_plain(node):
        return None
    signs = (1, -1 if "subtract" in node.name else 1)
    grads: Grads = []
    for tensor, need, sign in zip(node.inputs, needed, signs, strict=False):
        back = _sum_to(grad, tensor) if need else None
        grads.append(binary["multiply"](back, -1.0) if back is not None and sign < 0 else back)
    return grads


@rule("multiply")
def _multiply(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads | None:
    """The gradient times the other factor."""
    if not _is_plain(node):
        return None
    if len(node.inputs) == 1:
        factor = next(v for v in node.arguments.values() if isinstance(v, (int, float)) and not isinstance(v, bool))
        return [binary["multiply"](grad, float(factor))]
    a, b = node.inputs
    first = _sum_to(binary["multiply"](grad, b), a) if needed[0] else None
    second = _sum_to(binary["multiply"](grad, a), b) if needed[1] else None
    return [first, second]


@rule("move", "reallocate", reads=False)
def _move(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """The gradient itself."""
    return [grad]


@rule("matmul", "linear")
def _matmul(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads | None:
    """dA = dY · Bᵀ, dB = Aᵀ · dY on each chip, and the bias's rows summed; rarer forms are left to torch's vjp."""
    arguments = node.arguments
    a, b = node.inputs[:2]
    fused = activations_of(arguments.get("activation"), arguments.get("program_config"))
    if fused or arguments.get("transpose_a") or len({a.dtype, b.dtype, grad.dtype}) > 1:
        return None
    shared = all(extent == 1 for extent in b.shape[:-2])
    if min(len(a.shape), len(b.shape)) < 2 or not (shared or tuple(a.shape[:-2]) == tuple(b.shape[:-2])):
        return None
    transposed = bool(arguments.get("transpose_b"))
    grads: Grads = [None] * len(node.inputs)
    if needed[0]:
        grads[0] = matmul(grad, b, transpose_b=not transposed)
    if needed[1]:
        x, y = (grad, a) if transposed else (a, grad)
        grads[1] = weight_grad(x=x, grad=y) if shared else matmul(x, y, transpose_a=True)
    if len(node.inputs) > 2 and needed[2]:
        grads[2] = _sum_to(grad, node.inputs[2])
    return grads


def weight_rows(rows: torch.Tensor, weights: torch.Tensor | None, lane_axes: int) -> torch.Tensor:
    """[lanes, rows] with each row times its weight; one weight may cover several neighbouring rows."""
    if weights is None:
        return rows
    each = weights.float().flatten(lane_axes)
    grouped = rows.reshape(*rows.shape[:-1], each.shape[-1], -1) * each.unsqueeze(-1)
    return grouped.flatten(-2)


def _cross_entropy_grad(
    logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None, grad: torch.Tensor, lane_axes: int
) -> torch.Tensor:
    """(softmax - one hot) · weight / rows, times the gradient of the mean."""
    rows = targets.numel() // max(1, _count_lanes(targets, lane_axes))
    soft = torch.softmax(logits.float(), -1)
    index = targets.long().reshape(*targets.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    index = index.expand(*soft.shape[:-1], 1)
    soft.scatter_(-1, index, soft.gather(-1, index).sub_(1.0))  # one a row: no sums, whose order a GPU pays for
    factor = grad.float().reshape(*grad.shape[:lane_axes], 1) / rows
    if weights is not None:
        each = weight_rows(factor.expand(*factor.shape[:-1], rows), weights, lane_axes)
        return soft * each.reshape(*each.shape[:lane_axes], *logits.shape[lane_axes:-1], 1)
    return soft * factor.reshape(*factor.shape[:lane_axes], *[1] * (logits.dim() - lane_axes))


cross_entropy_grad = define_local_op("cross_entropy_grad", _cross_entropy_grad, keep_specs(0))


def _count_lanes(tensor: torch.Tensor, lane_axes: int) -> int:
    count = 1
    for extent in tensor.shape[:lane_axes]:
        count *= extent
    return count


def _sum_to(grad: Tensor, like: Tensor) -> Tensor:
    """A gradient summed over the dims along which its tensor was broadcast."""
    if tuple(grad.shape) == tuple(like.shape):
        return grad
    done: Tensor = sum_to(grad=grad, shape=tuple(like.shape))
    return done


def _is_plain(node: Node) -> bool:
    """Whether no activation is fused in and all inputs are floats."""
    names = ("activations", "input_tensor_a_activations", "input_tensor_b_activations")
    return not any(node.arguments.get(name) for name in names) and all(t.dtype in FLOATS for t in node.inputs)


def add_gradients(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two gradients of the same parameter."""
    total: Tensor = binary["add"](a, b)
    return total
