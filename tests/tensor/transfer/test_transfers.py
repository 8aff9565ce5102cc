"""Values go to a mesh and come back the same, copied exactly once each way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttmesh.base import dtypes as d
from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, Layout, StorageType
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.formats.storage import torch_dtype
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.functions.trace_capture import begin_trace_capture, end_trace_capture, release_trace
from ttmesh.tensor.calls.conversions import to_dtype, to_layout, to_memory_config
from ttmesh.tensor.distribution.composers import ConcatMesh2dToTensor, ConcatMeshToTensor, ListMeshToTensor
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMesh, ShardTensor2dMesh, ShardTensorToMesh
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, L1_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.shard_config import create_sharded_memory_config
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.partial_copy import copy_host_to_device_tensor_partial
from ttmesh.tensor.transfer.transfers import (
    allocate_tensor_on_device,
    allocate_tensor_on_host,
    copy_device_to_host_tensor,
    copy_host_to_device_tensor,
    deallocate,
    from_device,
    from_torch,
    reallocate,
    to_device,
    to_torch,
)

EXACT = [d.float32, d.bfloat16, d.uint32, d.uint16, d.uint8, d.int32]


def values_of(dtype, *shape: int) -> torch.Tensor:
    if dtype in d.FLOATS:
        return torch.randn(shape).to(torch_dtype(dtype))
    return torch.randint(0, 100, shape).to(torch_dtype(dtype))


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.TILE], ids=str)
def test_every_format_survives_the_round_trip(mesh, dtype, layout) -> None:
    values = values_of(dtype, 2, 3, 40, 16)

    tensor = from_torch(values, dtype, layout=layout, device=mesh, mesh_mapper=ShardTensorToMesh(mesh, -2))

    back = to_torch(tensor, mesh_composer=ConcatMeshToTensor(mesh, -2))
    assert back.dtype == values.dtype
    assert torch.equal(back.to(torch.float64), values.to(torch.float64))


@pytest.mark.parametrize("shape", [(), (1,), (127,), (0,), (7, 3), (2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("layout", [Layout.ROW_MAJOR, Layout.TILE], ids=str)
def test_every_rank_survives_the_round_trip(chip, shape, layout) -> None:
    values = torch.rand(shape)

    assert torch.equal(to_torch(from_torch(values, layout=layout, device=chip)), values)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    dtype=st.sampled_from(EXACT),
    layout=st.sampled_from([Layout.ROW_MAJOR, Layout.TILE]),
    h=st.integers(1, 70),
    w=st.integers(1, 70),
)
def test_bytes_written_back_are_the_same_values(chip, dtype, layout, h, w) -> None:
    values = values_of(dtype, 2, h, w)
    tensor = from_torch(values, dtype, layout=layout, device=chip)
    cell = tensor.buffer.cell

    cell.write_bytes(cell.read_bytes().clone())

    assert cell.raw.shape[-1] == tensor.spec.packed_size_bytes
    assert torch.equal(to_torch(tensor).to(torch.float64), values.to(torch.float64))


def test_row_major_shards_pack_with_their_padding(chip) -> None:
    config = create_sharded_memory_config((1, 1, 4, 64), chip.core_grid.__class__(y=1, x=2), d.ShardStrategy.WIDTH)
    values = torch.rand(1, 1, 4, 60)
    tensor = from_torch(values, device=chip, memory_config=config)
    cell = tensor.buffer.cell

    cell.write_bytes(cell.read_bytes())

    assert cell.size_bytes == 4 * 64 * 4
    assert torch.equal(to_torch(tensor), values)


def test_block_floats_without_a_layout_are_tiles(mesh) -> None:
    tensor = from_torch(torch.rand(32, 32), d.bfloat8_b, mesh_mapper=ReplicateTensorToMesh(mesh))

    assert tensor.layout is Layout.TILE
    with pytest.raises(RuntimeError, match="Layout must be Layout::TILE for bfloat8_b or bfloat4_b!"):
        from_torch(torch.rand(32, 32), d.bfloat8_b, layout=Layout.ROW_MAJOR)


def test_blocks_are_those_of_the_shard(mesh) -> None:
    values = torch.randn(32, 8 * 24)  # 24 columns: a block of 16 and one of 8

    tensor = from_torch(values, d.bfloat8_b, device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 1))

    parts = to_torch(tensor, mesh_composer=ListMeshToTensor())
    for i, part in enumerate(parts):
        alone = from_torch(values[:, 24 * i : 24 * i + 24], d.bfloat8_b)
        assert torch.equal(part, to_torch(alone))


@pytest.mark.parametrize("dtype", [None, d.bfloat16, d.bfloat8_b], ids=str)
@pytest.mark.parametrize("cut", ["replicate", "shard", "none"])
def test_later_writes_to_the_users_tensor_never_show(mesh, dtype, cut) -> None:
    values = torch.rand(64, 32, dtype=torch.bfloat16 if dtype is d.bfloat16 else torch.float32)
    mapper = {"replicate": ReplicateTensorToMesh(mesh), "shard": ShardTensorToMesh(mesh, 0), "none": None}[cut]

    host = from_torch(values, dtype, mesh_mapper=mapper)
    on_mesh = from_torch(values, dtype, device=mesh, mesh_mapper=mapper)
    before = values.clone()
    values.fill_(7)

    for tensor in (host, on_mesh):
        first = to_torch(tensor, mesh_composer=ListMeshToTensor())[0]
        assert torch.allclose(first.float(), before[: first.shape[0]].float(), atol=0.02)


def test_what_to_torch_gives_is_the_users_own(mesh) -> None:
    tensor = from_torch(torch.zeros(8, 4), device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 0))

    to_torch(tensor, mesh_composer=ConcatMeshToTensor(mesh, 0)).fill_(9)
    to_torch(tensor, mesh_composer=ListMeshToTensor())[0].fill_(9)
    from_device(tensor).to_torch(mesh_composer=ConcatMeshToTensor(dim=0)).fill_(9)

    assert not to_torch(tensor, mesh_composer=ConcatMeshToTensor(mesh, 0)).any()


def test_numpy_goes_in_and_comes_out(chip) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)

    tensor = from_torch(values, device=chip)

    assert (tensor.to_numpy() == values).all()
    assert from_torch(values, d.bfloat16).to_numpy().dtype == np.float32


def test_none_stays_none() -> None:
    assert from_torch(None) is None


def test_a_host_tensor_without_a_mapper_replicates_on_the_device(mesh) -> None:
    host = from_torch(torch.rand(3, 5))

    tensor = to_device(host, mesh)

    assert tensor.tensor_topology() == TensorTopology.create_fully_replicated_tensor_topology(mesh.shape)
    assert tensor.buffer.cell.values.shape == (1, 1, 3, 5)
    assert len(to_torch(tensor, mesh_composer=ListMeshToTensor())) == 8


def test_many_parts_without_a_composer_are_refused_in_ttnns_words(mesh) -> None:
    tensor = from_torch(torch.rand(8, 4), device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 0))

    with pytest.raises(RuntimeError, match=r"Can't convert a tensor distributed on MeshShape\(\[2, 4\]\) mesh"):
        to_torch(tensor)


def test_a_tensor_cut_for_another_mesh_is_refused(mesh, monkeypatch) -> None:
    host = from_torch(torch.rand(8, 4), mesh_mapper=ShardTensorToMesh(MeshShape(1, 2), 0))

    with pytest.raises(RuntimeError, match=r"a host tensor sharded for MeshShape\(\[1, 2\]\) does not fit MeshDevice"):
        to_device(host, mesh)


def test_specs_say_everything_or_nothing(chip) -> None:
    spec = TensorSpec((4, 4), d.bfloat16, Layout.TILE, BufferType.L1)

    tensor = from_torch(torch.rand(4, 4), spec=spec, device=chip)

    assert tensor.spec == spec
    with pytest.raises(RuntimeError, match=r"ttnn.from_torch: dtype must be None when spec is specified"):
        from_torch(torch.rand(4, 4), d.float32, spec=spec)
    with pytest.raises(RuntimeError, match="must be the same as tensor shape"):
        from_torch(torch.rand(4, 5), spec=spec)


def test_col_tilize_shares_exponents_down_the_columns(chip) -> None:
    values = torch.randn(1, 1, 64, 32, dtype=torch.bfloat16)

    turned = from_torch(values, d.bfloat8_b, col_tilize=True, device=chip)

    assert turned.shape == (1, 1, 32, 64)
    assert torch.equal(to_torch(turned), to_torch(from_torch(values.transpose(-1, -2).contiguous(), d.bfloat8_b)))
    with pytest.raises(RuntimeError, match="col_tilize=True requires BFP dtype"):
        from_torch(values, d.bfloat16, col_tilize=True)


def test_torch_rank_drops_leading_ones(chip) -> None:
    tensor = from_torch(torch.rand(1, 1, 4, 5), device=chip)

    assert to_torch(tensor, torch_rank=2).shape == (4, 5)
    with pytest.raises(RuntimeError, match="Unable to squeeze to desired rank!"):
        to_torch(tensor, torch_rank=1)


def test_host_values_overwrite_a_device_tensor_at_its_address(mesh) -> None:
    mapper = ShardTensorToMesh(mesh, 0)
    tensor = from_torch(torch.zeros(8, 4), device=mesh, mesh_mapper=mapper)
    address = tensor.buffer_address()

    copy_host_to_device_tensor(from_torch(torch.arange(32.0).reshape(8, 4), mesh_mapper=mapper), tensor)

    assert tensor.buffer_address() == address
    assert to_torch(tensor, mesh_composer=ConcatMeshToTensor(dim=0)).sum() == 496
    copy_host_to_device_tensor(from_torch(torch.ones(1, 4)), tensor)  # not cut: every device gets it
    assert to_torch(tensor, mesh_composer=ConcatMeshToTensor(dim=0)).sum() == 32


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda: from_torch(torch.rand(3, 4)), "Host tensor has different shape"),
        (lambda: from_torch(torch.rand(4, 4), d.bfloat16), "Host tensor has different dtype"),
        (lambda: from_torch(torch.rand(4, 4), layout=Layout.TILE), "Host tensor has different page config"),
    ],
)
def test_unlike_tensors_are_not_copied(chip, other, text) -> None:
    tensor = from_torch(torch.rand(4, 4), device=chip)

    with pytest.raises(RuntimeError, match=text):
        copy_host_to_device_tensor(other(), tensor)


def test_device_values_overwrite_a_host_tensor(mesh) -> None:
    tensor = from_torch(torch.rand(8, 4), device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 0))
    host = allocate_tensor_on_host(tensor.spec, mesh)

    copy_device_to_host_tensor(tensor, host, blocking=False)

    composer = ConcatMeshToTensor(dim=0)
    assert torch.equal(to_torch(host, mesh_composer=composer), to_torch(tensor, mesh_composer=composer))


def test_memory_that_nobody_wrote_reads_as_zeros(mesh) -> None:
    tensor = allocate_tensor_on_device((3, 4), d.bfloat16, Layout.TILE, mesh, L1_MEMORY_CONFIG)

    assert not to_torch(tensor, mesh_composer=ConcatMeshToTensor(mesh, 0)).any()
    assert tensor.memory_config() == L1_MEMORY_CONFIG


def test_four_gigabytes_can_be_allocated_without_values(chip) -> None:
    tensor = allocate_tensor_on_device((1, 1, 2**15, 2**16), d.bfloat16, Layout.TILE, chip, DRAM_MEMORY_CONFIG)

    assert tensor.spec.packed_size_bytes == 2**32


def test_shards_outside_the_chip_are_refused(chip) -> None:
    grid = d.ShardStrategy.HEIGHT
    wide = create_sharded_memory_config((32 * 12, 32), type(chip.core_grid)(y=1, x=12), grid)
    with pytest.raises(RuntimeError, match=r"Invalid shard grid: shard core \(8, 0\) has no L1 bank on this device"):
        from_torch(torch.rand(32 * 12, 32), layout=Layout.TILE, device=chip, memory_config=wide)
    high = MemoryConfig(
        wide.memory_layout,
        BufferType.DRAM,
        create_sharded_memory_config((64, 32), type(chip.core_grid)(y=2, x=1), grid).shard_spec,
    )
    with pytest.raises(RuntimeError, match="Invalid DRAM shard grid: shard core"):
        from_torch(torch.rand(64, 32), layout=Layout.TILE, device=chip, memory_config=high)


def test_dram_shards_lie_in_the_banks(chip) -> None:
    banks = chip.dram_grid_size()
    config = create_sharded_memory_config((32, 32 * banks.x), banks, d.ShardStrategy.WIDTH)

    tensor = from_torch(torch.rand(32, 32 * banks.x), d.bfloat16, layout=Layout.TILE, device=chip, memory_config=config)

    assert tensor.buffer.cell.buffer_type is BufferType.DRAM
    assert tensor.buffer.cell.bank_bytes == 2048


def test_layouts_convert_on_host_and_device(mesh) -> None:
    values = torch.rand(1, 1, 40, 8 * 50)
    mapper, composer = ShardTensorToMesh(mesh, 3), ConcatMeshToTensor(mesh, 3)
    for device in (None, mesh):
        tensor = from_torch(values, device=device, mesh_mapper=mapper)

        tiles = to_layout(tensor, Layout.TILE)

        assert tiles.padded_shape == (1, 1, 64, 64)
        assert torch.equal(to_torch(tiles, mesh_composer=composer), values)
        assert to_layout(tiles, Layout.ROW_MAJOR).padded_shape == (1, 1, 40, 50)
        assert device is None or to_layout(tiles, Layout.TILE).buffer_unique_id() == tiles.buffer_unique_id()


def test_untilizing_a_block_float_on_the_device_gives_bfloat16(chip) -> None:
    tensor = from_torch(torch.rand(32, 32), d.bfloat8_b, device=chip)

    assert to_layout(tensor, Layout.ROW_MAJOR).dtype is d.bfloat16
    with pytest.raises(RuntimeError, match="dtype cannot be different from tensor dtype when converting to ROW_MAJOR"):
        to_layout(tensor, Layout.ROW_MAJOR, dtype=d.float32)


def test_formats_convert_on_the_host_only(chip) -> None:
    host = from_torch(torch.rand(32, 32))

    assert to_dtype(host, d.bfloat8_b).layout is Layout.TILE
    with pytest.raises(RuntimeError, match="implicitly changed physical shape"):
        to_dtype(from_torch(torch.rand(4, 4)), d.bfloat8_b)
    assert torch.equal(to_torch(to_dtype(host, d.bfloat16)), to_torch(host).bfloat16())
    with pytest.raises(RuntimeError, match="the tensor is on a device"):
        to_dtype(to_device(host, chip), d.bfloat16)


def test_memory_can_be_changed(mesh) -> None:
    tensor = from_torch(torch.rand(64, 64), layout=Layout.TILE, device=mesh)
    sharded = create_sharded_memory_config((64, 64), type(mesh.core_grid)(y=1, x=2), d.ShardStrategy.HEIGHT)

    moved = to_memory_config(tensor, sharded)

    assert moved.memory_config() == sharded
    assert moved.is_sharded()
    assert to_memory_config(tensor, DRAM_MEMORY_CONFIG).buffer_address() == tensor.buffer_address()
    back = to_memory_config(moved, L1_MEMORY_CONFIG)
    first = to_torch(back, mesh_composer=ListMeshToTensor())[0]
    assert torch.equal(first, to_torch(tensor, mesh_composer=ListMeshToTensor())[0])
    sharded.shard_spec.shape = [64, 64]
    assert to_memory_config(tensor, sharded).memory_config().shard_spec.shape == [64, 64]


def test_reallocating_frees_the_old_place_first(chip) -> None:
    first = from_torch(torch.rand(64, 64), layout=Layout.TILE, device=chip)
    second = from_torch(torch.rand(64, 64), layout=Layout.TILE, device=chip)
    values, low = to_torch(second), first.buffer_address()
    deallocate(first)

    moved = reallocate(second)

    assert moved.buffer_address() == low
    assert not second.is_allocated()
    assert torch.equal(to_torch(moved), values)


def test_reallocate_leaves_memory_that_a_view_shares(mesh) -> None:
    low = from_torch(torch.rand(32, 32), layout=Layout.TILE, device=mesh)
    tensor = from_torch(torch.rand(32, 32), layout=Layout.TILE, device=mesh)
    view, address = tensor.share(), tensor.buffer_address()
    low.deallocate(force=True)

    moved = reallocate(tensor)

    assert moved.buffer_address() == view.buffer_address() == address
    assert tensor.is_allocated()


def test_what_reallocate_moves_keeps_its_distribution(mesh) -> None:
    low = from_torch(torch.rand(32, 32), layout=Layout.TILE, device=mesh)
    tensor = from_torch(torch.rand(8, 32, 32), layout=Layout.TILE, device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 0))
    topology = tensor.tensor_topology()
    low.deallocate(force=True)

    assert reallocate(tensor).tensor_topology() == topology


def test_transfers_are_refused_while_a_trace_is_captured(mesh) -> None:
    tensor = from_torch(torch.rand(4, 4), device=mesh)
    trace = begin_trace_capture(mesh)

    with pytest.raises(RuntimeError, match=r"Writes are not supported during trace capture."):
        copy_host_to_device_tensor(from_torch(torch.rand(4, 4)), tensor)
    with pytest.raises(RuntimeError, match=r"Reads are not supported during trace capture."):
        to_torch(tensor, mesh_composer=ListMeshToTensor())
    end_trace_capture(mesh, trace)
    release_trace(mesh, trace)


def test_a_refused_transfer_leaves_nothing_behind(mesh) -> None:
    before = len(mesh.heap.cells())

    with pytest.raises(RuntimeError, match="cq_id 5 is out of range"):
        from_torch(torch.rand(4, 4), device=mesh, cq_id=5)

    assert len(mesh.heap.cells()) == before


def test_two_dims_over_rows_and_columns(mesh) -> None:
    values = torch.rand(4, 6, 16)

    tensor = from_torch(values, device=mesh, mesh_mapper=ShardTensor2dMesh(mesh, (2, 4), (0, 2)))

    assert tensor.shape == (2, 6, 4)
    assert torch.equal(to_torch(tensor, mesh_composer=ConcatMesh2dToTensor(mesh, (2, 4), (0, 2))), values)
    rows = from_torch(values, device=mesh, mesh_mapper=ShardTensor2dMesh(mesh, (2, 4), (0, None)))
    assert rows.buffer.cell.values.shape == (2, 1, 2, 6, 16)


def test_ttnns_constructor_takes_lists_and_torch(chip) -> None:
    from_list = Tensor([1.0, 2.0, 3.0, 4.0], [1, 1, 2, 2], d.float32, Layout.ROW_MAJOR)
    from_values = Tensor(torch.ones(2, 2), d.bfloat16).to(Layout.TILE).to(chip)

    assert from_list.to_list() == [[[[1.0, 2.0], [3.0, 4.0]]]]
    assert from_values.storage_type() is StorageType.DEVICE
    assert Tensor(from_values).buffer_address() == from_values.buffer_address()
    assert Tensor([1, 2], [2], d.int32, Layout.ROW_MAJOR, chip).to_list() == [1, 2]


def test_padding_holds_its_value_in_memory(chip) -> None:
    tensor = from_torch(torch.ones(3, 5), layout=Layout.TILE, pad_value=7, device=chip)

    seen = tensor.to_torch_with_padded_shape()

    assert (seen[:3, :5] == 1).all()
    assert seen.sum() == 15 + 7 * (32 * 32 - 15)
    assert tensor.buffer.cell.read_bytes().view(torch.float32).sum() == seen.sum()
    assert to_layout(tensor, Layout.ROW_MAJOR).to_torch_with_padded_shape().sum() == 15


def test_only_the_shards_of_chosen_cores_are_written(chip) -> None:
    config = create_sharded_memory_config((64, 32), type(chip.core_grid)(y=2, x=1), d.ShardStrategy.HEIGHT)
    tensor = from_torch(torch.zeros(64, 32), layout=Layout.TILE, device=chip, memory_config=config)
    ones = from_torch(torch.ones(64, 32), layout=Layout.TILE)

    copy_host_to_device_tensor_partial(ones, tensor, CoreRangeSet(CoreRange((0, 1), (0, 1))))

    assert to_torch(tensor)[:32].sum() == 0
    assert to_torch(tensor)[32:].sum() == 32 * 32
    with pytest.raises(RuntimeError, match=r"requires a sharded device tensor"):
        copy_host_to_device_tensor_partial(ones, to_device(ones, chip), CoreRangeSet(CoreRange((0, 0), (0, 0))))


@pytest.mark.parametrize("schedule", ["eager", "async", "adversarial"])
def test_transfers_keep_their_order_under_every_schedule(schedule, monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_SCHEDULE", schedule)
    mesh = open_mesh_device(MeshShape(2, 4), num_command_queues=2)
    mapper, composer = ShardTensorToMesh(mesh, 0), ConcatMeshToTensor(mesh, 0)
    tensor = from_torch(torch.zeros(8, 4), device=mesh, mesh_mapper=mapper)

    seen = []
    for step in range(5):
        copy_host_to_device_tensor(from_torch(torch.full((8, 4), float(step)), mesh_mapper=mapper), tensor)
        seen.append(from_device(tensor, blocking=False))

    assert [int(to_torch(host, mesh_composer=composer)[0, 0]) for host in seen] == [0, 1, 2, 3, 4]
    close_mesh_device(mesh)


def test_a_dry_run_has_shapes_and_addresses_but_no_values(monkeypatch) -> None:
    monkeypatch.setenv("TTMESH_BACKEND", "meta")
    mesh = open_mesh_device(MeshShape(2, 4))

    tensor = from_torch(torch.rand(64, 32), d.bfloat8_b, device=mesh, mesh_mapper=ShardTensorToMesh(mesh, 0))

    back = to_torch(to_layout(tensor, Layout.ROW_MAJOR), mesh_composer=ConcatMeshToTensor(mesh, 0))
    assert back.is_meta
    assert back.shape == (64, 32)
    assert "<no values: dry run>" in str(tensor)
    assert tensor.buffer_address() > 0
    close_mesh_device(mesh)
