"""Circular buffers of programs: they grow from the bottom of every core's L1 towards the L1 buffers."""

from __future__ import annotations

from operator import attrgetter

from ttmesh.base.dtypes import BufferType
from ttmesh.mesh.allocation.circular_buffer_clash import check_l1_size, make_clash_error
from ttmesh.mesh.device.mesh_device import LOCAL_L1_LABEL, MeshDevice

_address = attrgetter("address")


def check_size(name: str, size_bytes: int, mesh: MeshDevice) -> None:
    """Refuse a program whose circular buffers are larger than L1; decided once per plan."""
    banks = mesh.heap.map.banks[BufferType.L1]
    end = banks.start + size_bytes
    check_l1_size(
        _cores(mesh),
        end,
        mesh.heap.map.l1_bytes,
        expected=f"{name} to need at most {mesh.heap.map.l1_bytes - banks.start} B per core",
        fix="Use smaller blocks in program_config, or a smaller input.",
        label=name,
    )


def check_room(name: str, size_bytes: int, mesh: MeshDevice) -> None:
    """Refuse a program whose circular buffers reach the lowest L1 buffer, as the chip's loader would."""
    live = mesh.heap.live[BufferType.L1]
    if not live:
        return
    end = mesh.heap.map.banks[BufferType.L1].start + size_bytes
    if end <= min(map(_address, live.values())):  # cheaper than asking the allocator, which counts what was freed out
        return
    lowest = mesh.heap.lowest_used(BufferType.L1)
    if lowest is not None and end > lowest:
        users = sorted(mesh.heap.live[BufferType.L1].values(), key=lambda cell: cell.address)
        if users and users[0].label == LOCAL_L1_LABEL:  # reserved for sub-devices, but nothing lies in it
            users = users[1:]
            if not users or end <= (lowest := users[0].address):
                return
        names = ", ".join(f"{cell.label or 'unnamed'} at {cell.address}" for cell in users[:3])
        raise make_clash_error(
            name,
            _cores(mesh),
            lowest,
            end,
            expected=f"{size_bytes} B free at the bottom of L1 for {name}",
            fix=f"Move something to DRAM; the lowest L1 buffers are: {names}.",
        )


def _cores(mesh: MeshDevice) -> str:
    last = mesh.compute_with_storage_grid_size()
    return f"[(x=0,y=0) - (x={last.x - 1},y={last.y - 1})]"
