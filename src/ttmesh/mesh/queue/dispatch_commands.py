"""Sizes of the dispatch commands that start a captured program.

A trace holds, for every program, the commands that the prefetcher reads out of DRAM. Which there are and how they are
packed is read off tt-metal e4f9f0b: `impl/program/dispatch.cpp` (assemble_device_commands,
write_program_command_sequence), `impl/dispatch/device_command_calculator.hpp` (sizes), `impl/dispatch/kernels/
cq_commands.hpp` (headers), `distributed/fd_mesh_command_queue.cpp` (record_end), `impl/trace/dispatch.cpp` (pages).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ttmesh.base.dtypes import Arch
from ttmesh.chip.memory import align_up

HOST_ALIGNMENTS = {Arch.BLACKHOLE: 64}  # of every command; 32 on Wormhole
L1_ALIGNMENT = 16
PREFETCH_BYTES = DISPATCH_BYTES = 16  # the headers of a command: CQPrefetchCmd, CQDispatchCmd
UNICAST_BYTES, MULTICAST_BYTES, LARGE_BYTES = 4, 8, 12  # one destination of a packed write
RING_BYTES = 8  # one piece out of the prefetcher's cache of binaries
LAUNCH_BYTES = 144  # launch_msg_t
WRITE_OFFSETS = 4  # of the command in front of every program
LARGE_LIMIT = 35  # destinations of one large write
TRACE_END_BYTES = PREFETCH_BYTES + DISPATCH_BYTES
PAGE_SIZES = (1024, 2048, 4096, 8192)  # of a trace buffer


class Group(NamedTuple):
    """Cores of a program that run the same kernels, and the bytes of runtime arguments of each core."""

    cores: int
    argument_bytes: int
    ranges: int = 1


class CapturedProgram(NamedTuple):
    """What a program writes: arguments to its groups, buffers and semaphores (payload), binaries per group."""

    groups: Sequence[Group]
    payload: int = 64
    binaries: int = 5  # reader, writer and three of the compute kernel; 2 for data movement


def host_alignment(arch: Arch) -> int:
    """The alignment of commands on chips of this architecture."""
    return HOST_ALIGNMENTS.get(arch, 32)


def compute_argument_bytes(group: Group, alignment: int = 32) -> int:
    """A packed write: the list of the cores, then every core's own runtime arguments."""
    if not group.cores or not group.argument_bytes:
        return 0
    places = align_up(group.cores * UNICAST_BYTES, L1_ALIGNMENT)
    arguments = group.cores * align_up(group.argument_bytes, L1_ALIGNMENT)
    return align_up(PREFETCH_BYTES + DISPATCH_BYTES + places + arguments, alignment)


def compute_launch_bytes(ranges: int, alignment: int) -> int:
    """A packed multicast of one launch message to every range of cores."""
    places = align_up(ranges * MULTICAST_BYTES, L1_ALIGNMENT)
    return align_up(PREFETCH_BYTES + DISPATCH_BYTES + places + ranges * LAUNCH_BYTES, alignment)


def _large_header(places: int) -> int:
    return PREFETCH_BYTES + align_up(DISPATCH_BYTES + places * LARGE_BYTES, L1_ALIGNMENT)


def compute_binary_bytes(pieces: int, alignment: int) -> int:
    """The commands that move a program's binaries from the prefetcher's cache to the cores, without their contents."""
    total = alignment  # fill the cache
    while pieces > 0:
        some = min(pieces, LARGE_LIMIT)
        total += align_up(_large_header(some), alignment) + align_up(PREFETCH_BYTES + some * RING_BYTES, alignment)
        pieces -= some
    return total


def compute_program_bytes(program: CapturedProgram, alignment: int) -> int:
    """All commands of one program; its binaries count as sent, and it waits once for an earlier program."""
    ranges = sum(group.ranges for group in program.groups) or 1
    offsets = align_up(PREFETCH_BYTES + DISPATCH_BYTES + WRITE_OFFSETS * 4, alignment)
    wait, go = alignment, 2 * alignment
    configuration = align_up(_large_header(ranges) + align_up(program.payload, L1_ALIGNMENT), alignment)
    return (
        offsets + wait + go + configuration + compute_launch_bytes(ranges, alignment)
        + sum(compute_argument_bytes(group, alignment) for group in program.groups)
        + compute_binary_bytes(program.binaries * ranges, alignment)
    )  # fmt: skip


def choose_page_bytes(size: int, banks: int) -> int:
    """The page size of a trace buffer: the largest that wastes least, or that every bank has two of."""
    chosen, least = PAGE_SIZES[0], None
    for page in PAGE_SIZES:
        waste = align_up(size, banks * page) - size
        if least is None or waste <= least or size // (banks * page) >= 2:
            chosen, least = page, waste
    return chosen
