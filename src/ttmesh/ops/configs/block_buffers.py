"""Whether the blocks of a minimal matmul fit the cores' L1."""

from __future__ import annotations

from ttmesh.base.dtypes import BufferType, DataType
from ttmesh.base.errors import require
from ttmesh.chip.formats.tiles import tile_bytes
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BLOCK = 8 * 8  # tiles of the default blocks


def check_buffers(call: Call, x: TensorSpec, weight: TensorSpec, *, rows: int = 0, blocks: int = 0) -> None:
    """Raise where the default blocks do not fit L1: two of each operand and of the result, and one of sums.

    Args:
        rows: how many operands hold one row of tiles of a block.
        blocks: how many further operands hold one block.
    """
    if call["config"] is not None:
        return
    tile = tile_bytes(x.dtype, x.tile)
    sums = BLOCK * tile_bytes(DataType.FLOAT32, x.tile)
    size = 2 * BLOCK * (2 * tile + tile_bytes(weight.dtype, weight.tile)) + sums + (8 * rows + BLOCK * blocks) * tile
    memory, grid = call.mesh.heap.map, call.mesh.compute_with_storage_grid_size()
    end = memory.banks[BufferType.L1].start + size
    wrong = (
        f"Statically allocated dataflow buffers on core range [0-0 - {grid.x - 1}-{grid.y - 1}] grow to {end} B which is "
        f"beyond max L1 size of {memory.l1_bytes} B"
    )
    require(end <= memory.l1_bytes, wrong, "blocks that fit", "Pass config= with smaller blocks, or use bfloat16.")
