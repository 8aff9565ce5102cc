"""Opening and closing: options, chips in use, lifetimes, coordinators, reservations."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from ttmesh.base import settings
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.records import Allocated, Closed, Freed, Opened, Reserved
from ttmesh.base.signals import signals
from ttmesh.fabric.fabric_config import FabricTensixConfig
from ttmesh.mesh.allocation.sub_devices import SubDevice, SubDeviceId
from ttmesh.mesh.device.dispatch_cores import DispatchCoreAxis, DispatchCoreConfig, DispatchCoreType
from ttmesh.mesh.device.mesh_device import list_open_meshes
from ttmesh.mesh.device.opening import (
    close_device,
    close_mesh_device,
    create_mesh_device,
    get_default_device,
    get_device_ids,
    get_num_devices,
    get_num_pcie_devices,
    open_device,
    open_mesh_device,
    set_default_device,
)
from ttmesh.mesh.functions.memory_reports import dump_device_memory_state, get_buffers, get_memory_view, peak_bytes
from ttmesh.mesh.system.coordinator import MeshType


def reserved_l1(mesh) -> dict[int, int]:
    totals = dict.fromkeys(mesh.get_device_ids(), 0)
    for record in mesh.holdings():
        if isinstance(record, Reserved):
            for chip in record.chips:
                totals[chip] += record.size_bytes
    return totals


def test_a_mesh_prints_and_counts_as_ttnn_says(mesh) -> None:
    assert repr(mesh) == "MeshDevice(2x4 grid, 8 devices)"
    assert mesh.get_device_ids() == [4, 0, 3, 7, 5, 1, 2, 6]
    assert mesh.get_device_id(MeshCoordinate(1, 2)) == 2
    assert (get_device_ids(), get_num_devices(), get_num_pcie_devices()) == (list(range(8)), 8, 4)
    assert mesh.compute_with_storage_grid_size().str() == "(x=8,y=8)"


def test_the_first_of_the_physical_ids_coordinates() -> None:
    with create_mesh_device(MeshShape(1, 8), physical_device_ids=[5, 0, 1, 2, 3, 4, 6, 7]) as mesh:
        assert mesh.reference_device() == 5


def test_a_list_in_second_position_means_physical_ids() -> None:
    mesh = open_mesh_device(MeshShape(1, 2), [3, "/dev/tenstorrent/7"])

    assert mesh.get_device_ids() == [3, 7]
    close_mesh_device(mesh)


@pytest.mark.parametrize("coordinator", range(8))
def test_the_coordinator_has_the_highest_l1_and_addresses_do_not_move(monkeypatch, coordinator: int) -> None:
    monkeypatch.setenv("TT_COORDINATOR_DEVICE_ID", str(coordinator))
    with create_mesh_device(MeshShape(2, 4)) as mesh:
        totals = reserved_l1(mesh)
        buffer = mesh.heap.allocate(BufferType.L1, 4096, 2048, 2048, 64, "tensor")

        assert mesh.reference_device() == coordinator
        assert max(totals, key=totals.__getitem__) == coordinator
        assert sorted(set(totals.values())) == [73 * 1024, (73 + 3173) * 1024]
        assert buffer.cell.address == 1499136 - 2048


def test_single_devices_ignore_the_coordinator_variable(monkeypatch) -> None:
    monkeypatch.setenv("TT_COORDINATOR_DEVICE_ID", "3")
    device = open_device(device_id=6)

    assert device.get_device_ids() == [6]
    close_device(device)


def test_two_meshes_on_disjoint_chips_may_be_open_and_a_chip_in_use_names_its_holder() -> None:
    left = open_mesh_device(MeshShape(1, 2), physical_device_ids=[0, 1])
    right = open_mesh_device(MeshShape(1, 2), physical_device_ids=[2, 3])

    with pytest.raises(RuntimeError, match=r"device 1 is in use by MeshDevice\(1x2 grid, 2 devices\)"):
        open_mesh_device(MeshShape(1, 2), physical_device_ids=[1, 4])

    close_mesh_device(left)
    close_mesh_device(right)
    close_mesh_device(open_mesh_device(MeshShape(2, 4)))


def test_double_close_and_use_after_close_say_so(mesh) -> None:
    buffer = mesh.heap.allocate(BufferType.DRAM, 32, 32, 32, 12, "x")
    close_mesh_device(mesh)

    with pytest.raises(RuntimeError, match="was closed; expected an open mesh"):
        close_mesh_device(mesh)
    with pytest.raises(RuntimeError, match="was closed; expected an open mesh"):
        mesh.queue()
    with pytest.raises(RuntimeError, match="its mesh was closed"):
        _ = buffer.cell


def test_an_unreferenced_mesh_closes_itself_at_once() -> None:
    gc.disable()
    try:
        mesh = open_mesh_device(MeshShape(2, 4))
        child = mesh.create_submesh(MeshShape(1, 4))
        del mesh, child
        assert list_open_meshes() == []
        close_mesh_device(open_mesh_device(MeshShape(2, 4)))
    finally:
        gc.enable()


def test_a_thousand_operations_return_to_the_baseline_without_the_collector(mesh, program) -> None:
    a = program.buffer()
    free = mesh.heap.view(BufferType.DRAM).total_bytes_free_per_bank
    gc.disable()
    try:
        for _ in range(1000):
            out = program.buffer()
            program.add(a, a, out)
            del out
        assert mesh.heap.view(BufferType.DRAM).total_bytes_free_per_bank == free
        assert len(mesh.heap.cells()) == 1
    finally:
        gc.enable()


def test_one_record_per_mesh_allocation_with_the_chips_it_covers() -> None:
    seen: list[object] = []
    stop = signals.listen(seen.append)
    with create_mesh_device(MeshShape(2, 4)) as mesh:
        buffer = mesh.heap.allocate(BufferType.DRAM, 104857600, 2048, 8740864, 12, "weights")
        buffer.deallocate()
    stop()

    kinds = [type(record) for record in seen]
    assert kinds[0] is Opened
    assert kinds.count(Allocated) == kinds.count(Freed) == kinds.count(Closed) == 1
    allocated = next(record for record in seen if isinstance(record, Allocated))
    assert (allocated.chips, allocated.size_bytes) == ((4, 0, 3, 7, 5, 1, 2, 6), 104857600)


def test_the_holdings_can_be_asked_for_at_any_time(mesh) -> None:
    kept = mesh.heap.allocate(BufferType.DRAM, 64, 32, 32, 12, "kept")

    records = signals.ask("holdings")

    assert [r.label for r in records if isinstance(r, Allocated)] == ["kept"]
    assert kept.is_allocated()


def test_out_of_memory_says_how_much_where_and_who_holds_it(mesh) -> None:
    bank = mesh.heap.map.banks[BufferType.L1].size
    hog = mesh.heap.allocate(BufferType.L1, 64 * (bank - 4096), 2048, bank - 4096, 64, "kv cache")

    with pytest.raises(
        RuntimeError,
        match=r"Out of Memory: Not enough space to allocate 524288 B L1 buffer across 64 banks, where each bank needs to "
        r"store 8192 B, but bank size is 1393472 B \(allocated: 1389376 B, free: 4096 B, largest free block: 4096 B\)"
        r".*largest live buffers are: kv cache",
    ):
        mesh.heap.allocate(BufferType.L1, 524288, 2048, 8192, 64, "matmul")

    assert hog.is_allocated()


def test_submeshes_share_the_chips_memory_and_are_listed(mesh) -> None:
    rows = mesh.create_submeshes(MeshShape(1, 4))
    first = rows[0].heap.allocate(BufferType.DRAM, 32, 32, 32, 12, "row 0")
    whole = mesh.heap.allocate(BufferType.DRAM, 32, 32, 32, 12, "all")

    assert mesh.get_submeshes() == rows
    assert rows[1].get_device_ids() == [5, 1, 2, 6]
    assert whole.cell.address == first.cell.address + 32
    assert rows[0].get_parent_mesh() is mesh


@pytest.mark.parametrize(
    ("shape", "offset", "text"),
    [
        (MeshShape(3, 4), None, r"Submesh shape MeshShape\(\[3, 4\]\) and offset .* does not fit within parent mesh"),
        (MeshShape(1, 4), MeshCoordinate(2, 0), "does not fit within parent mesh"),
        (MeshShape(0, 4), None, r"Invalid submesh shape: .*All dimensions must be positive"),
        (MeshShape(1, 1, 4), None, "must have the same number of dimensions"),
    ],
)
def test_submeshes_that_do_not_fit_are_refused(mesh, shape, offset, text) -> None:
    with pytest.raises(RuntimeError, match=text):
        mesh.create_submesh(shape, offset)


def test_submeshes_must_tile_the_mesh(mesh) -> None:
    with pytest.raises(RuntimeError, match=r"is not divisible by submesh shape .* along dimension 1"):
        mesh.create_submeshes(MeshShape(1, 3))


def test_reshape_tells_trackers_the_new_coordinates(mesh) -> None:
    seen: list[object] = []
    stop = signals.listen(seen.append)
    mesh.reshape(MeshShape(1, 8))
    stop()

    opened, *reserved = seen
    assert isinstance(opened, Opened)
    assert (opened.mesh_id, opened.shape) == (mesh.id(), (1, 8))
    assert [chip.coord for chip in opened.chips] == [(0, i) for i in range(8)]
    assert [chip.physical_id for chip in opened.chips] == mesh.get_device_ids()
    assert reserved
    assert all(isinstance(record, Reserved) for record in reserved)


def test_reshape_keeps_the_chips_and_moves_what_they_hold(mesh) -> None:
    before = mesh.get_device_ids()

    mesh.reshape(MeshShape(1, 8))

    assert mesh.get_device_ids() == [4, 0, 3, 7, 6, 2, 1, 5]
    assert sorted(mesh.get_device_ids()) == sorted(before)
    with pytest.raises(RuntimeError, match="New shape must have the same number of devices"):
        mesh.reshape(MeshShape(1, 4))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_command_queues": 3}, "num_hw_cqs can be between 1 and 2"),
        ({"mesh_shape": MeshShape(3, 3)}, r"requires 9 devices, but only 8 devices are available"),
        ({"mesh_shape": None, "physical_device_ids": [0, 1]}, "Mesh shape must be provided when physical device ids"),
        ({"mesh_shape": MeshShape(1, 4), "mesh_type": MeshType.Ring}, "MeshType.Ring cannot be formed"),
    ],
)
def test_options_that_cannot_be_met_are_refused_and_leave_nothing_open(options, text) -> None:
    with pytest.raises(MeshError, match=text):
        open_mesh_device(**{"mesh_shape": MeshShape(2, 4), **options})

    assert list_open_meshes() == []


def test_worker_dispatch_costs_a_row_of_cores() -> None:
    config = DispatchCoreConfig(DispatchCoreType.WORKER)
    with create_mesh_device(MeshShape(2, 4), dispatch_core_config=config) as mesh:
        assert mesh.compute_with_storage_grid_size().str() == "(x=8,y=7)"
        assert get_memory_view(mesh, BufferType.L1).num_banks == 56


@pytest.mark.parametrize(
    ("system", "options", "grid"),
    [
        ("t3000", {"axis": DispatchCoreAxis.COL}, "(x=7,y=8)"),
        ("t3000", {}, "(x=8,y=8)"),
        ("n150", {"axis": DispatchCoreAxis.COL}, "(x=7,y=9)"),
        ("n150", {"type": DispatchCoreType.ETH}, "(x=8,y=8)"),
        ("galaxy", {"type": DispatchCoreType.ETH}, "(x=8,y=10)"),
        ("p150", {}, "(x=11,y=10)"),
        ("p150", {"fabric_tensix_config": FabricTensixConfig.MUX}, "(x=12,y=9)"),
    ],
)
def test_dispatch_decides_the_compute_grid(system, options, grid, monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", system)

    with create_mesh_device(MeshShape(1, 1), dispatch_core_config=DispatchCoreConfig(**options)) as mesh:
        assert mesh.compute_with_storage_grid_size().str() == grid


def test_dispatch_follows_the_boards_where_nothing_is_said(monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    assert DispatchCoreConfig().type is DispatchCoreType.ETH
    assert DispatchCoreConfig(axis=DispatchCoreAxis.COL).type is DispatchCoreType.WORKER
    with pytest.raises(MeshError, match="COL axis is not supported for ETH dispatch core type"):
        DispatchCoreConfig(DispatchCoreType.ETH, DispatchCoreAxis.COL)

    monkeypatch.setenv("TTMESH_SYSTEM", "p150")
    assert DispatchCoreConfig().axis is DispatchCoreAxis.COL
    with pytest.raises(MeshError, match="ROW dispatch core axis is not supported for blackhole arch unless"):
        DispatchCoreConfig(axis=DispatchCoreAxis.ROW)


def test_the_default_device_is_forgotten_when_it_closes(mesh) -> None:
    set_default_device(mesh)
    assert get_default_device() is mesh
    close_mesh_device(mesh)
    assert get_default_device() is None


def test_reports_list_buffers_peaks_and_blocks(mesh, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = mesh.heap.allocate(BufferType.DRAM, 64, 32, 64, 12, "x")
    infos = get_buffers(mesh)
    buffer.deallocate()
    dump_device_memory_state(mesh, prefix="t_")

    assert [info.device_id for info in infos] == mesh.get_device_ids()
    assert peak_bytes(mesh, BufferType.DRAM) == 64 * 12
    files = sorted(path.name for path in tmp_path.rglob("*.csv"))
    assert files == ["t_detailed_memory_usage.csv", "t_l1_usage_summary.csv", "t_memory_usage_summary.csv"]


def test_sub_devices_are_loaded_checked_and_removed(mesh) -> None:
    from ttmesh.base.cores import CoreRange, CoreRangeSet

    left, right = (SubDevice([CoreRangeSet([CoreRange(a, b)])]) for a, b in (((0, 0), (3, 3)), ((4, 4), (4, 4))))
    manager = mesh.create_sub_device_manager([left, right], 3200)
    mesh.load_sub_device_manager(manager)
    mesh.set_sub_device_stall_group([SubDeviceId(1)])

    assert get_memory_view(mesh, BufferType.L1).total_bytes_allocated_per_bank == 3200
    with pytest.raises(RuntimeError, match="SubDevice index 2 out of bounds 2"):
        mesh.set_sub_device_stall_group([SubDeviceId(2)])
    with pytest.raises(RuntimeError, match="Cannot remove active sub-device manager"):
        mesh.remove_sub_device_manager(manager)
    mesh.clear_loaded_sub_device_manager()
    mesh.remove_sub_device_manager(manager)
    assert get_memory_view(mesh, BufferType.L1).total_bytes_allocated_per_bank == 0


def test_a_custom_system_shape_can_be_opened() -> None:
    settings.override("TTMESH_SYSTEM", "4x8")
    with create_mesh_device() as mesh:
        assert mesh.shape == MeshShape(4, 8)


def test_a_program_that_leaves_its_device_open_ends_without_a_message():
    program = "from ttmesh.mesh.device.opening import open_device; device = open_device(device_id=0)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
