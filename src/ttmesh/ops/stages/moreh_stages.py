"""Stages of moreh's operations: a program per reduced dim, the last dim first, each into new memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ttmesh.base.dtypes import Layout
from ttmesh.ops.stages.movement_stages import tile_spec
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Composed = tuple[Composition, Sequence[PlannedTensor]]


def read_positive_dims(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """The dims in the order of reduction."""
    if not rank:
        return []
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    return sorted((d % rank for d in dims), reverse=True) if rank else []


def reduce_dims(
    c: Composition, program: str, x: PlannedTensor, dims: Sequence[int], final: TensorSpec, *options: object
) -> PlannedTensor:
    """The dims one after the other; the argument keeps its memory."""
    shape, now = list(x.spec.shape), x
    for dim in dims:
        shape[dim] = 1
        made = c.run(program, tile_spec(shape, final.dtype, final.memory_config), now, options=(dim, *options))
        if now is not x:
            c.free(now)
        now = made
    return now


def moreh_reduce_stages(program: str) -> StageRule:
    """The stages of moreh_sum and moreh_mean."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
        c, x = Composition(), PlannedTensor(call.specs[0])
        dims = read_positive_dims(call["dim"], len(x.spec.shape))
        if any(call.outputs) or not dims or x.spec.layout is not Layout.TILE:
            return None
        made = reduce_dims(c, program, x, dims, results[0], call["divisor"], call["keepdim"])
        return c, [c.view(made, results[0])]

    return stages


def moreh_norm_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """Powers, a sum per dim, and the root."""
    c, x, final = Composition(), PlannedTensor(call.specs[0]), results[0]
    dims = read_positive_dims(call["dim"], len(x.spec.shape))
    if any(call.outputs) or not dims or abs(call["p"]) == inf or call["p"] == 0:
        return None
    powers = c.run("moreh_abs_pow", tile_spec(x.spec.shape, x.spec.dtype, final.memory_config), x)
    total = reduce_dims(c, "moreh_sum", powers, dims, final, None, call["keepdim"])
    c.free(powers)
    made = c.run("moreh_abs_pow", total.spec, total)
    c.free(total)
    return c, [c.view(made, final)]


def nll_loss_stages(call: Call, results: Sequence[TensorSpec]) -> Composed | None:
    """The losses and their sum; a mean adds up the weights of the targets first, into the divisor."""
    c, final = Composition(), results[0]
    x, target = (PlannedTensor(spec) for spec in call.specs[:2])
    if call["reduction"] == "none" or any(call.outputs):
        return None
    losses = tile_spec(target.spec.shape, final.dtype, final.memory_config)
    dims = read_positive_dims(None, len(losses.shape))
    weights = None
    if call["reduction"] == "mean":
        weights = c.run("moreh_nll_loss step 1", losses, target)
        summed = reduce_dims(c, "moreh_sum", weights, dims[:-1], losses, None, False)
        c.launch(("moreh_sum into", summed.spec))
        if summed is not weights:
            c.free(summed)
    each = c.run("moreh_nll_loss step 2", losses, x, target, options=(call["reduction"], len(call.specs)))
    made = reduce_dims(c, "moreh_sum", each, dims, losses, None, False)
    for stage in (each, weights):
        if stage is not None and stage is not made:
            c.free(stage)
    return c, [c.view(made, final)]
