"""A user's torch or numpy values as lanes of a format: checked, split into shards, converted and copied once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Replicate
from ttmesh.chip.formats.storage import infer_dtype, to_lane
from ttmesh.chip.formats.tiles import Tile
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.distribution.mappers import MappedLanes, TensorToMesh
from ttmesh.tensor.spec.kind import Kind, Presence, kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.spec_checks import check_dtype, check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology

ONE_CHIP = MeshShape(1, 1)  # the mesh of a host tensor that no mapper sharded
ONE_CHIP_TOPOLOGY = TensorTopology(MeshShape([1]), [Replicate()], [MeshCoordinate(0, 0)])


class Ingested:
    """Lanes on the host, their kind, and the mesh they were sharded for: its shape and this rank's block of it."""

    __slots__ = ("kind", "lanes", "mesh_shape", "rank_block")

    def __init__(self, kind: Kind, lanes: torch.Tensor, mesh_shape: MeshShape, rank_block: RankBlock | None) -> None:
        self.kind, self.lanes, self.mesh_shape, self.rank_block = kind, lanes, mesh_shape, rank_block


def ingest(
    values: Any,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    memory_config: MemoryConfig | None = None,
    tile: Tile | None = None,
    mapper: TensorToMesh | None = None,
    *,
    pad_value: float | None = None,
    col_tilize: bool = False,
    detach: bool = True,
) -> Ingested:
    """Values as lanes; a block float without a layout means tiles.

    Args:
        detach: copy lanes that would share memory with the values; False where they are copied to a device at once.
    """
    source = as_torch(values)
    dtype = infer_dtype(source.dtype) if dtype is None else dtype
    if type(dtype) is not DataType or type(layout) not in (Layout, type(None)):
        check_dtype(dtype, layout or Layout.ROW_MAJOR, tile)  # names the argument that is something else
    if col_tilize:
        source = source.transpose(-1, -2)
    if layout is None:
        layout = Layout.TILE if dtype in BLOCK_FLOATS else Layout.ROW_MAJOR
    if memory_config is not None and memory_config.is_sharded() and mapper is not None:
        check_shard_tiles(memory_config, layout, tile)
    mapped = _map_lanes(source, mapper)
    axes = 2 if mapper is None else mapper.mesh_shape.dims()
    config = DRAM_MEMORY_CONFIG if memory_config is None else memory_config
    padding = 0 if pad_value is None else pad_value
    # No key of the cache: a sharded config, which can be written to, -0.0, which equals 0.0, and transposed tiles.
    cached = config.interleaved and (pad_value is None or pad_value != 0) and not (tile and tile.transpose_tile)
    make = _kind if cached else _kind.__wrapped__
    kind = make(mapped.values.shape[axes:], dtype, layout, tile, config, padding, mapped.topology, mapped.presence)
    if dtype in BLOCK_FLOATS or (mapper is not None and mapper.rank_block is not None):
        exact = mapped.values.contiguous()
        if dtype in BLOCK_FLOATS and not config.interleaved:
            exact = to_lane(exact, DataType.BFLOAT16)  # TT-NN makes sharded block floats of bfloat16
        lanes = to_lane(exact, dtype, tile=tile, pad_value=padding)
    else:  # elements convert one by one and all are kept: convert first, so that sharding is the only strided pass
        converted = to_lane(source, dtype)
        lanes = mapped.values if converted is source else _map_lanes(converted, mapper).values
    lanes = _detach_from(lanes, source) if detach else lanes.contiguous()
    if mapper is None:
        return Ingested(kind, lanes, ONE_CHIP, None)
    return Ingested(kind, lanes, mapper.mesh_shape, mapper.rank_block)


@lru_cache(maxsize=1024)
def _kind(
    shape: tuple[int, ...],
    dtype: DataType,
    layout: Layout,
    tile: Tile | None,
    config: MemoryConfig,
    pad_value: float,
    topology: TensorTopology,
    presence: Presence | None,
) -> Kind:
    spec = TensorSpec(shape, dtype, layout, tile=tile, memory_config=config, pad_value=pad_value)
    return kind_of(spec, topology, presence)


def as_torch(values: Any) -> torch.Tensor:
    """Torch tensors as they are; numpy arrays and nested lists converted."""
    if isinstance(values, torch.Tensor):
        return values.detach() if values.requires_grad else values
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values if values.flags.writeable else values.copy())
    if isinstance(values, (list, tuple, int, float)):
        return torch.tensor(values, dtype=None, device="cpu")  # a list is read as the program's torch reads it
    raise MeshError(
        f"{type(values).__name__} is not a tensor",
        expected="a torch tensor, a numpy array or a list of numbers",
        fix="Convert it with torch.as_tensor() first.",
    )


def from_list(data: Sequence[float], shape: Sequence[int], dtype: DataType) -> torch.Tensor:
    """The values of TT-NN's list constructor."""
    is_integer = all(isinstance(item, int) for item in data)
    return torch.tensor(
        data, dtype=torch.int64 if is_integer and dtype not in BLOCK_FLOATS else torch.float32, device="cpu"
    ).reshape(*shape)


def _map_lanes(source: torch.Tensor, mapper: TensorToMesh | None) -> MappedLanes:
    if mapper is not None:
        return mapper.map(source)
    return MappedLanes(source[None, None], None, ONE_CHIP_TOPOLOGY)


def _detach_from(lanes: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Contiguous lanes that share no memory with the source: at most one copy."""
    if lanes.is_meta:
        return lanes.contiguous()
    shared = lanes.numel() and lanes.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return lanes.clone(memory_format=torch.contiguous_format) if shared else lanes.contiguous().to("cpu")
