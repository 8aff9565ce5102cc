"""Uploads that were made before: the same kind of values to the same mesh skips everything but copying and allocating."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.formats.storage import to_lane
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.allocate import Footprint, footprint_of
from ttmesh.tensor.observer import observer
from ttmesh.tensor.spec.kind import Kind
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_tensors import default_mapper

MOST_PLANS = 1024  # per mesh
DTYPES, LAYOUTS = (DataType, type(None)), (Layout, type(None))


class UploadPlan(NamedTuple):
    """What the values become on the mesh."""

    kind: Kind
    mesh_shape: MeshShape
    footprint: Footprint
    lanes_shape: tuple[int, ...]
    dtype: DataType
    is_copy: bool  # the values have the lanes' dtype


def upload_again(
    values: Any, dtype: DataType | None, layout: Layout | None, memory_config: MemoryConfig | None, mesh: Any
) -> Tensor | None:
    """The values on the mesh, the same on every chip; None where such values were not uploaded there before."""
    if type(values) is not torch.Tensor or type(mesh) is not MeshDevice or observer.active or default_mapper.get():
        return None
    if memory_config is DRAM_MEMORY_CONFIG:
        memory_config = None  # what it means, and quicker to find
    elif memory_config is not None and type(memory_config) is not MemoryConfig:
        return None
    if type(dtype) not in DTYPES or type(layout) not in LAYOUTS:
        return None  # a wrong argument, which the upload itself explains
    plan: UploadPlan | None
    plan = mesh.upload_plans.get((values.dtype, values.shape, dtype, layout, memory_config))
    if plan is None or plan.mesh_shape is not mesh.shape or values.requires_grad or not values.is_cpu:
        return None
    if not mesh.runs_at_once():
        return None
    if plan.is_copy:
        lanes = values.clone(memory_format=torch.contiguous_format)
    else:
        lanes = to_lane(values, plan.dtype)
        if lanes.data_ptr() == values.data_ptr():
            lanes = lanes.clone(memory_format=torch.contiguous_format)
        elif not lanes.is_contiguous():
            lanes = lanes.contiguous()
    buffer = mesh.heap.take(plan.footprint, "to_device")
    kind = plan.kind
    buffer.cell.write(lanes.view(plan.lanes_shape), kind.spec)
    buffer.cell.writes = 1
    return Tensor.on_device(kind, buffer, mesh)


def keep_plan(
    values: torch.Tensor,
    dtype: DataType | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
    tensor: Tensor,
) -> None:
    """Keep what an upload made; not of sharded memory, whose configuration can be written to, nor of block floats."""
    mesh, spec = tensor.device(), tensor.spec
    assert mesh is not None, "an upload makes a device tensor"
    if memory_config is DRAM_MEMORY_CONFIG:
        memory_config = None
    is_interleaved = memory_config is None or (type(memory_config) is MemoryConfig and memory_config.interleaved)
    if not is_interleaved or spec.dtype in BLOCK_FLOATS or mesh.backend.device.type != "cpu":
        return
    if len(mesh.upload_plans) >= MOST_PLANS:
        mesh.upload_plans.clear()
    shape = (*(1 for _ in mesh.shape), *spec.shape)
    empty = values.new_empty(0)
    is_copy = to_lane(empty, spec.dtype) is empty
    plan = UploadPlan(tensor.kind, mesh.shape, footprint_of(spec, mesh.heap.map), shape, spec.dtype, is_copy)
    mesh.upload_plans[(values.dtype, values.shape, dtype, layout, memory_config)] = plan
