"""Meshes on systems that have them, with a fabric, and tensors with a different shard on every chip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ttmesh.base import settings
from ttmesh.base.cores import CoreCoord, CoreRange
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import open_mesh_device
from ttmesh.mesh.functions.global_semaphores import GlobalSemaphore, create_global_semaphore
from ttmesh.mesh.functions.process_fabric import set_fabric_config
from ttmesh.tensor.distribution.allocate import Footprint
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

SYSTEMS = {(1, 2): "t3000", (1, 8): "t3000", (2, 4): "t3000", (8, 4): "galaxy"}


@contextmanager
def opened(
    shape: tuple[int, ...],
    *,
    config: FabricConfig = FabricConfig.FABRIC_1D,
    system: str | None = None,
    l1_small_size: int = 0,
) -> Iterator[MeshDevice]:
    settings.override("TTMESH_SYSTEM", system or SYSTEMS.get(shape, "t3000"))
    set_fabric_config(config)
    mesh = open_mesh_device(MeshShape(*shape), l1_small_size=l1_small_size)
    try:
        yield mesh
    finally:
        mesh.close()
        set_fabric_config(FabricConfig.DISABLED)


def semaphore(mesh: MeshDevice) -> GlobalSemaphore:
    """A global semaphore on one core: TT-NN's bindings take no call without those that it declares."""
    return create_global_semaphore(mesh, CoreRange(CoreCoord(0, 0), CoreCoord(0, 0)), 0)


def random_lanes(shape: tuple[int, ...], local: tuple[int, ...], dtype: DataType, seed: int = 0) -> torch.Tensor:
    """Different values on every chip, exact in the format: [*mesh, *local]."""
    generator = torch.Generator().manual_seed(seed)
    wanted = lane_dtype(dtype)
    if wanted.is_floating_point:
        return torch.randn(*shape, *local, generator=generator).to(wanted)
    return torch.randint(0, 100, (*shape, *local), generator=generator).to(wanted)


def on(mesh: MeshDevice, lanes: torch.Tensor, dtype: DataType, *, layout: Layout = Layout.ROW_MAJOR) -> Tensor:
    """A tensor with these lanes; an axis of length 1 is replicated."""
    local = lanes.shape[mesh.shape.dims() :]
    spec = TensorSpec(local, dtype, layout)
    topology = TensorTopology.create_sharded_tensor_topology(mesh.shape, 0)
    buffer = Footprint(spec, mesh.heap.map).allocate(mesh, "test")
    buffer.cell.write(lanes.to(mesh.backend.device), spec)
    return Tensor.on_device(kind_of(spec, topology), buffer, mesh)


def lanes_of(tensor: Tensor) -> torch.Tensor:
    """Every chip's values: [*mesh, *local]."""
    mesh = tensor.device()
    assert mesh is not None
    for queue in mesh.queues:
        queue.finish()
    return tensor.buffer.cell.read(tensor.spec).cpu().expand(*mesh.shape, *tensor.shape)
