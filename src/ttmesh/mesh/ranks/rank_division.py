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
    """The number of blocks along each axis; rank i of the mesh holds the i-th block, row-major.

    A described host topology with this number of ranks is used as it is. Otherwise each prime factor of the number of
    ranks, the largest first, divides the axis whose blocks are longest at that point (of two equal ones the later): 2x8
    over 2 ranks becomes two blocks of 2x4, as in TT-Metal's descriptor of two connected T3000.
    """
    for grid in described:
        if len(grid) == len(shape) and prod(grid) == ranks:
            if any(n % blocks for n, blocks in zip(shape, grid, strict=True)):
                raise _make_uneven_error(shape, ranks, f"host_topology {list(grid)}")
            return grid
    grid_shape, block = [1] * len(shape), list(shape)
    for factor in _find_prime_factors(ranks):
        divisible = [axis for axis, n in enumerate(block) if n % factor == 0]
        if not divisible:
            raise _make_uneven_error(shape, ranks, f"{ranks} ranks")
        axis = max(divisible, key=lambda a: (block[a], a))
        grid_shape[axis] *= factor
        block[axis] //= factor
    return tuple(grid_shape)


def read_host_topologies(descriptor: str) -> list[Grid]:
    """Every host topology in a mesh graph descriptor file; empty without a file."""
    if not descriptor:
        return []
    try:
        text = read_text(Path(descriptor))
        return [tuple(int(n) for n in found.split(",") if n.strip()) for found in HOST_TOPOLOGY.findall(text)]
    except (DocumentError, ValueError) as problem:
        raise RankError(
            f"TT_MESH_GRAPH_DESC_PATH={descriptor} {str(problem)[:200]}",
            expected="a mesh graph descriptor",
            fix="Correct the path, or unset the variable.",
        ) from None


def divide_box(
    shape: Sequence[int], grid: Grid, start: Sequence[int], extent: Sequence[int]
) -> tuple[Grid, Grid, Grid] | None:
    """How ranks divide a box inside a divided mesh: the first rank along each axis, how many, and the shape of a block.

    None where the blocks would have different sizes.
    """
    first, count, block = list[int](), list[int](), list[int]()
    for n, ranks, low, length in zip(shape, grid, start, extent, strict=True):
        size = n // ranks
        held = [min(low + length, (i + 1) * size) - max(low, i * size) for i in range(ranks)]
        holding = [i for i, width in enumerate(held) if width > 0]
        if len({held[i] for i in holding}) != 1:
            return None
        first.append(holding[0])
        count.append(len(holding))
        block.append(held[holding[0]])
    return tuple(first), tuple(count), tuple(block)


def _find_prime_factors(number: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    found, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found[::-1]


def _make_uneven_error(shape: Sequence[int], ranks: int, by: str) -> ShapeError:
    return ShapeError(
        f"a mesh of {'x'.join(map(str, shape))} cannot be divided by {by} into equal blocks",
        expected=f"a shape that {ranks} ranks divide",
        fix="Open a mesh whose extents these ranks divide, or start another number of ranks.",
    )
