"""Which algorithm a collective uses: found by file name, chosen by form and size."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from ttmesh.base.errors import MeshError, one_of, suggest_names
from ttmesh.ccl import algorithms
from ttmesh.ccl.planning.transfer_plan import ChipGroup, TransferPlan

# Up to this many bytes per device one hop each beats the ring's relays (tt-metal e4f9f0b, reduce_scatter.cpp).
SMALL_BYTES = 512 << 10


class AlgorithmError(MeshError):
    """The algorithm does not exist or cannot serve this group."""


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
    """What serves a group best; `ring` says whether the fabric may use a closing link."""
    if not group.is_line:
        return "mesh2d"
    if not (ring and group.is_ring):
        return "line"
    return "direct" if size_bytes <= SMALL_BYTES else "bidirectional_ring"


@cache
def plan_of(name: str, collective: str, group: ChipGroup, root: int = 0) -> TransferPlan:
    """The plan of a collective by an algorithm that can serve the group."""
    module = algorithm(name)
    reason = module.refuses(group)
    if reason is not None:
        able = [other for other in names() if algorithm(other).refuses(group) is None]
        raise AlgorithmError(
            f"{collective} over {group.size} members by {name!r} is not possible: {reason}",
            expected=one_of(able),
            fix="Choose another algorithm, or leave the choice to ttmesh.",
        )
    plan: TransferPlan = (
        module.broadcast(group, root) if collective == "broadcast" else getattr(module, collective)(group)
    )
    return plan
