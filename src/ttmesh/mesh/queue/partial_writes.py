"""Commands that write only some chips of a mesh: the others keep their values."""

from __future__ import annotations

from collections.abc import Collection

from ttmesh.chip.cells import Chips
from ttmesh.mesh.queue.command_queue import Body, Cells


def restrict_to_chips(body: Body, chips: Chips, lane_shape: tuple[int, ...], unseen: Collection[int] = ()) -> Body:
    """A command's body that writes these chips only.

    The body works on copies of the written cells, so that other chips' values never change, not even while a command
    of another queue reads them.

    Args:
        unseen: indices of written cells that nothing can read on other chips; while empty they need no merge.
    """

    def write_chips(reads: Cells, writes: Cells) -> None:
        results = [cell.copy() for cell in writes]
        body(reads, results)
        for i, (cell, result) in enumerate(zip(writes, results, strict=True)):
            if i in unseen and cell.is_empty():
                cell.take(result)
            else:
                cell.merge(result, chips, lane_shape)

    return write_chips
