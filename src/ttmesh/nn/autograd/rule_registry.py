"""What a tape records of an operation, and the table of gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttmesh.ccl.planning.collective_call import Decide
from ttmesh.tensor.calls.operation import Operation
from ttmesh.tensor.tensor import Tensor

Back = Callable[[Sequence[Tensor | None], Sequence[bool]], Sequence[Tensor | None]]
Key = tuple[int, int]  # id of a buffer and how often it had been written: identifies the values at some moment


@dataclass(frozen=True)
class Node:
    """One operation of the forward pass; its gradient comes from `operation`, `decide` (of a collective) or `back`."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    taken: tuple[Key, ...]  # what the inputs held
    made: tuple[Key, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    operation: Operation | None = None
    decide: Decide | None = None
    back: Back | None = None

    @property
    def written_inputs(self) -> set[int]:
        """Positions of the inputs that the operation writes into."""
        outputs = {id(output.buffer.root) for output in self.outputs}
        return {position for position, tensor in enumerate(self.inputs) if id(tensor.buffer.root) in outputs}


Rule = Callable[[Node, Tensor, Sequence[bool]], "list[Tensor | None] | None"]
RULES: dict[Any, Rule] = {}  # by the name of an operation or the `decide` of a collective
BY_GRADIENT: set[Any] = set()  # keys of rules that do not read the values of inputs


def _list_ops(names: str) -> frozenset[str]:
    return frozenset(f"ttnn.{name}" for name in names.split())


# Operations whose derivative does not depend on the values they overwrite, so that they may run in place under a tape.
LINEAR = _list_ops(
    "add_ subtract_ rsub_ copy assign move fill_cache update_cache fill_implicit_tile_padding experimental.slice_write "
    "experimental.paged_update_cache experimental.paged_fill_cache experimental.deepseek_prefill.insert"
) | {f"ttnn.experimental.paged_fused_update_cache {half} half" for half in ("first", "second")}

# Operations whose results do not depend smoothly on any input: as in torch, no gradient passes them.
CONSTANT = _list_ops(
    "eq ne gt ge lt le eq_ ne_ gt_ ge_ lt_ le_ logical_and logical_or logical_xor logical_not logical_and_ logical_or_ "
    "logical_xor_ logical_not_ isclose eqz nez gtz gez ltz lez signbit isfinite isinf isnan isneginf isposinf fill "
    "moreh_full_like fill_rm fill_ones_rm ceil_bw floor_bw round_bw sign_bw trunc_bw fill_bw fill_zero_bw "
    "moreh_adam moreh_adamw moreh_sgd"  # optimiser steps, which torch runs without a graph too
)
SOMETIMES_CONSTANT = _list_ops("where div_no_nan div_bw")  # for scalar values, a divisor of 0, or a rounded quotient


def rule(*names: str | Decide, reads: bool = True) -> Callable[[Rule], Rule]:
    """Register a function (node, grad, needed) -> gradients of the inputs as the rule of these operations.

    It may return None to leave the case to torch's vjp. With `reads=False` it does not read the
    values of inputs, which may then have been overwritten.
    """

    def register(function: Rule) -> Rule:
        known = [f"ttnn.{name}" if isinstance(name, str) else name for name in names]
        RULES.update(dict.fromkeys(known, function))
        if not reads:
            BY_GRADIENT.update(known)
        return function

    return register
