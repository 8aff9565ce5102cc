"""What TT-NN's `Tensor(...)` constructors mean: values to take in, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.chip.formats.tiles import Tile
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.ingest import Ingested, from_list, ingest
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMeshWrapper, TensorToMesh, unwrap_mapper
from ttmesh.tensor.spec.memory_config import MemoryConfig


class Built(NamedTuple):
    """Lanes on the host and the device they are meant for."""

    made: Ingested
    device: MeshDevice | None
    cq_id: int | None


def built(*args: Any, **given: Any) -> Built:
    """From torch or numpy values, or from a list and a shape."""
    first = args[0] if args else given.get("tensor", given.get("data"))
    return from_data(*args, **given) if isinstance(first, (list, tuple)) else from_values(*args, **given)


def from_data(
    data: Sequence[float],
    shape: Sequence[int],
    data_type: DataType,
    layout: Layout,
    device: MeshDevice | Tile | None = None,
    memory_config: MemoryConfig | None = None,
    tile: Tile | None = None,
    pad_value: float = 0,
) -> Built:
    """The list form."""
    if isinstance(device, Tile):
        device, tile = None, device
    values = from_list(data, shape, data_type)
    return from_values(values, data_type, device, layout, memory_config, tile, None, pad_value)


def from_values(
    tensor: Any,
    data_type: DataType | None = None,
    device: MeshDevice | None = None,
    layout: Layout | None = None,
    mem_config: MemoryConfig | None = None,
    tile: Tile | None = None,
    cq_id: int | None = None,
    pad_value: float | None = None,
    mesh_mapper: TensorToMesh | ReplicateTensorToMeshWrapper | None = None,
    preserve_nan_values: bool = False,
    col_tilize: bool = False,
    enable_bfloat_opt: bool = False,
    *,
    detach: bool = True,
) -> Built:
    """The torch or numpy form; without `detach` lanes may share the values' memory.

    No effect here: NaNs always survive (preserve_nan_values), and values are rounded exactly (enable_bfloat_opt).
    """
    mapper = None if mesh_mapper is None else unwrap_mapper(mesh_mapper)
    made = ingest(
        tensor, data_type, layout, mem_config, tile, mapper, pad_value=pad_value, col_tilize=col_tilize, detach=detach
    )
    return Built(made, device, cq_id)
