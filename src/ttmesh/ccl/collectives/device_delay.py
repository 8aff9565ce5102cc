"""apply_device_delay: chips that start late."""

from __future__ import annotations

from ttmesh.base.errors import ShapeError
from ttmesh.ccl.planning.collective_call import collective
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Cells, Command


@collective("ttnn.apply_device_delay")
def apply_device_delay(mesh_device: MeshDevice, delays: list[list[int]]) -> None:
    """A program that lets each chip wait so many cycles: time does not pass on chips here, so it only takes its turn."""
    form = [len(row) for row in delays]
    rows, cols = mesh_device.shape.to_tuple()[:2]
    if form != [cols] * rows:
        raise ShapeError(
            f"delays for rows of {form} devices", expected=f"{rows} rows of {cols}", fix="Give one number per device."
        )
    name = "ttnn.apply_device_delay"
    mesh_device.program_cache.compile(name, ((name, tuple(map(tuple, delays))),))
    mesh_device.launch(Command(name, _nothing, programs=1))


def _nothing(reads: Cells, writes: Cells) -> None:
    """Waiting changes nothing."""
