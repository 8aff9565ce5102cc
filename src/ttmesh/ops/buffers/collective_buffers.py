"""Circular buffers of collectives on the cores that feed links: pages as many as fit a packet, several packets deep."""

from __future__ import annotations

from ttmesh.base.dtypes import Layout
from ttmesh.ops.buffers.pages import page_of, row_bytes
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule

PACKET = 4352  # bytes of a fabric packet's payload on Wormhole
REDUCED_TILES = 96  # four buffers of three times eight tiles


def _packet_pages(program: ProgramCall) -> tuple[int, int]:
    """Pages in a packet, and the bytes of one."""
    spec = program.inputs[0]
    size = page_of(spec) if spec.layout is Layout.TILE else max(row_bytes(spec, program.arch), 1)
    return max(PACKET // size, 1), size


@buffer_rule("all_gather")
def all_gather_buffers(program: ProgramCall) -> int:
    """Nine packets."""
    pages, size = _packet_pages(program)
    return 9 * pages * size


@buffer_rule("all_gather_async")
def all_gather_async_buffers(program: ProgramCall) -> int:
    """Three packets."""
    pages, size = _packet_pages(program)
    return 3 * pages * size


@buffer_rule("reduce_scatter", "reduce_scatter_minimal_async", "all_reduce")
def reduce_scatter_buffers(program: ProgramCall) -> int:
    """What comes, what is there, the sum, and what goes on."""
    return REDUCED_TILES * page_of(program.inputs[0])
