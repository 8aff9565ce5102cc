"""What TT-NN's all_to_all_async refuses, in its order: in its own program, or in the general one where that runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ccl.collectives.line_checks import check_routes
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.group_plan import find_fabric_topology
from ttmesh.ccl.planning.staging_buffers import PAYLOAD_BYTES
from ttmesh.ccl.planning.tensor_dims import index_text
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor

TILE = 32
ROLES = (("Intermediate", "intermediate"), ("Output", "output"))


def check_index(tensor: Tensor, **dims: int) -> None:
    """Raise for dims that the shape does not have."""
    rank = len(tensor.shape)
    for key, dim in dims.items():
        if not -max(4, rank) <= dim < rank:
            raise ShapeError(index_text(dim, rank), expected=f"0 to {rank - 1}", fix=f"Change {key}.")


def is_composed_exchange(request: Request, in_dim: int, out_dim: int, n: int) -> bool:
    """Whether TT-NN gathers the tensor and slices it: its programs exchange whole tiles in DRAM."""
    spec, asked = request.tensor.spec, request["memory_config"]
    if spec.layout is not Layout.TILE or spec.buffer_type is not BufferType.DRAM:
        return True
    if spec.memory_config.is_sharded() or (asked is not None and asked.is_sharded()):
        return True
    rank = len(spec.shape)
    in_tiles = [dim % rank for dim in (in_dim, out_dim) if dim % rank >= rank - 2]
    if any(spec.shape[dim] % TILE for dim in in_tiles):
        return True
    return out_dim % rank >= rank - 2 and spec.shape[out_dim] // n % TILE != 0


def check_exchange(request: Request, in_dim: int, out_dim: int, n: int) -> None:
    """Raise what all_to_all_async refuses; `in_dim` and `out_dim` as the caller gave them."""
    shape = list(request.tensor.shape)
    shape[in_dim] *= n
    shape[out_dim] //= n
    if is_composed_exchange(request, in_dim, out_dim, n):
        distribution = request.tensor.tensor_topology().distribution_shape()
        require(
            distribution.is_line_topology(),
            "all_broadcast op is only supported for a linear tensor topology shape",
            f"a tensor distributed along one axis, not over {distribution!r}",
            "Use all_to_all_async_generic with cluster_axis.",
        )
        check_routes(request)
    elif has_own_program(shape, in_dim, out_dim):
        _check_own_program(request, shape, in_dim, n)
    else:
        _check_general_program(request, shape, in_dim)


def has_own_program(shape: Sequence[int], in_dim: int, out_dim: int) -> bool:
    """Whether the exchange is between the last two of four dims."""
    return len(shape) == 4 and {in_dim, out_dim} == {2, 3}


def _check_packets(request: Request, in_dim: int, n: int) -> None:
    """Raise if the last packet of a chip would end past the intermediate buffer; every packet begins in another bank."""
    spec, banks = request.tensor.spec, request.mesh.heap.map.banks[BufferType.DRAM].count
    buffer = request["intermediate"]
    if buffer is None:
        return
    rows, columns = (spec.padded_shape[i] // TILE for i in (2, 3))
    rows, columns = (rows, columns // n) if in_dim == 2 else (rows // n, columns)
    together = max(1, PAYLOAD_BYTES // spec.page_size_bytes)
    last = n - 2 + (ceil(columns / together) * rows - 1) * (n - 1)
    tile = last % banks + together * banks * (last // banks) + banks
    pages = prod(buffer.padded_shape) // TILE**2
    require(
        tile < pages,
        "Final packet would overflow intermediate buffer. This is unexpected and dangerous.",
        f"a buffer of more than {tile} tiles, not {pages}",
        "Use all_to_all_async_generic with cluster_axis.",
    )


def _check_own_program(request: Request, shape: Sequence[int], in_dim: int, n: int) -> None:
    tensor, rows, links = request.tensor, request.mesh.core_grid.y, request["num_links"] or 1
    require(
        links <= rows,
        f"Worker cores used by links are parallelized over rows, num_links ({links}) exceeds available rows ({rows})",
        f"at most {rows} links",
        "Change num_links.",
    )
    given = (request["intermediate"], *request.outputs)
    for (role, _), buffer in zip(ROLES, given, strict=False):
        if buffer is not None:
            _check_buffer(role, buffer, tensor)
    wanted = request["memory_config"] or tensor.memory_config()
    for output in request.outputs:
        require(
            output is None or output.memory_config() == wanted,
            "Output buffer memory config must match specified output_mem_config",
            "the memory config asked for, or the input's",
            "Allocate it there, or pass memory_config.",
        )
    for (role, word), buffer in zip(ROLES, given, strict=False):
        if buffer is not None:
            require(
                len(buffer.padded_shape) == 4,
                f"AllToAllAsync: {word} buffer must have 4 dimensions",
                "four dims",
                "Allocate it with four dims.",
            )
            require(
                list(buffer.padded_shape) == list(shape),
                f"{role} buffer shape {buffer.padded_shape!r} must match expected shape {Shape(shape)!r} for AllToAllAsync",
                f"{list(shape)}",
                "Allocate it with that shape.",
            )
    require(links == 1, f"AllToAllAsync: num_links must be 1, but is {links}", "1", "Change num_links.")
    topology = request["topology"]
    require(
        topology is Topology.Ring,
        f"DEBUG: topology: Topology::{find_fabric_topology(request, None).name if topology is None else topology.name}",
        "Topology.Ring",
        "Pass topology=ttnn.Topology.Ring.",
    )
    _check_packets(request, in_dim, n)


def _check_buffer(role: str, buffer: Tensor, tensor: Tensor) -> None:
    config = buffer.memory_config()
    require(
        config.buffer_type is BufferType.DRAM,
        f"{role} buffer for all_to_all_async must be in DRAM, but is in BufferType::{config.buffer_type.name}",
        "a tensor in DRAM",
        "Allocate it there.",
    )
    require(buffer.layout is Layout.TILE, f"Unsupported {role.lower()} buffer layout.", "TILE", "Allocate it in tiles.")
    require(
        not config.is_sharded(),
        f"Unsupported {role.lower()} buffer memory layout.",
        "an interleaved tensor",
        "Allocate it interleaved.",
    )
    require(
        buffer.dtype is tensor.dtype,
        f"{role} buffer dtype must match input tensor dtype",
        f"{tensor.dtype}",
        "Allocate it with that dtype.",
    )


def _check_general_program(request: Request, shape: Sequence[int], in_dim: int) -> None:
    for output in request.outputs:
        require(
            output is None or list(output.shape) == list(shape),
            f"Output tensor shape {getattr(output, 'shape', None)!r} must match expected output tensor shape "
            f"{Shape(shape)!r} for AllToAllAsync",
            f"{list(shape)}",
            "Allocate it with that shape.",
        )
    require(in_dim >= 0, "in_dim out of range", "0 or more", "Change in_dim.")
    check_routes(request)
