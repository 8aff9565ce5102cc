from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ttmesh.base import settings
from ttmesh.base.geometry import MeshCoordinateRange, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice, list_open_meshes
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.programs.execution.workload import MeshWorkload, enqueue_mesh_workload
from ttmesh.programs.program import Program


@pytest.fixture
def mesh() -> Iterator[MeshDevice]:
    opened = open_mesh_device(MeshShape(2, 4), num_command_queues=2)
    yield opened
    if opened.is_open():
        close_mesh_device(opened)


@pytest.fixture
def launch(mesh: MeshDevice) -> Callable[[Program], MeshWorkload]:
    """Run a program on every chip."""

    def run(program: Program) -> MeshWorkload:
        workload = MeshWorkload()
        workload.add_program(MeshCoordinateRange(mesh.shape), program)
        enqueue_mesh_workload(mesh, workload)
        return workload

    return run


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    for variable in ("TTMESH_SCHEDULE", "TTMESH_SEED", "TTMESH_UNWRITTEN", "TTMESH_BACKEND"):
        settings.override(variable, None)
    for left in list_open_meshes():
        close_mesh_device(left)
