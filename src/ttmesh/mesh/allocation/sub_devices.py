"""Sub-devices: named sets of a chip's cores, and the managers that hold a partition into sub-devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.errors import MeshError, one_of

_ids = itertools.count(1)


@dataclass(frozen=True)
class SubDeviceId:
    """The number of a sub-device within the loaded partition."""

    id: int

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"SubDeviceId({self.id})"


@dataclass(frozen=True)
class SubDeviceManagerId:
    """The number of a partition."""

    id: int

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"SubDeviceManagerId({self.id})"


class SubDevice:
    """Some of a chip's cores: tensix cores first, ethernet cores second."""

    __slots__ = ("cores",)

    def __init__(self, cores: Sequence[CoreRangeSet]) -> None:
        if not 1 <= len(cores) <= 2:
            raise MeshError(
                f"SubDevice got {len(cores)} core range sets",
                expected="one for tensix cores, and optionally one for ethernet cores",
                fix="Merge the sets of one core type into one CoreRangeSet.",
            )
        self.cores = tuple(cores)

    def __repr__(self) -> str:
        return f"SubDevice({list(self.cores)})"


@dataclass(frozen=True)
class SubDeviceManager:
    """A partition into sub-devices and the L1 that each of them reserves."""

    id: SubDeviceManagerId
    sub_devices: tuple[SubDevice, ...]
    local_l1_size: int


class SubDeviceTracker:
    """The partitions of one mesh, the loaded one, and the sub-devices that transfers wait for."""

    def __init__(self, all_cores: CoreRangeSet) -> None:
        self.default = SubDeviceManager(SubDeviceManagerId(next(_ids)), (SubDevice([all_cores]),), 0)
        self.loaded = self.default
        self._managers = {self.default.id: self.default}
        self.stall_group: tuple[SubDeviceId, ...] = (SubDeviceId(0),)

    def create(self, sub_devices: Iterable[SubDevice], local_l1_size: int) -> SubDeviceManagerId:
        """Add a partition; the cores of two sub-devices may not overlap."""
        devices = tuple(sub_devices)
        if not devices:
            raise MeshError(
                "a sub-device manager needs sub-devices", expected="at least one", fix="Pass a list of SubDevice."
            )
        for i, a in enumerate(devices):
            for b in devices[i + 1 :]:
                if a.cores[0].intersects(b.cores[0]):
                    raise MeshError(
                        f"SubDevices specified for SubDeviceManager intersect: {a!r} and {b!r}",
                        expected="disjoint cores",
                        fix="Give each core to one sub-device.",
                    )
        manager = SubDeviceManager(SubDeviceManagerId(next(_ids)), devices, local_l1_size)
        self._managers[manager.id] = manager
        return manager.id

    def get(self, manager_id: SubDeviceManagerId) -> SubDeviceManager:
        """The partition with this id."""
        if manager_id not in self._managers:
            raise MeshError(
                f"{manager_id!r} does not exist", expected=one_of(self._managers), fix="Create it on this mesh first."
            )
        return self._managers[manager_id]

    def load(self, manager: SubDeviceManager) -> None:
        """Make a partition the loaded one."""
        self.loaded = manager
        self.reset_stall_group()

    def remove(self, manager_id: SubDeviceManagerId) -> None:
        """Remove a partition that is not loaded."""
        manager = self.get(manager_id)
        if manager is self.loaded:
            raise MeshError(
                f"Cannot remove active sub-device manager {manager_id.id}",
                expected="a manager that is not loaded",
                fix="Call clear_loaded_sub_device_manager() first.",
            )
        del self._managers[manager_id]

    def set_stall_group(self, ids: Iterable[SubDeviceId]) -> None:
        """Set the sub-devices that transfers wait for."""
        chosen = tuple(ids)
        if not chosen:
            raise MeshError(
                "Specified sub_device_ids cannot be empty", expected="at least one id", fix="Pass SubDeviceId(0)."
            )
        self.check(chosen)
        self.stall_group = chosen

    def reset_stall_group(self) -> None:
        """Transfers wait for every sub-device again."""
        self.stall_group = tuple(SubDeviceId(i) for i in range(len(self.loaded.sub_devices)))

    def check(self, ids: Iterable[SubDeviceId | int]) -> None:
        """Refuse ids that the loaded partition does not have."""
        count = len(self.loaded.sub_devices)
        for sub_device in ids:
            if not 0 <= int(sub_device) < count:
                raise MeshError(
                    f"SubDevice index {int(sub_device)} out of bounds {count}",
                    expected=one_of(range(count)),
                    fix="Load the manager that has it, or use another id.",
                )
