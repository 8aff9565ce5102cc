"""Tensors in files: safetensors underneath, with formats, memory and placement beside the values."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, PrintedEnum, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Replicate, Shard
from ttmesh.chip.formats.tiles import Tile
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMeshWrapper
from ttmesh.tensor.spec.distribution_shape import mesh_shape_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec, ShardDistributionStrategy, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_tensors import Mapper
from ttmesh.tensor.transfer.transfers import from_torch

log = logging.getLogger("ttmesh")

SUFFIX = ".tensorbin"
VERSION = 1


class DumpTensorMode(PrintedEnum):
    """Whether ranks gather a distributed tensor into one file or each writes its part; one process: both are the same."""

    DISTRIBUTED_GATHER = 0
    LOCAL = 1


def dump_tensor(
    file_name: str | Path, tensor: Tensor, *, mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER
) -> None:
    """Write a tensor to a .tensorbin file of ttmesh's own format."""
    dump_tensor_flatbuffer(_checked(file_name), tensor, mode)


def dump_tensor_flatbuffer(
    filename: str | Path, tensor: Tensor, mode: DumpTensorMode = DumpTensorMode.DISTRIBUTED_GATHER
) -> None:
    """The same under TT-NN's inner name, which takes any file name; the format is ttmesh's own here too."""
    path = Path(filename)
    if not isinstance(mode, DumpTensorMode):
        raise MeshError(f"mode {mode!r}", expected="a DumpTensorMode", fix="Leave it out.")
    host = tensor.cpu()
    part = host.mesh_shape.part
    if part is None or mode is DumpTensorMode.LOCAL:
        _write(path, host, host.lanes)
        return
    lanes = host.all_lanes()  # the first rank writes, and the others wait until it is there
    if part.is_first:
        whole = Tensor.on_host(host.kind, lanes, MeshShape(host.mesh_shape.to_tuple()))
        _write(path, whole, lanes)
    part.host.barrier()


def _write(path: Path, tensor: Tensor, lanes: torch.Tensor) -> None:
    try:
        save_file({"lanes": lanes.contiguous()}, path, {"ttmesh": json.dumps(_described(tensor))})
    except (OSError, SafetensorError) as problem:
        raise _unwritable(path, problem) from None


def _unwritable(path: Path, problem: Exception) -> MeshError:
    return MeshError(
        f'Cannot open "{path}" for writing: {problem}',
        expected="a folder that exists and may be written to, with room",
        fix="Choose another path.",
    )


def load_tensor(file_name: str | Path, *, device: MeshDevice | None = None) -> Tensor:
    """Read a tensor that `dump_tensor` wrote, and move it to a device if one is given."""
    path = _checked(file_name)
    for wrong, found in (("does not exist", path.exists()), ("is not a file", path.is_file())):
        if not found:
            raise MeshError(
                f"Unable to load the tensor from {path}.  The file {wrong}.",
                expected="a .tensorbin file",
                fix="Check it.",
            )
    return load_tensor_flatbuffer(path, device)


def load_tensor_flatbuffer(file_name: str | Path, device: MeshDevice | None = None) -> Tensor:
    """Read what `dump_tensor_flatbuffer` wrote, whatever the file is called."""
    path = Path(file_name)
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get("ttmesh")
            lanes = file.get_tensor("lanes") if told else None
    except (SafetensorError, OSError) as problem:
        raise _foreign(path, str(problem)) from problem
    if told is None or lanes is None:
        raise _foreign(path, "no ttmesh description")
    kind, mesh_shape = _understood(json.loads(told), device)
    tensor = Tensor.on_host(kind, lanes, mesh_shape)
    return tensor if device is None else tensor.onto(device)


def as_tensor(
    tensor: Any,
    dtype: DataType | None = None,
    *,
    layout: Layout | None = Layout.ROW_MAJOR,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    cache_file_name: str | Path | None = None,
    preprocess: Callable[[Any], Any] | None = None,
    mesh_mapper: Mapper | None = None,
) -> Tensor:
    """`from_torch` with a cache file: read when it is there, else written."""
    if device is not None and memory_config is None:
        raise MeshError(
            "memory_config must be specified when device is specified", expected="memory_config=", fix="Name one."
        )

    def made(on: MeshDevice | None, mapper: Mapper | None) -> Tensor:
        values = tensor if preprocess is None else preprocess(tensor)
        result = from_torch(values, dtype, layout=layout, device=on, memory_config=memory_config, mesh_mapper=mapper)
        assert result is not None, "as_tensor was given values"
        return result

    if cache_file_name is None:
        return made(device, mesh_mapper)
    names = (dtype.name if dtype is not None else "None", layout.name if layout is not None else "None")
    path = Path(f"{cache_file_name}_dtype_{names[0]}_layout_{names[1]}{SUFFIX}")
    divided = mesh_shape_of(device).part if device is not None else None
    if path.is_file() if divided is None else divided.all_say(path.is_file()):
        try:
            return load_tensor(path, device=device)
        except MeshError as problem:
            log.warning("Failed to load cache for %s: %s", path, problem)
    replicates = isinstance(mesh_mapper, ReplicateTensorToMeshWrapper)  # TT-NN keeps one copy of those in the file
    host = made(None, None if replicates else mesh_mapper)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _unwritable(path, problem) from None
    dump_tensor(path, host)
    return host if device is None else host.onto(device, memory_config)


