"""How ranks divide a mesh between them: equal blocks, as pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

from ttmesh.base.documents import DocumentError, read_text
from ttmesh.base.errors import RankError, ShapeError

Grid = tuple[int, ...]

# Of a mesh graph descriptor: `host_topology { dims: [ 1, 2 ] }` (textproto) or `host_topology: [1, 2]` (YAML).
HOST_TOPOLOGY = re.compile(r"host_topology\W*(?:dims\W*)?\[([0-9,\s]+)\]")


def compute_rank_grid(shape: Sequence[int], ranks: int, described: Sequence[Grid] = ()) -> Grid:
    """How many blocks each axis is cut into; rank i of the mesh has the i-th block, row-major.

    A described host topology that fits decides. Otherwise each prime factor of the number of ranks, the largest first,
    cuts the axis whose blocks are longest then (the later one of two): 2x8 over 2 ranks is two blocks of 2x4, as in
    TT-Metal's descriptor of two joined T3000.
    """
    for grid in described:
        if len(grid) == len(shape) and prod(grid) == ranks:
            if any(n % cuts for n, cuts in zip(shape, grid, strict=True)):
                raise _uneven(shape, ranks, f"host_topology {list(grid)}")
            return grid
    cuts_of, block = [1] * len(shape), list(shape)
    for factor in _prime_factors(ranks):
        able = [axis for axis, n in enumerate(block) if n % factor == 0]
        if not able:
            raise _uneven(shape, ranks, f"{ranks} ranks")
        axis = max(able, key=lambda a: (block[a], a))
        cuts_of[axis] *= factor
        block[axis] //= factor
    return tuple(cuts_of)


def read_host_topologies(descriptor: str) -> list[Grid]:
    """Every host topology that a mesh graph descriptor file names; none without a file."""
    if not descriptor:
        return []
    try:
        text = read_text(Path(descriptor))
        return [tuple(int(n) for n in found.split(",") if n.strip()) for found in HOST_TOPOLOGY.findall(text)]
    except (DocumentError, ValueError) as problem:
        raise RankError(
            f"TT_MESH_GRAPH_DESC_PATH={descriptor} {str(problem)[:200]}",
            expected="a mesh graph descriptor",
            fix="Correct or unset it.",
        ) from None


def divide_box(
    shape: Sequence[int], grid: Grid, start: Sequence[int], extent: Sequence[int]
) -> tuple[Grid, Grid, Grid] | None:
    """What ranks hold of a box inside a divided mesh: the first of them along each axis, how many, and their blocks.

    None where they would hold blocks of different sizes.
    """
    first, count, block = list[int](), list[int](), list[int]()
    for n, cuts, low, length in zip(shape, grid, start, extent, strict=True):
        size = n // cuts
        held = [min(low + length, (i + 1) * size) - max(low, i * size) for i in range(cuts)]
        holding = [i for i, width in enumerate(held) if width > 0]
        if len({held[i] for i in holding}) != 1:
            return None
        first.append(holding[0])
        count.append(len(holding))
        block.append(held[holding[0]])
    return tuple(first), tuple(count), tuple(block)


def _prime_factors(number: int) -> list[int]:
    """Largest first."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found[::-1]


def _uneven(shape: Sequence[int], ranks: int, by: str) -> ShapeError:
    return ShapeError(
        f"a mesh of {'x'.join(map(str, shape))} cannot be divided by {by} into equal blocks",
        expected=f"a shape that {ranks} ranks divide",
        fix="Open another shape or start another number of ranks.",
    )
