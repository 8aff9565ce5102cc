"""Parts: device programs without a name of their own in TT-NN, which composites are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any

from ttmesh.ops.catalogue.spec_rules import like_first
from ttmesh.tensor.calls.launch_op import Call, Operation, SpecRule, launch
from ttmesh.tensor.spec.tensor_topology import TensorTopology


def part(
    name: str,
    *,
    out: SpecRule = like_first,
    check: Callable[[Call], None] | None = None,
    topology: Callable[[Call], TensorTopology] | None = None,
    runtime: tuple[str, ...] = (),
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None,
    scratch: Callable[[Call], int] | None = None,
    writes: str | None = None,
    in_place: bool = False,
    recheck: bool = False,
    least_rank: int = 0,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a lane function callable on tensors, by keywords; `name` is what records and errors call it."""

    def enter(lane: Callable[..., Any]) -> Callable[..., Any]:
        operation = Operation(
            name,
            lane,
            out,
            check=check,
            topology=topology,
            runtime=frozenset(runtime),
            programs=programs,
            scratch=scratch,
            writes=writes,
            in_place=in_place,
            recheck=recheck,
            least_rank=least_rank,
            lane_arguments=frozenset(inspect.signature(lane).parameters),
        )

        def run(**arguments: Any) -> Any:
            return launch(operation, arguments)

        run.__doc__ = lane.__doc__
        return run

    return enter


def like_written(call: Call, inferred: object) -> list[Any]:
    """The spec of the tensor that is written into, which comes first."""
    return [call.specs[0]]


def no_programs(call: Call) -> tuple[Hashable, ...]:
    """Work that TT-NN does inside another program."""
    return ()