def _checked(file_name: str | Path) -> Path:
    if not str(file_name).endswith(SUFFIX):
        raise MeshError(
            f"File {file_name} must have {SUFFIX} extension", expected=f"a name ending in {SUFFIX}", fix="Rename it."
        )
    return Path(file_name)


def _foreign(path: Path, problem: str) -> MeshError:
    return MeshError(
        f"{path} was not written by ttmesh ({problem})",
        expected="a file of ttmesh.ttnn.dump_tensor; TT-NN's own flatbuffer files cannot be read here",
        fix="Convert it where TT-NN runs: to_torch there, torch.save, from_torch here.",
    )


def _described(host: Tensor) -> dict[str, Any]:
    spec, topology = host.spec, host.tensor_topology()
    presence = host.kind.presence
    return {
        "version": VERSION,
        "shape": list(spec.shape),
        "dtype": spec.dtype.name,
        "layout": spec.layout.name,
        "tile": [list(spec.tile.tile_shape), spec.tile.transpose_tile] if spec.layout is Layout.TILE else None,
        "alignment": list(spec.alignment),
        "padding": spec.pad_value,
        "memory": _memory_to(spec.memory_config),
        "mesh": list(host.mesh_shape),
        "part": None if host.mesh_shape.part is None else [host.mesh_shape.part.start, host.mesh_shape.part.block],
        "presence": None if presence is None else sorted(map(list, presence)),
        "topology": [
            list(topology.distribution_shape()),
            [placement.dim if isinstance(placement, Shard) else None for placement in topology.placements()],
            [list(coord) for coord in topology.mesh_coords()],
        ],
    }


def _understood(told: dict[str, Any], device: MeshDevice | None) -> tuple[Any, MeshShape]:
    if told["version"] != VERSION:
        raise MeshError(
            f"the file has version {told['version']}",
            expected=f"version {VERSION}",
            fix="Write it again with this ttmesh.",
        )
    tile = None if told["tile"] is None else Tile(tuple(told["tile"][0]), told["tile"][1])
    spec = TensorSpec(
        told["shape"],
        DataType[told["dtype"]],
        Layout[told["layout"]],
        tile=tile,
        memory_config=_memory_from(told["memory"]),
        alignment=tuple(told["alignment"]),
        pad_value=told["padding"],
    )
    extents, dims, coords = told["topology"]
    placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    topology = TensorTopology(MeshShape(extents), placements, [MeshCoordinate(coord) for coord in coords])
    presence = None if told["presence"] is None else frozenset(tuple(coord) for coord in told["presence"])
    return kind_of(spec, topology, presence), _cut_for(told, device)


def _cut_for(told: dict[str, Any], device: MeshDevice | None) -> MeshShape:
    """The mesh of the file; one with a rank's part only can be read for that part only."""
    shape = MeshShape(told["mesh"])
    if told.get("part") is None:
        return shape
    part = None if device is None else device.part
    if part is None or [list(part.start), list(part.block)] != told["part"] or device is None:
        raise MeshError(
            f"the file holds the block of {told['part'][1]} at {told['part'][0]} of {shape!r}, written by one rank",
            expected="device=, a mesh of which this rank holds the same block",
            fix="Write it with DumpTensorMode.DISTRIBUTED_GATHER to read it anywhere.",
        )
    return device.shape


def _memory_to(config: MemoryConfig) -> dict[str, Any]:
    spec: ShardSpec | NdShardSpec | None
    spec = config.nd_shard_spec if config.created_with_nd_shard_spec else config.shard_spec
    told: dict[str, Any] = {"layout": config.memory_layout.name, "buffer": config.buffer_type.name}
    if spec is not None:
        boxes = [[*box.start, *box.end] for box in spec.grid.ranges()]
        shape = spec.shard_shape if isinstance(spec, NdShardSpec) else spec.shape
        strategy = spec.shard_distribution_strategy.name if isinstance(spec, NdShardSpec) else None
        told["shard"] = [list(shape), boxes, spec.orientation.name, strategy]
    return told


def _memory_from(told: dict[str, Any]) -> MemoryConfig:
    layout, buffer = TensorMemoryLayout[told["layout"]], BufferType[told["buffer"]]
    if "shard" not in told:
        return MemoryConfig(layout, buffer)
    shape, boxes, turn, strategy = told["shard"]
    grid = CoreRangeSet([CoreRange(CoreCoord(a, b), CoreCoord(c, d)) for a, b, c, d in boxes])
    if strategy is None:
        return MemoryConfig(layout, buffer, ShardSpec(grid, shape, ShardOrientation[turn]))
    return MemoryConfig(buffer, NdShardSpec(shape, grid, ShardOrientation[turn], ShardDistributionStrategy[strategy]))
