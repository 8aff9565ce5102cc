"""Sockets between the host and a core: pages arrive in order, whoever is early waits, memory and refusals are TT-NN's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings

SCHEDULES = ["eager", "async", "adversarial"]
VALUES = torch.arange(8 * 16, dtype=torch.int32).reshape(8, 16)  # pages of 64 B


@pytest.fixture(params=["n150", "p150"])
def mesh(request: pytest.FixtureRequest) -> Iterator[ttnn.MeshDevice]:
    settings.override("TTMESH_SYSTEM", request.param)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    yield mesh
    ttnn.close_mesh_device(mesh)


def core(row: int = 0, column: int = 0, x: int = 0) -> ttnn.MeshCoreCoord:
    return ttnn.MeshCoreCoord(ttnn.MeshCoordinate(row, column), ttnn.CoreCoord(x, 0))


def to_device(mesh: ttnn.MeshDevice, fifo: int, page: int = 64) -> ttnn.H2DSocket:
    socket = ttnn.H2DSocket(mesh, core(), ttnn.BufferType.L1, fifo, ttnn.H2DMode.HOST_PUSH)
    socket.set_page_size(page)
    return socket


def to_host(mesh: ttnn.MeshDevice, fifo: int, page: int = 64) -> ttnn.D2HSocket:
    socket = ttnn.D2HSocket(mesh, core(x=1), fifo)
    socket.set_page_size(page)
    return socket


def put(mesh: ttnn.MeshDevice, values: torch.Tensor, dtype: ttnn.DataType = ttnn.uint32, **how: object) -> ttnn.Tensor:
    how = {"layout": ttnn.ROW_MAJOR_LAYOUT, "memory_config": ttnn.L1_MEMORY_CONFIG, **how}
    return ttnn.from_torch(values, dtype=dtype, device=mesh, **how)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("fifo", [128, 4096], ids=["smaller than the tensor", "larger"])
def test_pages_pass_through_the_chip_in_order(schedule: str, fifo: int) -> None:
    settings.override("TTMESH_SCHEDULE", schedule)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    source, target = to_device(mesh, fifo), to_host(mesh, fifo)
    for step in range(4):
        tensor = put(mesh, torch.zeros_like(VALUES))
        ttnn.experimental.recv_async_h2d(tensor, source)
        source.write_tensor(VALUES + step)
        source.barrier()
        ttnn.experimental.send_async_d2h(tensor, target)
        read = torch.zeros_like(VALUES)
        for rows in read.split(2):  # several reads of one send
            target.read_tensor(rows)
        ttnn.synchronize_device(mesh)

        assert torch.equal(read, VALUES + step)
    ttnn.close_mesh_device(mesh)


@pytest.mark.parametrize("dtype", [ttnn.bfloat16, ttnn.bfloat8_b, ttnn.float32])
def test_tiles_cross_in_the_bytes_of_their_format(mesh: ttnn.MeshDevice, dtype: ttnn.DataType) -> None:
    values = torch.randn(64, 96)
    host = ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT)
    tensor = put(mesh, torch.zeros(64, 96), dtype, layout=ttnn.TILE_LAYOUT)
    page = tensor.buffer_aligned_page_size()
    source, target = to_device(mesh, 2 * page, page), to_host(mesh, 8 * page, page)
    back = ttnn.from_torch(torch.zeros(64, 96), dtype=dtype, layout=ttnn.TILE_LAYOUT)

    ttnn.experimental.recv_async_h2d(tensor, source)
    source.write_tensor(host)
    ttnn.experimental.send_async_d2h(tensor, target)
    target.read_tensor(back)

    assert torch.equal(ttnn.to_torch(back), ttnn.to_torch(host))
    assert torch.equal(ttnn.to_torch(tensor), ttnn.to_torch(host))


def test_only_the_chip_of_the_socket_is_written_and_the_host_link_counts() -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    source = ttnn.H2DSocket(mesh, core(1, 2), ttnn.BufferType.L1, 1024, ttnn.H2DMode.HOST_PUSH)
    source.set_page_size(64)
    tensor = put(mesh, torch.zeros_like(VALUES))

    source.write_tensor(VALUES)
    ttnn.experimental.recv_async_h2d(tensor, source)

    shards = [ttnn.to_torch(shard).to(torch.int32) for shard in ttnn.get_device_tensors(tensor)]
    assert [bool(shard.any()) for shard in shards] == [False] * 6 + [True, False]
    assert torch.equal(shards[6], VALUES)
    ttnn.close_mesh_device(mesh)


def test_a_trace_takes_the_pages_of_the_moment_it_is_replayed(mesh: ttnn.MeshDevice) -> None:
    source, target = to_device(mesh, 1024), to_host(mesh, 1024)
    tensor = put(mesh, torch.zeros_like(VALUES))
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    ttnn.experimental.recv_async_h2d(tensor, source)
    ttnn.experimental.send_async_d2h(tensor, target)
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for step in range(2):
        source.write_tensor(VALUES + step)
        ttnn.execute_trace(mesh, trace, cq_id=0)
        read = torch.zeros_like(VALUES)
        target.read_tensor(read)
        assert torch.equal(read, VALUES + step)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_wait_that_nobody_ends_is_an_error_that_says_what_is_missing(schedule: str) -> None:
    settings.override("TTMESH_SCHEDULE", schedule)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    source, target = to_device(mesh, 128), to_host(mesh, 128)
    with pytest.raises(
        RuntimeError, match=r"deadlock: the host waits for room in the FIFO of an H2DSocket.*recv_async_h2d"
    ):
        source.write_tensor(VALUES)
    with pytest.raises(RuntimeError, match="Timeout waiting for device to send acknowledgement over H2D socket"):
        source.barrier(10)
    with pytest.raises(RuntimeError, match=r"deadlock: the host waits for a page in a D2HSocket.*send_async_d2h"):
        target.read_tensor(VALUES.clone())
    ttnn.experimental.send_async_d2h(put(mesh, VALUES), target)
    with pytest.raises(RuntimeError, match=r"deadlock: .*send_async_d2h waits for the host to read from a D2HSocket"):
        ttnn.synchronize_device(mesh)
    with pytest.raises(RuntimeError, match="Timeout waiting for host to acknowledge data over D2H socket"):
        target.barrier(10)
    with pytest.raises(RuntimeError, match="deadlock: the host waits for itself to read from a D2HSocket"):
        target.barrier()
    assert target.discard_pending_pages() == 8
    target.barrier()
    ttnn.synchronize_device(mesh)
    ttnn.close_mesh_device(mesh)


def test_room_is_free_once_the_sender_is_told(mesh: ttnn.MeshDevice) -> None:
    target, read = to_host(mesh, 512), torch.zeros_like(VALUES)
    ttnn.experimental.send_async_d2h(put(mesh, VALUES), target)
    target.read_tensor(read[:4], notify_sender=False)
    ttnn.experimental.send_async_d2h(put(mesh, VALUES[:2]), target)
    with pytest.raises(RuntimeError, match="send_async_d2h waits for the host to read"):
        ttnn.synchronize_device(mesh)

    target.read_tensor(read[4:])
    ttnn.synchronize_device(mesh)

    assert torch.equal(read, VALUES)
    assert target.has_data()


def test_sockets_take_the_l1_that_they_take_in_ttnn_and_give_it_back(mesh: ttnn.MeshDevice) -> None:
    """Distances as TT-NN 0.81.1 has them: 64 B for the counters, the FIFO and room to align it on every core."""
    alignment = {"n150": 32, "p150": 64}[settings.get_str("TTMESH_SYSTEM")]
    free = put(mesh, VALUES[:1]).buffer_address()
    source = ttnn.H2DSocket(mesh, core(), ttnn.BufferType.L1, 4096, ttnn.H2DMode.HOST_PUSH)
    assert put(mesh, VALUES[:1]).buffer_address() == free - 64 - 4096 - alignment
    target = ttnn.D2HSocket(mesh, core(), 4096)
    assert target.get_config_buffer_address() == source.get_config_buffer_address() - 4096 - alignment - 64
    pulled = ttnn.H2DSocket(mesh, core(), ttnn.BufferType.L1, 4096, ttnn.H2DMode.DEVICE_PULL)
    assert put(mesh, VALUES[:1]).buffer_address() == free - 64 - 4096 - alignment - 64 - 64
    del source, target, pulled
    assert put(mesh, VALUES[:1]).buffer_address() == free
    assert repr(core()) == "MeshCoreCoord(device=MeshCoordinate([0, 0]), core=(0,0))"


def test_wrong_sockets_and_tensors_are_refused_in_the_words_of_ttnn(mesh: ttnn.MeshDevice) -> None:
    def make(fifo: int, memory: ttnn.BufferType = ttnn.BufferType.L1, at: ttnn.MeshCoreCoord | None = None) -> object:
        return ttnn.H2DSocket(mesh, at or core(), memory, fifo, ttnn.H2DMode.HOST_PUSH)

    tensor, socket = put(mesh, VALUES), to_device(mesh, 256)
    pulled = ttnn.H2DSocket(mesh, core(), ttnn.BufferType.L1, 256, ttnn.H2DMode.DEVICE_PULL)
    unset = ttnn.D2HSocket(mesh, core(), 256)
    wide = put(mesh, torch.zeros(4, 32, dtype=torch.int32))
    receive, send = ttnn.experimental.recv_async_h2d, ttnn.experimental.send_async_d2h
    for call, text in (
        (lambda: make(100), "FIFO size must be PCIE-aligned."),
        (lambda: ttnn.D2HSocket(mesh, core(), 100), "FIFO size must be PCIe-aligned."),
        (lambda: make(256, ttnn.BufferType.DRAM), "H2D sockets currently only support data buffers in SRAM."),
        (lambda: make(256, at=core(x=99)), r"Invalid shard grid: shard core \(99, 0\) has no L1 bank on this device"),
        (lambda: make(256, at=core(0, 5)), r"Coordinate MeshCoordinate\(\[0, 5\]\) not found in mesh MeshShape\(\[1, 1\]\)"),
        (lambda: socket.set_page_size(10), "Page size must be PCIE-aligned."),
        (lambda: socket.set_page_size(512), "Page size must be less than or equal to the FIFO size."),
        (lambda: unset.read_tensor(VALUES), "read_tensor: page_size must be set before calling read_tensor"),
        (lambda: socket.write_tensor(VALUES[0, :10]), r"tensor data size \(40\) is not a multiple of page_size \(64\)"),
        (lambda: socket.write_tensor(tensor), r"write_tensor: tensor must be on host \(HostStorage\)"),
        (lambda: receive(tensor, pulled), "recv_async_h2d currently onlys supports HOST_PUSH H2DMode"),
        (lambda: receive(wide, socket), r"H2DSocket page size \(64\) must equal output tensor aligned page size \(128\)"),
        (lambda: send(wide, to_host(mesh, 256)), r"D2HSocket page size \(64\) must equal input tensor aligned page size"),
        (lambda: send(tensor.cpu(), unset), "Device Operations expect device tensors as inputs"),
        (lambda: ttnn.H2DSocket.connect("other"), "a socket whose host end is in another process is not emulated"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=text):
            call()
    with pytest.raises(TypeError, match="incompatible function arguments"):
        receive(tensor, None)


def test_a_transfer_is_one_program_per_socket_and_spec(mesh: ttnn.MeshDevice) -> None:
    source, tensor = to_device(mesh, 1024), put(mesh, VALUES)
    before = mesh.num_program_cache_entries()
    for _ in range(2):
        source.write_tensor(VALUES)
        ttnn.experimental.recv_async_h2d(tensor, source)
    assert mesh.num_program_cache_entries() == before + 1
