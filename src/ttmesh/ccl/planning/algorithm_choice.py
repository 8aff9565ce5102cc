"""Which algorithm a collective uses: found by file name, chosen by the group's shape and the data's size."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.ccl import algorithms
from ttmesh.ccl.planning.transfer_plan import ChipGroup, TransferPlan

# Up to this many bytes per device direct sends are faster than a ring's hops (tt-metal e4f9f0b, reduce_scatter.cpp).
SMALL_BYTES = 512 << 10


class AlgorithmError(MeshError):
    """The algorithm does not exist or does not support this group."""


@cache
def names() -> tuple[str, ...]:
    """Every algorithm: the files of the folder."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(algorithms.__path__)))


@cache
def algorithm(name: str) -> ModuleType:
    """The functions of one algorithm."""
    if name not in names():
        raise AlgorithmError(f"no algorithm named {name!r}", expected=one_of(names()), fix=suggest_names(name, names()))
    return importlib.import_module(f"{algorithms.__name__}.{name}")


def choose(group: ChipGroup, size_bytes: int, *, ring: bool) -> str:
    """The default algorithm of a group; `ring`: whether the fabric may use the link that closes a ring."""
    if not group.is_line:
        return "mesh2d"
    if not (ring and group.is_ring):
        return "line"
    return "direct" if size_bytes <= SMALL_BYTES else "bidirectional_ring"


@cache
def make_plan(name: str, collective: str, group: ChipGroup, root: int = 0) -> TransferPlan:
    """The plan of a collective by an algorithm; raises if it does not support the group."""
    module = algorithm(name)
    reason = module.unsupported_reason(group)
    if reason is not None:
        supported = [other for other in names() if algorithm(other).unsupported_reason(group) is None]
        raise AlgorithmError(
            f"{collective} over {group.size} chips by {name!r} is not possible: {reason}",
            expected=one_of(supported),
            fix="Choose another algorithm, or leave the choice to ttmesh.",
        )
    plan: TransferPlan = (
        module.broadcast(group, root) if collective == "broadcast" else getattr(module, collective)(group)
    )
    return plan
