"""TT-NN's queries about the emulated machine: cluster type, architecture, alignments."""

from __future__ import annotations

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import Arch, BufferType, PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import current_system
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import takes_queue


class ClusterType(PrintedEnum):
    """The types of machines that TT-Metal knows (tt-metal e4f9f0b)."""

    INVALID = 0
    N150 = 1
    N300 = 2
    T3K = 3
    GALAXY = 4
    TG = 5
    P100 = 6
    P150 = 7
    P150_X2 = 8
    P150_X4 = 9
    P150_X8 = 10
    SIMULATOR_WORMHOLE_B0 = 11
    SIMULATOR_BLACKHOLE = 12
    N300_2x2 = 13
    P300 = 14
    SIMULATOR_QUASAR = 15
    BLACKHOLE_GALAXY = 16
    P300_X2 = 17
    CUSTOM = 18


_BY_SYSTEM = {
    "n150": ClusterType.N150,
    "n300": ClusterType.N300,
    "n300_2x2": ClusterType.N300_2x2,
    "t3000": ClusterType.T3K,
    "galaxy": ClusterType.GALAXY,
    "dual_galaxy": ClusterType.GALAXY,
    "dual_galaxy_torus_xy": ClusterType.GALAXY,
    "quad_galaxy": ClusterType.GALAXY,
    "p100": ClusterType.P100,
    "p150": ClusterType.P150,
    "p150x2": ClusterType.P150_X2,
    "p150x4": ClusterType.P150_X4,
    "p150x8": ClusterType.P150_X8,
    "p300": ClusterType.P300,
    "p300x2": ClusterType.P300_X2,
    "bh_galaxy": ClusterType.BLACKHOLE_GALAXY,
}


def get_cluster_type() -> ClusterType:
    """The configured machine; CUSTOM for a shape or file of the user."""
    return _BY_SYSTEM.get(current_system().name, ClusterType.CUSTOM)


def get_arch_name() -> str:
    """wormhole_b0 or blackhole."""
    return current_system().chip.arch.name.lower()


@name_wrong_types
def is_wormhole_b0(device: MeshDevice | None = None) -> bool:
    """Whether the chips are Wormhole."""
    return (device.arch() if device is not None else current_system().chip.arch) is Arch.WORMHOLE_B0


@name_wrong_types
def is_blackhole(device: MeshDevice | None = None) -> bool:
    """Whether the chips are Blackhole."""
    return (device.arch() if device is not None else current_system().chip.arch) is Arch.BLACKHOLE


def get_pcie_device_ids() -> list[int]:
    """The chips on the host's own PCIe bus."""
    return list(current_system().mmio)


def get_pcie_device_id(device_id: int) -> int:
    """The chip on the host's PCIe bus through which a chip is reached (TT-NN's GetPCIeDeviceID)."""
    system = current_system()
    if device_id not in system.ids:
        raise MeshError(
            f"no device {device_id}",
            expected=f"one of {list(system.ids)}",
            fix="Pass an id that get_device_ids() lists.",
        )
    return next((chip for chip in system.board_of(device_id) if chip in system.mmio), device_id)


def get_dram_alignment() -> int:
    """The alignment of DRAM addresses in bytes."""
    return current_system().chip.dram_alignment


def get_l1_alignment() -> int:
    """The alignment of L1 addresses in bytes."""
    return current_system().chip.l1_alignment


def get_max_worker_l1_unreserved_size() -> int:
    """The most L1 that buffers can have per core."""
    return current_system().chip.max_worker_l1_bytes


@name_wrong_types
def get_allocator_base_address(device: MeshDevice, buffer_type: BufferType) -> int:
    """The first address of the allocator's range in each bank."""
    return device.heap.map.banks[buffer_type].start


@takes_queue
def is_tensor_prefetcher_supported(mesh_device: MeshDevice) -> bool:
    """Whether DRAM cores can prefetch tensors: no, for those of Blackhole are not emulated; programs then go without."""
    return False


@name_wrong_types
def get_optimal_dram_bank_to_logical_worker_assignment(device: MeshDevice, noc: int = 0) -> list[CoreCoord]:
    """The worker core nearest to each DRAM bank, as seen over one of the two NoCs."""
    return device.get_optimal_dram_bank_to_logical_worker_assignment(noc)
