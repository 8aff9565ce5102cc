"""How reducing collectives combine the terms of an element."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, DataType, PrintedEnum, bfloat16, float32
from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.chip.formats.kernels.lane_sum import lane_sum
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import make_adder


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
    """The name of a reduction; raises for an unknown one."""
    name = reduction.name.lower() if isinstance(reduction, ReduceType) else reduction
    if name not in NAMES:
        raise MeshError(f"no reduction named {name!r}", expected=one_of(NAMES), fix=suggest_names(str(name), NAMES))
    return name


def chip_adder(dtype: DataType, arch: Arch) -> Add | None:
    """How the chip adds what arrives: each hop by the element-wise unit, packed to the tensor's format; None: ideally."""
    if numerics_mode.current() == numerics_mode.IDEAL or dtype not in FORMATS:
        return None
    config = FpuConfig(arch, fp32_dest=dtype is float32, a_dtype=dtype, b_dtype=dtype, out_dtype=dtype)
    return make_adder(config)


def reduce_group(lanes: torch.Tensor, n: int, name: str, add: Add | None = None) -> torch.Tensor:
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


def sum_local_chips(lanes: torch.Tensor, n: int) -> torch.Tensor:
    """Sum the chips of one rank into new memory, in a dtype wide enough to round once at the end."""
    expanded = lanes if lanes.shape[1] == n else lanes.expand(lanes.shape[0], n, *lanes.shape[2:])
    return lane_sum(expanded, (1,), dtype=torch.float32 if lanes.is_floating_point() else torch.int64)


def _add_hops(lanes: torch.Tensor, n: int, add: Add) -> torch.Tensor:
    own = lanes.shape[1] == n
    total = lanes[:, :1]
    for member in range(1, n):
        total = add(total, lanes[:, member : member + 1] if own else lanes[:, :1])
    return total


def make_combine(name: str, add: Add | None = None) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """A function that combines the terms that meet at a hop, rounding once."""
    if name in ("max", "min"):
        choose = torch.maximum if name == "max" else torch.minimum

        def combine_extremes(terms: list[torch.Tensor]) -> torch.Tensor:
            extreme = terms[0]
            for term in terms[1:]:
                extreme = choose(extreme, term)
            return extreme

        return combine_extremes
    return _add_terms if add is None else lambda terms: functools.reduce(add, terms)


def finish_reduction(total: torch.Tensor, n: int, name: str) -> torch.Tensor:
    """The last step of a reduction: a mean divides."""
    return _divide(total, n) if name == "mean" else total


def _add_terms(terms: list[torch.Tensor]) -> torch.Tensor:
    sum_dtype = torch.float32 if terms[0].is_floating_point() else torch.int64
    total = terms[0].to(sum_dtype)
    for term in terms[1:]:
        total = total + term.to(sum_dtype)
    return total.to(terms[0].dtype)


def _sum(lanes: torch.Tensor, n: int) -> torch.Tensor:
    if lanes.shape[1] == n:
        return lane_sum(lanes, (1,))
    if (
        lanes.dtype == torch.bfloat16 and n <= 1 << 16
    ):  # all partial sums are exact in float32, so the multiplication gives the same bits
        return lanes * n
    return lane_sum(lanes.expand(lanes.shape[0], n, *lanes.shape[2:]), (1,))


def _divide(total: torch.Tensor, n: int) -> torch.Tensor:
    return total // n if not total.is_floating_point() else (total.float() / n).to(total.dtype)
