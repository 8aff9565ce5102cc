"""Tensors stream between the host and a Blackhole Galaxy through services."""

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings

SHAPE = [1, 1, 16, 640]


@pytest.fixture
def mesh():
    settings.override("TTMESH_SYSTEM", "bh_galaxy")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(8, 4))
    yield mesh
    ttnn.close_mesh_device(mesh)
    settings.override("TTMESH_SYSTEM", None)


def spec(*, width=640):
    return ttnn.TensorSpec([1, 1, 16, width], ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT, buffer_type=ttnn.BufferType.DRAM)


def mapper(mesh, *placements):
    return ttnn.create_mesh_mapper(mesh, ttnn.MeshMapperConfig(placements=list(placements)))


def test_bytes_and_tensors_arrive_on_every_chip(mesh):
    service = ttnn.H2DStreamService(mesh, spec(), max_socket_page_size_bytes=4 * 640 * 4)
    values = torch.arange(16 * 640, dtype=torch.int32).reshape(SHAPE)

    service.forward_to_tensor_bytes(values.numpy())
    service.barrier()

    assert service.payload_size_bytes() == 16 * 640 * 4
    assert all(
        torch.equal(ttnn.to_torch(chip).int(), values) for chip in ttnn.get_device_tensors(service.get_backing_tensor())
    )


def test_a_replicated_tensor_comes_back_as_bytes(mesh):
    service = ttnn.D2HStreamService(mesh, spec(), fifo_size_bytes=65536)
    values = torch.arange(16 * 640, dtype=torch.int32).reshape(SHAPE)
    replicated = mapper(mesh, ttnn.PlacementReplicate(), ttnn.PlacementReplicate())

    ttnn.copy_host_to_device_tensor(
        ttnn.from_torch(values, spec=spec(), mesh_mapper=replicated), service.get_backing_tensor()
    )

    assert service.read_from_tensor_bytes() == values.numpy().tobytes()


def test_a_sharded_tensor_comes_back(mesh):
    placements = ttnn.PlacementReplicate(), ttnn.PlacementShard(3)
    service = ttnn.D2HStreamService(mesh, spec(width=2560), fifo_size_bytes=65536, mapper=mapper(mesh, *placements))
    values = torch.arange(16 * 2560, dtype=torch.int32).reshape(1, 1, 16, 2560)
    host, read = (
        ttnn.from_torch(v, spec=spec(width=2560), mesh_mapper=mapper(mesh, *placements)) for v in (values, values * 0)
    )

    ttnn.copy_host_to_device_tensor(host, service.get_backing_tensor())
    service.read_from_tensor(read)

    assert service.get_per_shard_spec().shape == (1, 1, 16, 640)
    assert [ttnn.to_torch(t).int().tolist() for t in ttnn.get_device_tensors(read)] == [
        ttnn.to_torch(t).int().tolist() for t in ttnn.get_device_tensors(host)
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metadata_size_bytes": 16}, "requires Config::worker_cores to be set"),
        ({"fifo_size_bytes": 16}, "must be >= the derived socket_page_size"),
        ({"max_socket_page_size_bytes": 16}, "must be >= the tensor page size"),
        ({"worker_cores": ttnn.CoreRange((0, 0), (0, 0))}, "waits for kernels on those cores, which is not emulated"),
    ],
)
def test_what_a_service_refuses(mesh, options, text):
    with pytest.raises(RuntimeError, match=text):
        ttnn.H2DStreamService(mesh, spec(), **options)


def test_bytes_of_another_length_and_metadata_are_refused(mesh):
    service = ttnn.H2DStreamService(mesh, spec())

    with pytest.raises(RuntimeError, match="does not match global_spec packed size 40960 B"):
        service.forward_to_tensor_bytes(torch.zeros(3, dtype=torch.int32).numpy())
    with pytest.raises(RuntimeError, match="metadata span size 8 B does not match"):
        service.forward_to_tensor_bytes(torch.zeros(SHAPE, dtype=torch.int32).numpy(), metadata=b"x" * 8)
    with pytest.raises(RuntimeError, match="worker-sync was not configured"):
        service.get_data_ready_sem_addr()


def test_other_systems_have_no_cores_for_services():
    device = ttnn.open_device(device_id=0)

    with pytest.raises(RuntimeError, match="no claimable service core on device at coord"):
        ttnn.H2DStreamService(device, spec())
    ttnn.close_device(device)
