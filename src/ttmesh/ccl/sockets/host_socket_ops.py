"""Operations that move a tensor's pages between one chip and the host, through a socket."""

from __future__ import annotations

import torch

from ttmesh.base.errors import MeshError, require
from ttmesh.base.link_notation import HOST
from ttmesh.ccl.planning.collective_call import collective
from ttmesh.ccl.planning.plan_traffic import Loads
from ttmesh.ccl.sockets.host_sockets import D2HSocket, H2DMode, H2DSocket
from ttmesh.ccl.sockets.page_socket import PageSocket
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.mesh.queue.partial_writes import restrict_to_chips
from ttmesh.tensor.distribution.composers import lane_at
from ttmesh.tensor.tensor import Tensor

RECEIVE, SEND = "ttnn.experimental.recv_async_h2d", "ttnn.experimental.send_async_d2h"


@collective(RECEIVE)
def recv_async_h2d(output_tensor: Tensor, h2d_socket: H2DSocket) -> list[Tensor]:
    """Fill a tensor on the socket's chip with the pages that the host writes."""
    require(
        h2d_socket.get_h2d_mode() is H2DMode.HOST_PUSH,
        f"recv_async_h2d currently onlys supports HOST_PUSH H2DMode, but got H2DMode::{h2d_socket.get_h2d_mode().name}",
        "a socket with HOST_PUSH",
        "Make the socket with ttnn.H2DMode.HOST_PUSH.",
    )
    mesh = _check(RECEIVE, output_tensor, h2d_socket, "H2DSocket", "output")
    spec, count, page_bytes = output_tensor.spec, output_tensor.buffer_num_pages(), output_tensor.buffer_page_size()
    axes, device = len(mesh.shape), mesh.backend.device
    counters, loads = mesh.traffic.counters, _count_bytes(mesh, h2d_socket, count, to_chip=True)

    def body(reads: Cells, writes: Cells) -> None:
        pages = [page[:page_bytes] for page in h2d_socket.take(count)]
        raw = torch.cat(pages).reshape(*[1] * axes, -1).to(device)
        writes[0].write(spec.from_bytes(raw, axes), spec)
        counters.add(loads)

    coord = tuple(h2d_socket.get_active_cores()[0].device_coord)
    receive = body if mesh.shape.mesh_size() == 1 else restrict_to_chips(body, frozenset([coord]), mesh.lane_shape)
    mesh.launch(
        Command(
            RECEIVE, receive, (), (output_tensor.buffer.cell,), programs=1, ready=lambda: h2d_socket.claim(count),
            waits_for="the host to write to an H2DSocket", offers=True,
        )
    )  # fmt: skip
    return [output_tensor]


@collective(SEND)
def send_async_d2h(input_tensor: Tensor, d2h_socket: D2HSocket) -> list[Tensor]:
    """Send the pages of a tensor on the socket's chip to the host; ends when the FIFO holds what the host has not read."""
    mesh = _check(SEND, input_tensor, d2h_socket, "D2HSocket", "input")
    page_bytes, aligned_bytes = input_tensor.buffer_page_size(), input_tensor.buffer_aligned_page_size()
    coord = tuple(d2h_socket.get_active_cores()[0].device_coord)
    counters, loads = (
        mesh.traffic.counters,
        _count_bytes(mesh, d2h_socket, input_tensor.buffer_num_pages(), to_chip=False),
    )

    def body(reads: Cells, writes: Cells) -> None:
        raw = lane_at(reads[0].read_bytes(), coord)
        pages = raw if raw.device.type == "meta" else raw.cpu()
        padded = torch.nn.functional.pad(pages.reshape(-1, page_bytes), (0, aligned_bytes - page_bytes))
        d2h_socket.put(list(padded.clone()))
        counters.add(loads)

    waits_for = "the host to read from a D2HSocket"
    mesh.launch(Command(SEND, body, (input_tensor.buffer.cell,), (), programs=1))
    mesh.launch(Command(SEND, lambda reads, writes: None, ready=d2h_socket.is_sent, waits_for=waits_for))
    return []


def _check(name: str, tensor: Tensor, socket: PageSocket, kind: str, role: str) -> MeshDevice:
    """Refuse as TT-NN does; count the device program."""
    short_name, mesh = name.rpartition(".")[2], tensor.device()
    if mesh is None:
        raise MeshError(
            "Device Operations expect device tensors as inputs",
            expected="a device tensor",
            fix="Move it with to_device().",
        )
    page, aligned = socket.get_page_size(), tensor.buffer_aligned_page_size()
    require(
        page in (0, aligned),
        f"{short_name}: {kind} page size ({page}) must equal {role} tensor aligned page size ({aligned}) when set",
        f"{aligned} B",
        "Call set_page_size() with the tensor's aligned page size.",
    )
    mesh.program_cache.compile(name, [(name, socket.get_config_buffer_address(), tensor.kind.spec)])
    return mesh


def _count_bytes(mesh: MeshDevice, socket: PageSocket, pages: int, *, to_chip: bool) -> Loads:
    """The bytes of one transfer between the host and the socket's chip."""
    chip, loads = mesh.chip_at(socket.get_active_cores()[0].device_coord), Loads()
    loads[(HOST, chip) if to_chip else (chip, HOST)] = pages * socket.get_page_size()
    return loads
