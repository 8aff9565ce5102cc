"""Circular buffers of collectives on the cores that feed links: pages as many as fit a packet, several packets deep."""

from __future__ import annotations

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.buffers.movement_buffers import slice_buffers
from ttmesh.ops.buffers.pages import L1_ALIGNMENT, align, page_of, row_bytes
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule

PACKET = 4352  # bytes of a fabric packet's payload on Wormhole
PACKET_AND_HEADER, PACKET_OF_BFLOAT16 = 4400, 4096
HEADERS = 192  # of point_to_point
DEEP = 3  # packets on the way


def _page_bytes(program: ProgramCall) -> int:
    spec = program.inputs[0]
    return page_of(spec) if spec.layout is Layout.TILE else max(row_bytes(spec, program.arch), 1)


def _packet_bytes(program: ProgramCall) -> int:
    """Whole pages, as many as fit a packet; one that does not fit goes in several."""
    size = _page_bytes(program)
    return max(PACKET // size, 1) * size


@buffer_rule("all_gather")
def all_gather_buffers(program: ProgramCall) -> int:
    """Nine packets of tiles, three of rows."""
    return (DEEP if program.inputs[0].layout is Layout.ROW_MAJOR else 9) * _packet_bytes(program)


@buffer_rule(
    "all_gather_async",
    "all_gather_async_reversed",
    "all_gather_matmul_async",
    "all_gather_minimal_matmul_async",
    "llama_all_gather_matmul_async",
    "strided_all_gather_async",
    "strided_all_gather_minimal_matmul_async",
)
def all_gather_async_buffers(program: ProgramCall) -> int:
    """Three packets."""
    return DEEP * _packet_bytes(program)


@buffer_rule("all_broadcast", "broadcast")
def broadcast_buffers(program: ProgramCall) -> int:
    """Three packets; of rows not more than two in each."""
    size = _page_bytes(program)
    if program.inputs[0].layout is Layout.TILE:
        return DEEP * _packet_bytes(program)
    return DEEP * size * max(min(PACKET // size, 2), 1)


@buffer_rule("point_to_point")
def point_to_point_buffers(program: ProgramCall) -> int:
    """A packet, three of its pages, and the headers; long pages go in several packets."""
    spec = program.inputs[0]
    size = align(spec.page_size_bytes, L1_ALIGNMENT)
    most = PACKET_OF_BFLOAT16 if spec.dtype is DataType.BFLOAT16 else PACKET_AND_HEADER
    packet = most // size * size if size <= most else most
    return HEADERS + packet + DEEP * max(packet, size)


@buffer_rule("mesh_partition")
def mesh_partition_buffers(program: ProgramCall) -> int:
    """A slice, on every chip another one: the second begins where the first ends."""
    first = program.results[0].shape
    return slice_buffers(program._replace(options={"slice_start": tuple(first)}))


@buffer_rule(
    "strided_reduce_scatter_async",
    "matmul_reduce_scatter_async",
    "minimal_matmul_strided_reduce_scatter_async",
    fused=True,
)
@buffer_rule("reduce_scatter", "reduce_scatter_minimal_async", "all_reduce")
def reduce_scatter_buffers(program: ProgramCall) -> int:
    """What arrives, what is there, the sum, and what is sent on: three times four packets each, at most 24 tiles."""
    size = page_of(program.inputs[0])
    return 4 * DEEP * min(4 * max(PACKET // size, 1), 8) * size
