"""Writes that reach only some chips of a mesh: the others keep what they hold."""

from __future__ import annotations

from collections.abc import Collection

from ttmesh.chip.cells import Chips
from ttmesh.mesh.queue.command_queue import Body, Cells


def on_chips(body: Body, chips: Chips, lane_shape: tuple[int, ...], unseen: Collection[int] = ()) -> Body:
    """A command's body that writes these chips alone.

    The body works on copies of the written cells: what other chips hold is never anything else, also for a command of
    another queue that runs meanwhile.

    Args:
        unseen: which of the written cells nobody can look at on other chips; while empty they need no merge.
    """

    def partly(reads: Cells, writes: Cells) -> None:
        results = [cell.copy() for cell in writes]
        body(reads, results)
        for i, (cell, result) in enumerate(zip(writes, results, strict=True)):
            if i in unseen and cell.is_empty():
                cell.take(result)
            else:
                cell.merge(result, chips, lane_shape)

    return partly
