"""The description beside the values in a tensor file (format, memory, placement) as plain data, and a tensor from it."""

from __future__ import annotations

import json
from math import prod
from typing import Annotated, Any

import msgspec
import torch

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Replicate, Shard
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.formats.tiles import Tile
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec, ShardDistributionStrategy, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

VERSION = 1
MAX_CHIPS = 1 << 16  # far above any system; a damaged number must not become a loop of that length
UNSIGNED_MAX = {DataType.UINT32: 2**32 - 1, DataType.UINT16: 2**16 - 1}  # their lanes have the next wider dtype

Extent = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class MemoryDescription(msgspec.Struct, forbid_unknown_fields=True):
    """A memory configuration; `shard`: shape, boxes of cores, orientation, strategy of an nd shard spec."""

    layout: str
    buffer: str
    shard: tuple[list[Count], list[tuple[Extent, Extent, Extent, Extent]], str, str | None] | None = None


class TensorDescription(msgspec.Struct, forbid_unknown_fields=True):
    """A host tensor without its values; `part`: start and block of one rank's; `topology`: extents, dims, coordinates."""

    version: int
    shape: list[Extent]
    dtype: str
    layout: str
    tile: tuple[tuple[Count, Count], bool] | None
    alignment: list[Extent]
    padding: float
    memory: MemoryDescription
    mesh: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=8)]
    part: tuple[list[Extent], list[Count]] | None
    presence: list[list[Extent]] | None
    topology: tuple[list[Count], list[int | None], list[list[Extent]]]


class DescriptionError(MeshError):
    """A description that is damaged, of another version, or contradicts the values beside it."""


def describe(host: Tensor) -> dict[str, Any]:
    """A host tensor without its values, for JSON."""
    spec, topology = host.spec, host.tensor_topology()
    presence, block = host.kind.presence, host.rank_block
    return {
        "version": VERSION,
        "shape": list(spec.shape),
        "dtype": spec.dtype.name,
        "layout": spec.layout.name,
        "tile": [list(spec.tile.tile_shape), spec.tile.transpose_tile] if spec.layout is Layout.TILE else None,
        "alignment": list(spec.alignment),
        "padding": spec.pad_value,
        "memory": _describe_memory(spec.memory_config),
        "mesh": list(host.mesh_shape),
        "part": None if block is None else [block.start, block.block_shape],
        "presence": None if presence is None else sorted(map(list, presence)),
        "topology": [
            list(topology.distribution_shape()),
            [placement.dim if isinstance(placement, Shard) else None for placement in topology.placements()],
            [list(coord) for coord in topology.mesh_coords()],
        ],
    }


