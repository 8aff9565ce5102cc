"""Sockets' ends while several threads use them, and sends that a trace replays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from ccl_meshes import lanes_of, on, random_lanes

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.dtypes import BufferType, Layout, bfloat16
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.ccl.sockets.mesh_sockets import create_socket_pair
from ttmesh.ccl.sockets.socket_channels import Message
from ttmesh.ccl.sockets.socket_config import (
    MeshCoreCoord,
    SocketConfig,
    SocketConnection,
    SocketMemoryConfig,
    SocketRoutes,
)
from ttmesh.ccl.sockets.stream_ends import Outgoing
from ttmesh.chip.cells import Cell, Room
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import open_mesh_device
from ttmesh.mesh.functions.process_fabric import set_fabric_config
from ttmesh.tensor.spec.tensor_spec import TensorSpec

LOCAL = (1, 1, 32, 64)
SPEC = TensorSpec(LOCAL, bfloat16, Layout.ROW_MAJOR)


class HeldLink:
    """A connection whose sends end when the test says so; `at_send` runs inside each of them."""

    def __init__(self) -> None:
        self.at_send: Callable[[], None] = lambda: None
        self.ended = False

    def start_send(self, tensor: torch.Tensor, peer: int, **how: object) -> Callable[[], bool]:
        self.at_send()
        return lambda: self.ended

    def finish(self, done: Callable[[], bool], peer: int, **how: object) -> None:
        while not done():
            time.sleep(0.001)

    def hurry(self, waiting: bool) -> None: ...

    def mark_idle(self) -> None: ...

    def close(self) -> None: ...


def make_cell() -> Cell:
    cell = Cell(1, Room(BufferType.DRAM, 4096, 4096, 4096, 1), 0, "test", 1, torch.device("cpu"))
    cell.write(torch.ones(2, *LOCAL, dtype=torch.bfloat16), SPEC)
    return cell


@pytest.fixture
def link() -> HeldLink:
    return HeldLink()


@pytest.fixture
def stream(link: HeldLink) -> Iterator[Outgoing]:
    routes = SocketRoutes((((0,), (0,)), ((1,), (1,))), (2,), (2,))
    stream = Outgoing(link, 1, 0, "socket", routes, lambda: None, 1 << 20)  # type: ignore[arg-type]
    yield stream
    link.ended = True
    stream.close()
    stream.flush()


def test_a_message_is_kept_until_its_sends_end_whichever_thread_looks_meanwhile(
    link: HeldLink, stream: Outgoing
) -> None:
    others: list[threading.Thread] = []

    def look_from_another_thread() -> None:
        other = threading.Thread(target=stream._poll)
        other.start()
        others.append(other)
        other.join(0.05)  # it waits for the lock that `put` holds, with what it has seen so far

    link.at_send = look_from_another_thread
    stream.put(Message(SPEC, 4096), [make_cell()])
    for other in others:
        other.join()

    assert stream.busy()  # dropping it would free memory that the engine still reads
    link.ended = True
    stream.flush()
    assert not stream.busy()


def test_a_message_put_while_the_streams_thread_finishes_is_polled_by_it(link: HeldLink, stream: Outgoing) -> None:
    advance = stream._advance
    sent = threading.Event()

    def advance_and_let_others_put(ended: Callable[..., bool]) -> None:
        advance(ended)
        if not sent.is_set():
            program = threading.Thread(target=stream.put, args=(Message(SPEC, 4096), [make_cell()]))
            program.start()
            program.join()
            sent.set()

    stream._advance = advance_and_let_others_put  # type: ignore[method-assign]
    link.ended = True
    stream.hand_over()
    assert sent.wait(30)

    with stream._changed:
        assert stream._changed.wait_for(lambda: not stream.busy(), 30)


@pytest.fixture
def pair() -> Iterator[tuple[MeshDevice, MeshDevice]]:
    settings.override("TTMESH_SCHEDULE", "adversarial")
    settings.override("TTMESH_SYSTEM", "t3000")
    set_fabric_config(FabricConfig.FABRIC_1D)
    mesh = open_mesh_device(MeshShape(1, 8), num_command_queues=2, trace_region_size=1 << 20)
    yield tuple(mesh.create_submesh(MeshShape(1, 4), MeshCoordinate(0, at)) for at in (0, 4))  # type: ignore[misc]
    mesh.close()
    set_fabric_config(FabricConfig.DISABLED)


def test_a_replayed_send_offers_nothing_before_its_message_is_computed(pair: tuple[MeshDevice, MeshDevice]) -> None:
    sender, receiver = pair
    core = ttnn.CoreCoord(0, 0)
    ends = [MeshCoreCoord(MeshCoordinate(0, column), core) for column in range(4)]
    config = SocketConfig([SocketConnection(end, end) for end in ends], SocketMemoryConfig(BufferType.L1, 2048))
    out, into = create_socket_pair(sender, receiver, config)
    old, new = (random_lanes((1, 4), LOCAL, bfloat16, seed) for seed in (1, 2))
    tensor, result, other = (on(sender, values, bfloat16, layout=Layout.TILE) for values in (new, old, old))
    output = on(receiver, old, bfloat16, layout=Layout.TILE)
    ttnn.neg(tensor, output_tensor=result)
    ttnn.synchronize_device(sender)
    trace = ttnn.begin_trace_capture(sender, cq_id=0)
    ttnn.neg(tensor, output_tensor=result)
    ttnn.experimental.send_async(result, out)
    ttnn.end_trace_capture(sender, trace, cq_id=0)
    ttnn.copy_host_to_device_tensor(ttnn.from_device(other), result, cq_id=0)
    ttnn.synchronize_device(sender)

    ttnn.execute_trace(sender, trace, cq_id=0, blocking=False)
    ttnn.from_device(other, queue_id=1)  # the schedule looks whether queue 0 can overwrite what queue 1 reads
    ttnn.experimental.recv_async(output, into)
    ttnn.synchronize_device(receiver)

    assert torch.equal(lanes_of(output), -new)
