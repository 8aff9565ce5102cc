"""The staging buffers of reduce_scatter that callers can make beforehand: bytes, a page for every chunk of tiles."""

from __future__ import annotations

from math import ceil, prod

from ttmesh.base.cores import CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.base.geometry import MeshCoordinateRange
from ttmesh.base.placement import Replicate
from ttmesh.ccl.planning.tensor_dims import find_tensor_dim
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

TILE = 32
PAYLOAD_BYTES = 4352  # the largest of a packet on a fabric of one dimension
SHARD_BYTES = 640 << 10  # a core's shard, which its kernel reads as a circular buffer
L1_BYTES = 4 << 20  # the interleaved buffer that still goes to L1
DIRECT = "reduce_scatter_minimal_direct"


def list_direct_buffers(tensor: Tensor, mesh: MeshDevice, dim: int, axis: int | None) -> list[TensorSpec]:
    """The specs of the result and of the staging buffer of a direct reduce_scatter; raises for what it does not take."""
    n = len(tensor.coords()) if axis is None else mesh.shape[axis]
    spec, position = tensor.spec, find_tensor_dim(DIRECT, tensor, dim)
    shape = list(spec.shape)
    shape[position] //= n
    result = TensorSpec(shape, spec.dtype, spec.layout, memory_config=spec.memory_config)
    _check_slices(spec, position, n)
    tiles, page = _chunk(spec)
    chunks = ceil(prod(spec.padded_shape) // TILE**2 // n / tiles)
    rows = 2 * chunks * n
    if rows * page <= SHARD_BYTES:
        grid = mesh.compute_with_storage_grid_size()
        cores = CoreRangeSet([CoreRange((0, 0), (grid.x - 1, grid.y - 1))])
        config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, ShardSpec(cores, (rows, page)))
        return [result, _bytes_spec(grid.x * grid.y * rows, page, config)]
    held = BufferType.L1 if rows * page <= L1_BYTES else BufferType.DRAM
    return [result, _bytes_spec(rows, page, MemoryConfig(buffer_type=held))]


def list_ring_buffers(tensor: Tensor, dim: int, n: int) -> list[TensorSpec]:
    """The specs of the two staging buffers of a reduce_scatter on a ring: for all slices, and for the last but one."""
    spec, rank = tensor.spec, len(tensor.shape)
    tiles, page = _chunk(spec)
    position = dim % rank
    channels = 1 if rank < 3 else spec.shape[-3]
    batches = prod(spec.shape[:-3])
    if rank > 4 and position <= rank - 4:
        batches, channels = prod(spec.shape[:position]), prod(spec.shape[position:-2])
    if position < rank - 2:
        channels //= n
    pages = prod(spec.padded_shape) // TILE**2 // n // max(1, batches) // max(1, channels)
    chunks = channels * ceil(pages / tiles)
    config = MemoryConfig(buffer_type=BufferType.DRAM)
    return [_bytes_spec(n * chunks, page, config), _bytes_spec(chunks, page, config)]


def allocate_replicated(mesh: MeshDevice, spec: TensorSpec) -> Tensor:
    """A tensor that is the same on every chip, as TT-NN makes buffers."""
    shape = mesh.shape
    topology = TensorTopology(shape, [Replicate()] * shape.dims(), MeshCoordinateRange(shape).coords())
    return Tensor.on_device(
        kind_of(spec, topology), footprint_of(spec, mesh.heap.map).allocate(mesh, "persistent"), mesh
    )


def _check_slices(spec: TensorSpec, dim: int, n: int) -> None:
    require(
        spec.layout is Layout.TILE,
        f"{DIRECT} requires TILE layout",
        "tiles",
        "Convert it with ttnn.to_layout.",
    )
    rank = len(spec.shape)
    own, padded = spec.shape[dim], spec.padded_shape[dim - rank]
    require(
        dim < rank - 2 or own == padded,
        f"scatter dim {dim} is tile-padded (logical {own} vs padded {padded}); slice boundaries would not line up with the "
        "logical tensor",
        "whole tiles",
        "Scatter another dim or pad the tensor.",
    )
    pages = padded // TILE if dim >= rank - 2 else padded
    if pages % n:
        raise ShapeError(
            f"scatter dim {dim} (padded size {padded}, {pages} pages) must split into {n} whole-page slices",
            expected=f"a multiple of {n} pages",
            fix="Scatter another dim or pad the tensor.",
        )


def _chunk(spec: TensorSpec) -> tuple[int, int]:
    """How many tiles are sent at once, and their bytes."""
    packet = min(4, PAYLOAD_BYTES // spec.page_size_bytes)
    tiles = min(4 * packet, 4 if spec.dtype is DataType.FLOAT32 else 8)
    return tiles, tiles * spec.page_size_bytes


def _bytes_spec(rows: int, page: int, config: MemoryConfig) -> TensorSpec:
    return TensorSpec((rows, page), DataType.UINT8, Layout.ROW_MAJOR, memory_config=config)
