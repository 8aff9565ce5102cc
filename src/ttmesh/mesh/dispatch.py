"""Where dispatch kernels run: on ethernet or on worker cores, which then are not compute cores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch, PrintedEnum
from ttmesh.chip.system import System


class DispatchCoreType(PrintedEnum):
    """The kind of core that dispatches."""

    WORKER = 0
    ETH = 1


class DispatchCoreAxis(PrintedEnum):
    """Whether dispatch takes a row or a column of the grid."""

    ROW = 0
    COL = 1


@dataclass(frozen=True)
class DispatchCoreConfig:
    """What `open_mesh_device(dispatch_core_config=...)` takes; None means the board's own choice."""

    type: DispatchCoreType | None = None
    axis: DispatchCoreAxis | None = None
    fabric_tensix_config: object = None


def with_dispatch(system: System, config: DispatchCoreConfig | None) -> System:
    """The system as seen with this configuration: worker dispatch costs a row on boards that dispatch on ethernet.

    boards.json: n300 and t3000 have 8x8 compute cores with ethernet dispatch, 8x7 with worker dispatch. The axis and
    ethernet dispatch on the other boards have no effect here (docs/memory.md).
    """
    if config is None or config.type is not DispatchCoreType.WORKER or not dispatches_on_ethernet(system):
        return system
    grid = system.chip.compute_grid
    return replace(system, chip=replace(system.chip, compute_grid=CoreCoord(grid.x, grid.y - 1)))


def dispatches_on_ethernet(system: System) -> bool:
    """Whether the boards' own choice is ethernet: Wormhole boards of two chips (n300, t3000)."""
    return system.chip.arch is Arch.WORMHOLE_B0 and bool(system.remote)