def parse_json(text: str) -> Any:
    """JSON from a file, with one error for anything wrong with it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise _contradiction(f"its description is not JSON ({type(problem).__name__}: {str(problem)[:100]})") from None


def restore(described: Any, lanes: torch.Tensor, device: MeshDevice | None) -> Tensor:
    """The host tensor that was described, over these values; refused where the two do not fit."""
    version = described.get("version") if isinstance(described, dict) else None
    if version != VERSION:
        raise DescriptionError(
            f"the file has version {version!r}"[:100],
            expected=f"version {VERSION}",
            fix="Write it again with this ttmesh.",
        )
    try:
        read = msgspec.convert(described, TensorDescription, strict=True)
    except msgspec.ValidationError as problem:
        raise _contradiction(f"its description is damaged: {problem}") from None
    _check_lanes(read, lanes)
    try:
        spec, topology = _spec(read), _topology(read)
    except DescriptionError:
        raise
    except (KeyError, ValueError, TypeError, MeshError) as problem:
        reason = problem.wrong if isinstance(problem, MeshError) else f"{type(problem).__name__}: {problem}"
        raise _contradiction(f"its description cannot be: {reason}") from None
    presence = None if read.presence is None else frozenset(tuple(coord) for coord in read.presence)
    block = _find_block(read, device)
    return Tensor.on_host(kind_of(spec, topology, presence), lanes, MeshShape(read.mesh), block)


def _check_lanes(read: TensorDescription, lanes: torch.Tensor) -> None:
    """The values have the shape and dtype that the description says, and every chip it names is one of the mesh."""
    if prod(read.mesh) > MAX_CHIPS:
        raise _contradiction(f"it describes a mesh of {'x'.join(map(str, read.mesh))} chips")
    block = read.mesh if read.part is None else read.part[1]
    axes = len(read.mesh)
    fits = lanes.dim() == axes + len(read.shape) and list(lanes.shape[axes:]) == read.shape and len(block) == axes
    if not fits or any(n not in (1, most) for n, most in zip(lanes.shape, block, strict=False)):
        raise _contradiction(
            f"it describes shape {read.shape} on {block} chips, and holds values of shape {list(lanes.shape)}"
        )
    dtype = DataType.__members__.get(read.dtype)
    if dtype in (None, DataType.INVALID):
        raise _contradiction(f"it describes dtype {read.dtype[:40]!r}, which does not exist")
    assert dtype is not None, "checked above"
    if lanes.dtype is not lane_dtype(dtype):
        raise _contradiction(f"it describes {read.dtype}, and holds values of {lanes.dtype}")
    most = UNSIGNED_MAX.get(dtype)
    if most is not None and lanes.numel() and not 0 <= int(lanes.min()) <= int(lanes.max()) <= most:
        raise _contradiction(f"it holds values outside of {read.dtype}")
    if read.part is not None and (
        len(read.part[0]) != axes or any(a + n > e for a, n, e in zip(*read.part, read.mesh, strict=True))
    ):
        raise _contradiction(f"it describes a block of {block} at {read.part[0]} of a mesh of {read.mesh}")
    for coord in read.presence or ():
        if len(coord) != axes or any(at >= n for at, n in zip(coord, read.mesh, strict=True)):
            raise _contradiction(f"it names chip {coord} of a mesh of {read.mesh}")


def _spec(read: TensorDescription) -> TensorSpec:
    layout = Layout[read.layout]
    if (layout is Layout.TILE) != (read.tile is not None):
        raise _contradiction(f"it describes layout {read.layout} with tile {read.tile}")
    return TensorSpec(
        read.shape,
        DataType[read.dtype],
        layout,
        tile=None if read.tile is None else Tile(*read.tile),
        memory_config=_memory(read.memory),
        alignment=tuple(read.alignment),
        pad_value=int(read.padding) if read.padding.is_integer() else read.padding,
    )


def _topology(read: TensorDescription) -> TensorTopology:
    extents, dims, coords = read.topology
    if len(dims) != len(extents):
        raise _contradiction(f"its topology has {len(dims)} placements for {len(extents)} axes")
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return TensorTopology(MeshShape(extents), placements, [MeshCoordinate(coord) for coord in coords])


def _find_block(read: TensorDescription, device: MeshDevice | None) -> RankBlock | None:
    """The rank block of the file; it can be read only for a device of which this rank holds the same block."""
    if read.part is None:
        return None
    start, shape = read.part
    block = None if device is None else device.rank_block
    if block is None or [*map(list, (block.full_shape, block.start, block.block_shape))] != [read.mesh, start, shape]:
        raise MeshError(
            f"the file holds the block of {shape} at {start} of {MeshShape(read.mesh)!r}, written by one rank",
            expected="device=, a mesh of which this rank holds the same block",
            fix="Write it with DumpTensorMode.DISTRIBUTED_GATHER to read it anywhere.",
        )
    return block


def _describe_memory(config: MemoryConfig) -> dict[str, Any]:
    spec: ShardSpec | NdShardSpec | None
    spec = config.nd_shard_spec if config.created_with_nd_shard_spec else config.shard_spec
    described: dict[str, Any] = {"layout": config.memory_layout.name, "buffer": config.buffer_type.name}
    if spec is not None:
        boxes = [[*box.start, *box.end] for box in spec.grid.ranges()]
        shape = spec.shard_shape if isinstance(spec, NdShardSpec) else spec.shape
        strategy = spec.shard_distribution_strategy.name if isinstance(spec, NdShardSpec) else None
        described["shard"] = [list(shape), boxes, spec.orientation.name, strategy]
    return described


def _memory(read: MemoryDescription) -> MemoryConfig:
    layout, buffer = TensorMemoryLayout[read.layout], BufferType[read.buffer]
    if read.shard is None:
        return MemoryConfig(layout, buffer)
    shape, boxes, orientation, strategy = read.shard
    grid = CoreRangeSet([CoreRange(CoreCoord(a, b), CoreCoord(c, d)) for a, b, c, d in boxes])
    turn = ShardOrientation[orientation]
    if strategy is None:
        return MemoryConfig(layout, buffer, ShardSpec(grid, shape, turn))
    return MemoryConfig(buffer, NdShardSpec(shape, grid, turn, ShardDistributionStrategy[strategy]))


def _contradiction(wrong: str) -> DescriptionError:
    return DescriptionError(
        wrong, expected="a description that fits the values, as dump_tensor writes it", fix="Write the file again."
    )
