"""What a reducing collective does with the terms of an element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, DataType, PrintedEnum, bfloat16, float32
from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.numerics.engine_config import EngineConfig
from ttmesh.chip.numerics.fpu_elementwise import add_lanes


class ReduceType(PrintedEnum):
    """TT-NN's names of reductions."""

    Sum = 0
    Mean = 1
    Max = 2
    Min = 3


Add = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FORMATS = BLOCK_FLOATS | {bfloat16, float32}
NAMES = tuple(member.name.lower() for member in ReduceType)


def reduction_name(reduction: str | ReduceType) -> str:
    """The name of a reduction, checked."""
    name = reduction.name.lower() if isinstance(reduction, ReduceType) else reduction
    if name not in NAMES:
        raise MeshError(f"no reduction named {name!r}", expected=one_of(NAMES), fix=suggest_names(str(name), NAMES))
    return name


def chip_adder(dtype: DataType, arch: Arch) -> Add | None:
    """How the chip adds what arrives: each hop by the element-wise unit, packed to the tensor's format; None: ideally."""
    if numerics_mode.current() == numerics_mode.IDEAL or dtype not in FORMATS:
        return None
    config = EngineConfig(arch, fp32_dest=dtype is float32, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype)
    return lambda a, b: add_lanes(a, b, config)


def over_members(lanes: torch.Tensor, n: int, name: str, add: Add | None = None) -> torch.Tensor:
    """[groups, members, ...] reduced to [groups, 1, ...]; one stored member stands for n equal ones.

    Sums are one float32 chain in member order, rounded once; with `add`, rounded at every hop.
    """
    if add is not None and name == "sum" and not lanes.is_meta:
        return _add_hops(lanes, n, add)
    if name == "sum":
        return _sum(lanes, n)
    if name == "mean":
        return _divide(_sum(lanes, n), n)
    return lanes.amax(1, keepdim=True) if name == "max" else lanes.amin(1, keepdim=True)


def partial_sum(lanes: torch.Tensor, n: int) -> torch.Tensor:
    """The members of one rank summed in new memory, wide enough that rounding once at the end is enough."""
    every = lanes if lanes.shape[1] == n else lanes.expand(lanes.shape[0], n, *lanes.shape[2:])
    return lane_sum(every, (1,), dtype=torch.float32 if lanes.is_floating_point() else torch.int64)


def _add_hops(lanes: torch.Tensor, n: int, add: Add) -> torch.Tensor:
    own = lanes.shape[1] == n
    total = lanes[:, :1]
    for member in range(1, n):
        total = add(total, lanes[:, member : member + 1] if own else lanes[:, :1])
    return total


def combiner(name: str, add: Add | None = None) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """How a hop adds what arrives to what is there, rounding once."""
    if name in ("max", "min"):
        pick = torch.maximum if name == "max" else torch.minimum

        def pick_best(terms: list[torch.Tensor]) -> torch.Tensor:
            best = terms[0]
            for term in terms[1:]:
                best = pick(best, term)
            return best

        return pick_best
    return _chain if add is None else lambda terms: functools.reduce(add, terms)


def finish_reduction(total: torch.Tensor, n: int, name: str) -> torch.Tensor:
    """What is left to do after the last hop: a mean divides."""
    return _divide(total, n) if name == "mean" else total


def _chain(terms: list[torch.Tensor]) -> torch.Tensor:
    wide = torch.float32 if terms[0].is_floating_point() else torch.int64
    total = terms[0].to(wide)
    for term in terms[1:]:
        total = total + term.to(wide)
    return total.to(terms[0].dtype)


def _sum(lanes: torch.Tensor, n: int) -> torch.Tensor:
    if lanes.shape[1] == n:
        return lane_sum(lanes, (1,))
    if lanes.dtype == torch.bfloat16 and n <= 1 << 16:  # every partial sum is exact in float32, so is the product
        return lanes * n
    return lane_sum(lanes.expand(lanes.shape[0], n, *lanes.shape[2:]), (1,))


def _divide(total: torch.Tensor, n: int) -> torch.Tensor:
    return total // n if not total.is_floating_point() else (total.float() / n).to(total.dtype)
