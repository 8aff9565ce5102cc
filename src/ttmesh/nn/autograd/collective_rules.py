"""Gradient rules of collectives: the gradient of a collective is another collective over the same axis and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ttmesh.ccl.collectives.all_to_all import decide_all_to_all, exchange
from ttmesh.ccl.collectives.broadcast import decide_mesh_partition
from ttmesh.ccl.collectives.reduce_gather import (
    decide_all_gather,
    decide_all_reduce,
    decide_reduce_scatter,
    gather,
    reduce_all,
    scatter,
)
from ttmesh.ccl.planning.collective_call import Decision, Request, run
from ttmesh.nn.autograd.rule_registry import Node, rule
from ttmesh.nn.autograd.vjp import make_missing_error
from ttmesh.ops.elementwise.binary import binary
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.tensor import Tensor

Grads = list[Tensor | None]


@rule(decide_all_reduce, reads=False)
def _all_reduce(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Every chip's input is in every chip's result: the gradients add up, or are averaged."""
    return [reduce_all(node.name, grad, reduction=_require_sum_or_mean(node), **_read_options(node))]


@rule(decide_all_gather, reads=False)
def _all_gather(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Every chip's shard went to all chips, so the gradients of its copies are summed: reduce_scatter."""
    if node.arguments["reverse"]:
        raise make_missing_error(node.name, "it concatenates the shards in reverse order")
    return [scatter("ttnn.reduce_scatter", grad, node.arguments["dim"], **_read_options(node))]


@rule(decide_reduce_scatter, reads=False)
def _reduce_scatter(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Each chip's input contributes to every chip's shard, so the gradients are gathered."""
    mean = _require_sum_or_mean(node) == "mean"
    dim = node.arguments["dim"]
    gathered = gather("ttnn.all_gather", grad, dim, **_read_options(node))
    return [binary["multiply"](gathered, grad.shape[dim] / gathered.shape[dim]) if mean else gathered]


@rule(decide_all_to_all, reads=False)
def _all_to_all(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """The same exchange with the two dims swapped."""
    in_dim, out_dim = node.arguments["in_dim"], node.arguments["out_dim"]
    return [exchange(node.name, grad, out_dim, in_dim, **_read_options(node))]


@rule(decide_mesh_partition, reads=False)
def _mesh_partition(node: Node, grad: Tensor, needed: Sequence[bool]) -> Grads:
    """Each chip's gradient at the position of its slice, zeros elsewhere; nothing moves between chips."""
    shape = tuple(node.inputs[0].shape)
    options = {"axis": node.arguments["axis"], "dim": node.arguments["dim"], "mode": "local", "shape": shape}
    return [run("ttnn.mesh_partition.vjp", _decide_partition_gradient, [grad], options)]


def _decide_partition_gradient(request: Request) -> Decision:
    """The transpose of mesh_partition: torch's vjp of what it computes."""
    shape, mesh = request["shape"], request.mesh
    source = request.tensor
    spec = source.spec.with_shape(shape)
    full = Tensor(kind_of(spec, source.tensor_topology(), source.kind.presence), None, mesh, None)
    forward = decide_mesh_partition(Request(request.name, mesh, (full,), (), {**request.options, "dtype": None}))

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        dims = tuple(mesh.shape)
        with torch.enable_grad():
            leaf = lanes.new_zeros(()).expand(*dims, *shape).requires_grad_()
            (result,) = forward.compute(leaf)
            (found,) = torch.autograd.grad([result], [leaf], [lanes.expand(result.shape)])
        return (found,)

    return replace(forward, specs=(spec,), compute=compute, compute_on_rank=None, topology=source.tensor_topology())


def _require_sum_or_mean(node: Node) -> str:
    reduction: str = node.arguments["reduction"]
    if reduction not in ("sum", "mean"):
        raise make_missing_error(node.name, f"it takes the {reduction} over chips")
    return reduction


def _read_options(node: Node) -> dict[str, Any]:
    return {"cluster_axis": node.arguments["axis"], "mode": node.arguments["mode"]}
