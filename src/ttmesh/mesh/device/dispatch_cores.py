"""The cores that run dispatch kernels: ethernet cores, or worker cores that then do not compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch, PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import current_system
from ttmesh.chip.system import System
from ttmesh.fabric.fabric_config import FabricTensixConfig


class DispatchCoreType(PrintedEnum):
    """The kind of core that dispatches."""

    WORKER = 0
    ETH = 1


class DispatchCoreAxis(PrintedEnum):
    """Whether dispatch takes a row or a column of the grid."""

    ROW = 0
    COL = 1


@dataclass(frozen=True, init=False)
class DispatchCoreConfig:
    """What `open_mesh_device(dispatch_core_config=...)` takes; by default the choice of the system's boards."""

    type: DispatchCoreType
    axis: DispatchCoreAxis

    def __init__(
        self,
        type: DispatchCoreType | None = None,
        axis: DispatchCoreAxis | None = None,
        fabric_tensix_config: FabricTensixConfig = FabricTensixConfig.DISABLED,
    ) -> None:
        system = current_system()
        by_column = system.chip.arch is Arch.BLACKHOLE and fabric_tensix_config is not FabricTensixConfig.MUX
        if type is DispatchCoreType.ETH and axis is DispatchCoreAxis.COL:
            raise MeshError(
                "COL axis is not supported for ETH dispatch core type",
                expected="axis ROW",
                fix="Leave the axis out, or choose the WORKER type.",
            )
        if axis is DispatchCoreAxis.ROW and by_column:
            raise MeshError(
                "ROW dispatch core axis is not supported for blackhole arch unless fabric tensix MUX is enabled",
                expected="axis COL",
                fix="Leave the axis out, or pass fabric_tensix_config=FabricTensixConfig.MUX.",
            )
        if axis is None:
            axis = DispatchCoreAxis.COL if by_column else DispatchCoreAxis.ROW
        if type is None:  # columns of ethernet cores do not dispatch
            on_ethernet = axis is DispatchCoreAxis.ROW and dispatches_on_ethernet(system)
            type = DispatchCoreType.ETH if on_ethernet else DispatchCoreType.WORKER
        object.__setattr__(self, "type", type)
        object.__setattr__(self, "axis", axis)


def apply_dispatch_config(system: System, config: DispatchCoreConfig | None) -> System:
    """The system with this configuration: dispatch on workers takes a row or a column of the compute cores.

    The grids are those of tt-metal e4f9f0b's core descriptors.
    """
    if config is None:
        return system
    grid = system.chip.compute_grid
    full = compute_full_grid(system)
    if config.type is DispatchCoreType.ETH:
        # n150's descriptor leaves the row that dispatch would take unused.
        left = grid if system.chip.arch is Arch.WORMHOLE_B0 and grid.y == 8 else full
    elif config.axis is DispatchCoreAxis.ROW:
        left = CoreCoord(full.x, full.y - 1)
    else:
        left = CoreCoord(full.x - 1, full.y)
    return system if left == grid else replace(system, chip=replace(system.chip, compute_grid=left))


def compute_full_grid(system: System) -> CoreCoord:
    """Columns and rows of worker cores with those for dispatch, which a chip's compute grid does not count."""
    grid = system.chip.compute_grid
    if system.chip.arch is Arch.BLACKHOLE:
        return CoreCoord(grid.x + 1, grid.y)
    return grid if dispatches_on_ethernet(system) else CoreCoord(grid.x, grid.y + 1)


def dispatches_on_ethernet(system: System) -> bool:
    """Whether the boards' own choice is ethernet: Wormhole boards of two chips (n300, t3000)."""
    return system.chip.arch is Arch.WORMHOLE_B0 and bool(system.remote)
