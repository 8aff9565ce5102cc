"""Values that go through a mapper are uploaded as rows and converted on the device: the programs and memory of that."""

from __future__ import annotations

from itertools import pairwise

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

SOURCES = {torch.float32: DataType.FLOAT32, torch.bfloat16: DataType.BFLOAT16}
CONVERTED = (DataType.FLOAT32, DataType.BFLOAT16)  # block floats and integers are made on the host


def upload_mapped(host: Tensor, device: MeshDevice, source: torch.dtype, cq_id: int | None) -> Tensor:
    """The tensor on a device, at the address it has after TT-NN's conversion there."""
    partition = device.sub_devices
    if partition.loaded is not partition.default:  # then TT-NN converts on the host
        return host.onto(device, None, cq_id)
    chain = _conversion(host.spec, SOURCES.get(source))
    if chain is None or not _fits(chain, device):
        return host.onto(device, None, cq_id)
    composition, stages = chain
    device.program_cache.compile("ttnn.from_torch", composition.programs)
    held: list[Buffer] = []
    for stage in stages[:-1]:
        held.append(device.heap.take(footprint_of(stage.spec, device.heap.map), "ttnn.from_torch"))
        del held[:-1]
    return host.onto(device, None, cq_id)


def _conversion(spec: TensorSpec, source: DataType | None) -> tuple[Composition, list[PlannedTensor]] | None:
    """The stages from the rows to the tensor; None where the host converts or nothing is to do."""
    if source is None or spec.dtype not in CONVERTED or spec.dtype in BLOCK_FLOATS or not spec.shape.volume():
        return None
    if spec.layout is Layout.TILE and spec.tile.tile_shape != (32, 32):
        return None
    c, config = Composition(), spec.memory_config
    if config.is_sharded():  # the host converts the numbers, the device makes tiles of them
        source = spec.dtype
    if spec.layout is Layout.ROW_MAJOR and spec.dtype is source:
        return None
    try:
        rows = TensorSpec(spec.shape, source, Layout.ROW_MAJOR, memory_config=config)
    except ShapeError:
        rows = TensorSpec(spec.shape, source, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)
    stages = [c.allocate(rows)]
    try:
        tiles = TensorSpec(spec.shape, source, Layout.TILE, memory_config=config)
    except ShapeError:
        if spec.layout is Layout.TILE:
            raise
        return None  # rows in shards that are no tiles
    stages.append(c.run("tilize", tiles, stages[-1]))
    if spec.dtype is not source:
        cast = TensorSpec(spec.shape, spec.dtype, Layout.TILE, memory_config=config)
        stages.append(c.run("typecast", cast, stages[-1]))
    if spec.layout is Layout.ROW_MAJOR:
        ragged = tuple(stages[-1].spec.padded_shape) != tuple(spec.shape)
        stages.append(c.run("untilize" if ragged else "untilize_codegen", spec, stages[-1]))
    return c, stages


def _fits(chain: tuple[Composition, list[PlannedTensor]], device: MeshDevice) -> bool:
    """TT-NN converts on the host where rows and tiles would not fit into a bank together."""
    rooms = [footprint_of(stage.spec, device.heap.map) for stage in chain[1]]
    size = device.heap.map.banks[rooms[-1].buffer_type].size
    return all(a.bank_bytes + b.bank_bytes <= size for a, b in pairwise(rooms))
