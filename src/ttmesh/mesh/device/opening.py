"""Open and close meshes and devices."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from ttmesh.base import numerics_mode, settings
from ttmesh.base.argument_types import misfit, name_wrong_types
from ttmesh.base.errors import BusyError, MeshError, RankError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.chip.backends.registry import find_usable_backend
from ttmesh.chip.catalogue import current_system
from ttmesh.chip.claims import claim, is_exclusive
from ttmesh.chip.memory import MemoryMap, Space
from ttmesh.fabric.fabric_state import fabric_process
from ttmesh.mesh.allocation.lost_interrupts import redeliver_lost_interrupts
from ttmesh.mesh.device.dispatch_cores import DispatchCoreConfig, apply_dispatch_config
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import load_shared_system, make_rank_block
from ttmesh.mesh.system.coordinator import MeshType, check_mesh_type, locate_mesh

MAX_COMMAND_QUEUES = 2

_in_use: dict[int, weakref.ref[MeshDevice]] = {}
_default: MeshDevice | None = None

DEFAULT_WORKER_L1_SIZE = 0  # 0 means all of L1 that the runtime does not reserve


@name_wrong_types
def open_mesh_device(
    mesh_shape: MeshShape | None = None,
    l1_small_size: int | Sequence[int | str] = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: DispatchCoreConfig | None = None,
    offset: MeshCoordinate | None = None,
    physical_device_ids: Sequence[int | str] = (),
    worker_l1_size: int = DEFAULT_WORKER_L1_SIZE,
    *,
    device_ids: Sequence[int | str] | None = None,
    mesh_type: MeshType | None = None,
) -> MeshDevice:
    """Open chips as one mesh; without a shape, the full system. Ranks that present one mesh divide it into equal blocks.

    A list in second position, or `device_ids`, names physical devices (or /dev/tenstorrent/N), of which the first is the
    coordinator.
    """
    if mesh_shape is not None and not isinstance(mesh_shape, MeshShape):
        kind = type(mesh_shape).__name__
        raise misfit(
            "open_mesh_device", "mesh_shape", f"mesh_shape={mesh_shape!r} is a {kind}; pass ttnn.MeshShape(2, 4), say"
        )
    if not isinstance(l1_small_size, int):
        device_ids, l1_small_size = l1_small_size, 0
    explicit = physical_device_ids if device_ids is None else device_ids
    # Physical ids are this process's own; otherwise ranks of one mesh divide it.
    system = apply_dispatch_config(current_system() if explicit else load_shared_system(), dispatch_core_config)
    shape, chips = locate_mesh(
        system,
        mesh_shape,
        offset=offset,
        devices=explicit,
        coordinator=settings.get_int("TT_COORDINATOR_DEVICE_ID"),
    )
    if mesh_type is not None:
        check_mesh_type(mesh_type, shape, chips, system.links)
    if not 1 <= num_command_queues <= MAX_COMMAND_QUEUES:
        raise MeshError(
            f"num_hw_cqs can be between 1 and {MAX_COMMAND_QUEUES}",
            expected=f"1 or 2, not {num_command_queues}",
            fix="Ask for one or two command queues.",
        )
    redeliver_lost_interrupts()  # buffers are freed by their finalizers
    _refuse_busy(chips)
    rank_block = None if explicit else make_rank_block(shape)
    own = chips if rank_block is None else rank_block.select_local(chips)
    if rank_block is not None:
        check_visible(own)
    memory_map = MemoryMap.of(
        system.chip, l1_small_size=l1_small_size, trace_region_size=trace_region_size, worker_l1_size=worker_l1_size
    )
    numerics_mode.refresh()
    lanes = find_usable_backend(settings.get_str("TTMESH_BACKEND"))
    lanes.start()
    held = claim(system.name, [system.original_id(chip) for chip in own]) if is_exclusive() else None
    if rank_block is not None:
        sizes = f"l1_small_size {l1_small_size}, trace_region_size {trace_region_size}, worker_l1_size {worker_l1_size}"
        try:
            rank_block.create_groups(num_command_queues, f"{shape!r} of {system.name} on chips {list(chips)}, {sizes}")
        except RankError:
            if held is not None:
                held.release()
            raise
    mesh = MeshDevice(
        system, shape, chips, Space(chips, memory_map), lanes, num_command_queues=num_command_queues,
        rank_block=rank_block,
    )  # fmt: skip
    mesh.claim = held
    fabric_process.open()
    for chip in chips:
        _in_use[chip] = weakref.ref(mesh)
    return mesh


@name_wrong_types
def close_mesh_device(mesh_device: MeshDevice) -> None:
    """Finish all commands and release the chips."""
    global _default
    mesh_device.close()
    if _default is mesh_device:
        _default = None


@contextmanager
def create_mesh_device(
    mesh_shape: MeshShape | None = None,
    l1_small_size: int | Sequence[int | str] = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: DispatchCoreConfig | None = None,
    offset: MeshCoordinate | None = None,
    physical_device_ids: Sequence[int | str] = (),
    worker_l1_size: int = DEFAULT_WORKER_L1_SIZE,
) -> Iterator[MeshDevice]:
    """A mesh that is closed at the end of the `with` block."""
    mesh = open_mesh_device(
        mesh_shape, l1_small_size, trace_region_size, num_command_queues, dispatch_core_config, offset,
        physical_device_ids, worker_l1_size,
    )  # fmt: skip
    try:
        yield mesh
    finally:
        if mesh.is_open():
            close_mesh_device(mesh)


@name_wrong_types
def open_device(
    *,
    device_id: int,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    num_command_queues: int = 1,
    dispatch_core_config: DispatchCoreConfig | None = None,
    worker_l1_size: int = DEFAULT_WORKER_L1_SIZE,
) -> MeshDevice:
    """Open one chip as a 1x1 mesh."""
    return open_mesh_device(
        MeshShape(1, 1), l1_small_size, trace_region_size, num_command_queues, dispatch_core_config, None,
        [device_id], worker_l1_size,
    )  # fmt: skip


def create_device(
    device_id: int,
    num_command_queues: int = 1,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    dispatch_core_config: DispatchCoreConfig | None = None,
    *,
    worker_l1_size: int = DEFAULT_WORKER_L1_SIZE,
) -> MeshDevice:
    """TT-NN's `CreateDevice`: one chip, with another order of arguments."""
    return open_device(
        device_id=device_id,
        l1_small_size=l1_small_size,
        trace_region_size=trace_region_size,
        num_command_queues=num_command_queues,
        dispatch_core_config=dispatch_core_config,
        worker_l1_size=worker_l1_size,
    )


