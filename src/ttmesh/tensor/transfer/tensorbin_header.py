"""The header of a .tensorbin file: what TT-NN's schemas (tensor.fbs, tensor_spec.fbs) say of a tensor but its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Any, TypeVar

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Placement, Replicate, Shard
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec, ShardDistributionStrategy, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.transfer.flatbuffer_tables import FlatbufferError, Schema

MAX_CHIPS = 1 << 16  # far above any system; a number without meaning shall not become a loop over it
MAX_CORES = 1 << 16
MAX_RANK = 64

SCHEMA = Schema(
    {
        "Tensor": {
            "tensor_spec": "TensorSpec",
            "mesh_shape": "MeshShape",
            "shards": "[TensorShard]",
            "tensor_topology": "TensorTopology",
        },
        "OverlappedTensors": {"fused_tensor": "Tensor", "views": "[OverlappedView]"},
        "OverlappedView": {
            "name": "string",
            "tensor_shape_h": "uint",
            "tensor_shape_w": "uint",
            "shard_shape_h": "uint",
            "shard_shape_w": "uint",
            "core_range_set": "CoreRangeSet",
            "dtype": "ubyte",
            "tile_h": "uint",
            "tile_w": "uint",
            "byte_offset": "ulong",
            "total_size": "ulong",
        },
        "TensorShard": {"buffer": "TensorBuffer", "mesh_coordinate": "MeshCoordinate"},
        "MeshShape": {"dimensions": "[uint]"},
        "MeshCoordinate": {"values": "[uint]"},
        "TensorTopology": {
            "distribution_shape": "MeshShape",
            "placements": "[MeshMapperPlacement]",
            "mesh_coords": "[MeshCoordinate]",
        },
        "MeshMapperPlacement": {"type": "ubyte", "tensor_dim": "int"},
        "TensorSpec": {"shape": "[uint]", "tensor_layout": "TensorLayout"},
        "TensorLayout": {
            "data_type": "ubyte",
            "page_config": "PageConfig",
            "memory_config": "MemoryConfig",
            "alignment": "[uint]",
        },
        "RowMajorPageConfig": {},
        "TilePageConfig": {"tile": "Tile"},
        "Tile": {"tile_shape_h": "uint", "tile_shape_w": "uint", "transpose_tile": "bool"},
        "MemoryConfig": {
            "memory_layout": "ushort",
            "buffer_type": "ushort",
            "shard_spec": "ShardSpec",
            "nd_shard_spec": "NdShardSpec",
            "created_with_nd_shard_spec": "bool",
            "per_core_allocation": "bool",
        },
        "ShardSpec": {
            "grid": "CoreRangeSet",
            "shape_h": "uint",
            "shape_w": "uint",
            "orientation": "ubyte",
            "shard_mode_deprecated": "ubyte",
            "physical_shard_shape_deprecated": "ShardShape",
        },
        "ShardShape": {"height": "uint", "width": "uint"},
        "NdShardSpec": {
            "shard_shape": "[uint]",
            "grid": "CoreRangeSet",
            "orientation": "ubyte",
            "shard_distribution_strategy": "ubyte",
        },
        "CoreRangeSet": {"ranges": "[CoreRange]"},
        "CoreRange": {"start": "CoreCoord", "end": "CoreCoord"},
        "CoreCoord": {"x": "int", "y": "int"},
    },
    structs={"InlineFileStorage": {"offset": "ulong", "size": "ulong"}},
    unions={"TensorBuffer": ("InlineFileStorage",), "PageConfig": ("RowMajorPageConfig", "TilePageConfig")},
)

# The file's numbers of the formats are its own.
FORMATS = (
    DataType.BFLOAT16, DataType.FLOAT32, DataType.UINT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B, DataType.UINT8,
    DataType.UINT16, DataType.INT32, DataType.INT8,
)  # fmt: skip

Choice = TypeVar("Choice", bound=IntEnum)


@dataclass(frozen=True)
class StoredShard:
    """The values of one chip: bytes of the file counted from the end of the header; chips may share them."""

    coord: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class TensorHeader:
    """A tensor without its values, and where in the file they are."""

    spec: TensorSpec
    mesh_shape: MeshShape
    topology: TensorTopology
    shards: tuple[StoredShard, ...]


def encode_header(header: TensorHeader) -> bytes:
    """The header as TT-NN reads it."""
    return SCHEMA.encode("Tensor", header_fields(header))


def header_fields(header: TensorHeader) -> dict[str, Any]:
    """The header as the fields of its table."""
    topology = header.topology
    shards = [
        {
            "buffer": ("InlineFileStorage", {"offset": shard.offset, "size": shard.size}),
            "mesh_coordinate": {"values": shard.coord},
        }
        for shard in header.shards
    ]
    return {
        "tensor_spec": _spec_fields(header.spec),
        "mesh_shape": {"dimensions": list(header.mesh_shape)},
        "shards": shards,
        "tensor_topology": {
            "distribution_shape": {"dimensions": list(topology.distribution_shape())},
            "placements": [_placement_fields(placement) for placement in topology.placements()],
            "mesh_coords": [{"values": list(coord)} for coord in topology.mesh_coords()],
        },
    }


def decode_header(data: bytes) -> TensorHeader:
    """The header of a file of TT-NN or of ttmesh; raises FlatbufferError for one that is damaged or means nothing."""
    return parse_header(SCHEMA.decode("Tensor", data))


def parse_header(fields: dict[str, Any]) -> TensorHeader:
    """The header that these fields describe."""
    try:
        mesh_shape = _mesh_shape(fields["mesh_shape"], "its mesh")
        return TensorHeader(
            _spec(require_field(fields["tensor_spec"], "spec")),
            mesh_shape,
            _topology(fields["tensor_topology"], mesh_shape),
            tuple(_shard(shard, mesh_shape) for shard in require_field(fields["shards"], "shards")),
        )
    except FlatbufferError:
        raise
    except (ValueError, TypeError, ArithmeticError, MeshError) as problem:
        raise FlatbufferError(problem.wrong if isinstance(problem, MeshError) else str(problem)) from None


def _spec_fields(spec: TensorSpec) -> dict[str, Any]:
    if spec.dtype not in FORMATS:
        raise ShapeError(
            f"{spec.dtype.name} cannot be serialized to flatbuffer",
            expected=f"one of {[dtype.name for dtype in FORMATS]}",
            fix="Typecast the tensor first.",
        )
    height, width = spec.tile.tile_shape
    tile = {"tile_shape_h": height, "tile_shape_w": width, "transpose_tile": spec.tile.transpose_of_faces}
    tiled = spec.layout is Layout.TILE
    layout = {
        "data_type": FORMATS.index(spec.dtype),
        "page_config": ("TilePageConfig", {"tile": tile}) if tiled else ("RowMajorPageConfig", {}),
        "memory_config": _memory_fields(spec.memory_config),
        "alignment": list(spec.alignment),
    }
    return {"shape": list(spec.shape), "tensor_layout": layout}


def _spec(fields: dict[str, Any]) -> TensorSpec:
    layout = require_field(fields["tensor_layout"], "layout")
    if layout["data_type"] >= len(FORMATS):
        raise FlatbufferError(f"data type {layout['data_type']} is none")
    if layout["page_config"] is None:
        raise FlatbufferError("it has neither rows nor tiles")
    page, page_fields = layout["page_config"]
    tile = None
    if page == "TilePageConfig":
        shape = require_field(page_fields["tile"], "tile")
        tile = Tile((shape["tile_shape_h"], shape["tile_shape_w"]), bool(shape["transpose_tile"]))
    extents, alignment = require_field(fields["shape"], "shape"), layout["alignment"] or []
    if max(len(extents), len(alignment)) > MAX_RANK or 0 in alignment:
        raise FlatbufferError(f"shape {extents[:8]} with alignment {alignment[:8]}")
    return TensorSpec(
        extents,
        FORMATS[layout["data_type"]],
        Layout.ROW_MAJOR if tile is None else Layout.TILE,
        tile=tile,
        memory_config=_memory(require_field(layout["memory_config"], "memory configuration")),
        alignment=tuple(alignment),
    )


def _memory_fields(config: MemoryConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "memory_layout": config.memory_layout,
        "buffer_type": config.buffer_type,
        "created_with_nd_shard_spec": config.created_with_nd_shard_spec,
        "per_core_allocation": config.per_core_allocation,
    }
    if (shard := config.shard_spec) is not None:
        where = {"grid": grid_fields(shard.grid), "orientation": shard.orientation}
        fields["shard_spec"] = {"shape_h": shard.shape[0], "shape_w": shard.shape[1], **where}
    if (nd := config.nd_shard_spec) is not None:
        where = {"grid": grid_fields(nd.grid), "orientation": nd.orientation}
        strategy = nd.shard_distribution_strategy
        fields["nd_shard_spec"] = {
            "shard_shape": list(nd.shard_shape),
            "shard_distribution_strategy": strategy,
            **where,
        }
    return fields


def _memory(fields: dict[str, Any]) -> MemoryConfig:
    layout = _choose(TensorMemoryLayout, fields["memory_layout"])
    buffer = _choose(BufferType, fields["buffer_type"])
    shard, nd = fields["shard_spec"], fields["nd_shard_spec"]
    if fields["created_with_nd_shard_spec"] and nd is not None:
        extents = require_field(nd["shard_shape"], "shard shape")
        if len(extents) > MAX_RANK or 0 in extents:
            raise FlatbufferError(f"shards of shape {extents[:8]}")
        strategy = _choose(ShardDistributionStrategy, nd["shard_distribution_strategy"])
        orientation = _choose(ShardOrientation, nd["orientation"])
        return MemoryConfig(buffer, NdShardSpec(extents, parse_grid(nd["grid"]), orientation, strategy))
    if shard is None:
        return MemoryConfig(layout, buffer)
    shape = [shard["shape_h"], shard["shape_w"]]
    if 0 in shape:
        raise FlatbufferError(f"shards of shape {shape}")
    orientation = _choose(ShardOrientation, shard["orientation"])
    config = MemoryConfig(layout, buffer, ShardSpec(parse_grid(shard["grid"]), shape, orientation))
    config.experimental_set_per_core_allocation(bool(fields["per_core_allocation"]))
    return config


def grid_fields(grid: CoreRangeSet) -> dict[str, Any]:
    """A set of cores as the fields of its table."""
    corners = [{"start": (box.start.x, box.start.y), "end": (box.end.x, box.end.y)} for box in grid.ranges()]
    return {"ranges": [{end: {"x": x, "y": y} for end, (x, y) in box.items()} for box in corners]}


def parse_grid(fields: dict[str, Any] | None) -> CoreRangeSet:
    """The set of cores that these fields describe."""
    boxes = []
    for box in require_field(require_field(fields, "core grid")["ranges"], "core ranges"):
        corners = [require_field(box[end], "corner of a core range") for end in ("start", "end")]
        (a, b), (c, d) = ((corner["x"], corner["y"]) for corner in corners)
        if not 0 <= a <= c < MAX_CORES or not 0 <= b <= d < MAX_CORES or (c - a + 1) * (d - b + 1) > MAX_CORES:
            raise FlatbufferError(f"cores from ({a}, {b}) to ({c}, {d})")
        boxes.append(CoreRange(CoreCoord(a, b), CoreCoord(c, d)))
    return CoreRangeSet(boxes)


def _placement_fields(placement: Placement) -> dict[str, int]:
    return {"type": 1, "tensor_dim": placement.dim} if isinstance(placement, Shard) else {"type": 0, "tensor_dim": -1}


def _topology(fields: dict[str, Any] | None, mesh_shape: MeshShape) -> TensorTopology:
    if fields is None:  # files of earlier TT-NN have none
        return TensorTopology.create_fully_replicated_tensor_topology(mesh_shape)
    placements: list[Placement] = []
    for placement in fields["placements"] or []:
        if placement["type"] > 1:
            raise FlatbufferError(f"placement {placement['type']} is none")
        placements.append(Shard(placement["tensor_dim"]) if placement["type"] else Replicate())
    shape = _mesh_shape(fields["distribution_shape"], "its distribution")
    if len(placements) != shape.dims():
        raise FlatbufferError(f"{len(placements)} placements for {shape.dims()} axes")
    coords = [MeshCoordinate(_coord(coord)) for coord in fields["mesh_coords"] or []]
    return TensorTopology(shape, placements, coords)


def _shard(fields: dict[str, Any], mesh_shape: MeshShape) -> StoredShard:
    coord = _coord(require_field(fields["mesh_coordinate"], "coordinate of a shard"))
    if len(coord) != mesh_shape.dims() or any(at >= n for at, n in zip(coord, mesh_shape, strict=True)):
        raise FlatbufferError(f"it names chip {list(coord)} of a mesh of {list(mesh_shape)}")
    _, storage = require_field(fields["buffer"], "place of a shard")
    return StoredShard(coord, storage["offset"], storage["size"])


def _coord(fields: dict[str, Any]) -> tuple[int, ...]:
    values: Sequence[int] = require_field(fields["values"], "values of a coordinate")
    if not 0 < len(values) <= MAX_RANK:
        raise FlatbufferError(f"a coordinate of {len(values)} numbers")
    return tuple(values)


def _mesh_shape(fields: dict[str, Any] | None, what: str) -> MeshShape:
    extents = require_field(require_field(fields, what)["dimensions"], what)
    if not 0 < len(extents) <= 8 or not 0 < prod(extents) <= MAX_CHIPS:
        raise FlatbufferError(f"{what} has the shape {extents[:8]}")
    return MeshShape(extents)


def _choose(choices: type[Choice], number: int) -> Choice:
    if number not in {choice.value for choice in choices}:
        raise FlatbufferError(f"{choices.__name__} {number} is none")
    return choices(number)


def require_field(value: Any, what: str) -> Any:
    """A field's value; refused where it is absent."""
    if value is None:
        raise FlatbufferError(f"it has no {what.removeprefix('its ')}")
    return value
