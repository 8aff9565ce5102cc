"""apply_device_delay: delays of chips, which ttmesh checks and ignores."""

from __future__ import annotations

from ttmesh.base.errors import ShapeError
from ttmesh.ccl.planning.collective_call import collective
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Cells, Command


@collective("ttnn.apply_device_delay")
def apply_device_delay(mesh_device: MeshDevice, delays: list[list[int]]) -> None:
    """A program that makes each chip wait for some cycles; ttmesh emulates no time, so it is only enqueued."""
    row_lengths = [len(row) for row in delays]
    rows, cols = mesh_device.shape.to_tuple()[:2]
    if row_lengths != [cols] * rows:
        raise ShapeError(
            f"delays for rows of {row_lengths} devices",
            expected=f"{rows} rows of {cols}",
            fix="Give one number per device.",
        )
    name = "ttnn.apply_device_delay"
    mesh_device.program_cache.compile(name, ((name, tuple(map(tuple, delays))),))
    mesh_device.launch(Command(name, _do_nothing, programs=1))


def _do_nothing(reads: Cells, writes: Cells) -> None:
    """Do nothing: a delay changes no values."""