def create_devices(
    device_ids: Sequence[int],
    num_command_queues: int = 1,
    l1_small_size: int = 0,
    trace_region_size: int = 0,
    dispatch_core_config: DispatchCoreConfig | None = None,
    *,
    worker_l1_size: int = DEFAULT_WORKER_L1_SIZE,
) -> dict[int, MeshDevice]:
    """TT-NN's `CreateDevices`: several chips, each opened as a separate mesh."""
    return {
        device_id: create_device(
            device_id, num_command_queues, l1_small_size, trace_region_size, dispatch_core_config,
            worker_l1_size=worker_l1_size,
        )
        for device_id in device_ids
    }  # fmt: skip


@name_wrong_types
def close_device(device: MeshDevice) -> None:
    """Close one chip."""
    close_mesh_device(device)


def close_devices(devices: dict[int, MeshDevice]) -> None:
    """Close several chips."""
    for device in devices.values():
        close_device(device)


@contextmanager
def manage_device(device_id: int) -> Iterator[MeshDevice]:
    """One chip for the length of a `with` block."""
    device = open_device(device_id=device_id)
    try:
        yield device
    finally:
        close_device(device)


@name_wrong_types
def set_default_device(device: MeshDevice | None) -> None:
    """Set the device that operations use when none is passed."""
    global _default
    _default = device


def get_default_device() -> MeshDevice | None:
    """The device set by `set_default_device`."""
    return _default


def clear_default_device() -> None:
    """Have no such device."""
    set_default_device(None)


def get_device_ids() -> list[int]:
    """Ids that can be opened: 0 to the number of devices."""
    return list(range(get_num_devices()))


def get_num_devices() -> int:
    """The number of chips this process can use: of a system that ranks divide, those of its rank block."""
    if settings.get("TT_VISIBLE_DEVICES") is not None:
        return len(current_system().ids)
    system = load_shared_system()
    rank_block = make_rank_block(system.shape)
    return len(system.ids) if rank_block is None else prod(rank_block.block_shape)


def get_num_pcie_devices() -> int:
    """The number of chips on the host's own PCIe bus."""
    return len(current_system().mmio)


def list_root_meshes() -> list[MeshDevice]:
    """The open meshes of this process, without submeshes."""
    held = {id(mesh): mesh for ref in _in_use.values() if (mesh := ref()) is not None and mesh.is_open()}
    return list(held.values())


def check_visible(own: Sequence[int]) -> None:
    """Refuse a rank block with chips that TT_VISIBLE_DEVICES hides."""
    system = current_system()
    visible = [system.original_id(chip) for chip in system.ids]
    hidden = sorted(set(own) - set(visible))
    if hidden:
        raise RankError(
            f"this rank's block of the mesh has chips {sorted(own)}, of which TT_VISIBLE_DEVICES hides {hidden}",
            expected=f"a block of the visible chips {sorted(visible)}",
            fix="Give each rank the chips of its block (docs/ranks.md says how a mesh is divided), or unset the variable.",
        )


def _refuse_busy(chips: Sequence[int]) -> None:
    for chip in chips:
        holder = _in_use[chip]() if chip in _in_use else None
        if holder is not None and holder.is_open():
            raise BusyError(
                f"device {chip} is in use by {holder!r} (id {holder.id()}) of this process",
                expected="chips that no open mesh holds",
                fix="Close that mesh first, or create a submesh of it with create_submesh().",
            )
