"""Cores and L1 of a device as TT-NN's reports list them (`ttnn._ttnn.reports`)."""

from __future__ import annotations

from dataclasses import dataclass

from ttmesh.base.argument_types import refuse_wrong_types
from ttmesh.base.dtypes import BufferType
from ttmesh.chip.catalogue import current_system
from ttmesh.mesh.device.dispatch_cores import compute_full_grid
from ttmesh.mesh.device.mesh_device import MeshDevice


@dataclass(frozen=True)
class DeviceInfo:
    """One chip of a mesh; there are no storage cores, and one bank is one core's L1."""

    num_y_cores: int  # with the cores that dispatch
    num_x_cores: int
    num_y_compute_cores: int
    num_x_compute_cores: int
    worker_l1_size: int
    l1_num_banks: int
    l1_bank_size: int
    address_at_first_l1_bank: int
    address_at_first_l1_cb_buffer: int
    num_banks_per_storage_core: int
    num_compute_cores: int
    num_storage_cores: int
    total_l1_memory: int
    total_l1_for_tensors: int
    total_l1_for_interleaved_buffers: int
    total_l1_for_sharded_buffers: int
    cb_limit: int


@refuse_wrong_types
def get_device_info(device: MeshDevice) -> DeviceInfo:
    """The cores and the L1 of each chip of a mesh."""
    grid, banks = device.compute_with_storage_grid_size(), device.heap.map.banks[BufferType.L1]
    full, cores, worker_bytes = compute_full_grid(current_system()), grid.x * grid.y, device.heap.map.l1_bytes
    return DeviceInfo(
        num_y_cores=max(full.y, grid.y),
        num_x_cores=max(full.x, grid.x),
        num_y_compute_cores=grid.y,
        num_x_compute_cores=grid.x,
        worker_l1_size=worker_bytes,
        l1_num_banks=banks.count,
        l1_bank_size=banks.size,
        address_at_first_l1_bank=0,
        address_at_first_l1_cb_buffer=banks.start,
        num_banks_per_storage_core=worker_bytes // banks.size if banks.size else 0,
        num_compute_cores=cores,
        num_storage_cores=0,
        total_l1_memory=cores * worker_bytes,
        total_l1_for_tensors=0,
        total_l1_for_interleaved_buffers=cores * banks.size,
        total_l1_for_sharded_buffers=cores * banks.size,
        cb_limit=worker_bytes - banks.start,
    )
