"""What ranks run that divide a mesh: the examples of low-level programs, kernels that cross ranks, and reshapes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
EXAMPLES = ("02_buffer_read_write.py", "04_trace_and_events.py", "ring_all_gather.py", "ring_all_reduce.py")


def check_examples_of_programs() -> None:
    sys.path.insert(0, str(FOLDER))
    for name in EXAMPLES:
        runpy.run_path(str(FOLDER / name), run_name="__main__")


def check_a_kernel_that_fails_on_one_rank_is_told_on_the_others() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 8)) as mesh:

        def kernel(core: object) -> None:
            if core.mesh_coord == ttnn.MeshCoordinate(0, 7):
                raise ValueError("chip 7 has enough")

        program = ttmesh.Program()
        program.create_kernel(kernel, ttmesh.CoreRange((0, 0), (0, 0)), ttmesh.DataMovementConfig())
        workload = ttmesh.MeshWorkload()
        workload.add_program(ttnn.MeshCoordinateRange(mesh.shape), program)
        here = mesh.is_local(ttnn.MeshCoordinate(0, 7))
        last = int(ttnn.distributed_context_get_size()) - 1
        words = "chip 7 has enough" if here else rf"kernels failed on rank\(s\) \[{last}\]"
        with pytest.raises((ValueError, RuntimeError), match=words):
            ttmesh.enqueue_mesh_workload(mesh, workload)


def check_a_reshape_moves_what_chips_hold() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(2, 4)) as mesh:
        values = torch.arange(8 * 32 * 32.0).reshape(8, 32, 32)

        def put(lanes: torch.Tensor, mapper: object) -> ttnn.Tensor:
            return ttnn.from_torch(lanes, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

        def every(tensor: ttnn.Tensor) -> torch.Tensor:
            return ttnn.to_torch(tensor, mesh_composer=ttnn.ConcatMeshToTensor(mesh, 0)).reshape(8, 32, 32)

        cut = put(values, ttnn.ShardTensorToMesh(mesh, 0))
        same = put(values[:1], ttnn.ReplicateTensorToMesh(mesh))
        chips = [mesh.chip_at(coord) for coord in ttnn.MeshCoordinateRange(mesh.shape)]

        mesh.reshape(ttnn.MeshShape(1, 8))

        now = [mesh.chip_at(coord) for coord in ttnn.MeshCoordinateRange(mesh.shape)]
        assert torch.equal(every(cut), values[[chips.index(chip) for chip in now]])
        assert torch.equal(every(same), values[:1].expand(8, 32, 32))
        total = ttnn.all_reduce(cut, cluster_axis=1)
        assert torch.equal(every(total), values.sum(0, keepdim=True).expand(8, 32, 32))
        half = 8 // int(ttnn.distributed_context_get_size())
        assert mesh.local_range is not None
        assert mesh.local_range.shape == ttnn.MeshShape(1, half)
        mesh.reshape(ttnn.MeshShape(2, 4))
        assert torch.equal(every(cut), values)
        ttnn.distributed_context_barrier()  # compares what was allocated


ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D_RING)
for name, check in list(globals().items()):
    if name.startswith("check_"):
        check()
print(f"rank {int(ttnn.distributed_context_get_rank())} is content", flush=True)
