"""What TT-NN's reduce_scatter refuses, in its order."""

from __future__ import annotations

from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores
from ttmesh.ccl.collectives.composed_scatter import is_composed_scatter
from ttmesh.ccl.planning.collective_call import Request

TILE = 32


def check_reduce_scatter(request: Request, dim: int, n: int) -> None:
    """Raise TT-NN's refusals of its own program; shards that it pads first fit it."""
    spec, rank = request.tensor.spec, len(request.tensor.shape)
    if n == 1 and brings_semaphores(request) and not request.over_host:
        raise MeshError(
            f"{request.name.rpartition('.')[2]} op will only work for num_devices > 1, but has {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if not is_composed_scatter(spec, dim, n):
        alignment = request.mesh.heap.map.banks[spec.buffer_type].page_alignment
        if spec.page_size_bytes % alignment:
            raise ShapeError(
                "reduce_scatter currently requires aligned pages",
                expected=f"pages of a multiple of {alignment} bytes, not {spec.page_size_bytes}",
                fix="Pad the rows, or use tiles.",
            )
        if rank < 2:
            raise ShapeError(
                "reduce_scatter currently supports rank 2 tensors at minimum",
                expected="two dims or more",
                fix="Add a dim with ttnn.unsqueeze.",
            )
        extent = spec.padded_shape[dim]
        if dim >= rank - 2 and extent // TILE % n:
            raise ShapeError(
                f"Number of tiles at dimension {dim} must be divisible by ring_size",
                expected=f"a multiple of {n} tiles, not {extent // TILE}",
                fix="Scatter another dim or pad the tensor.",
            )
        if extent % n:
            raise ShapeError(
                f"Dimension {dim} must be divisible by ring_size: Error, input tensor dimension {dim} should be "
                f"divisible by ring_size but is {extent} and the ring_size is {n}",
                expected=f"a multiple of {n}",
                fix="Scatter another dim or pad the tensor.",
            )
    if spec.shape[dim] % n:
        raise ShapeError(
            f"dim {dim} of length {spec.shape[dim]} cannot be scattered over {n} chips",
            expected=f"a multiple of {n}; its padding of tiles divides, its elements do not",
            fix="Scatter another dim or pad the tensor.",
        )
    if n == 1 and not request.over_host:
        refuse_lone_chip()


def refuse_lone_chip() -> None:
    """Raise what TT-NN says where a chip has no neighbour along the axis."""
    raise MeshError(
        "DEBUG: forward_coord or backward_coord is null",
        expected="an axis of two chips or more",
        fix="Choose another cluster_axis.",
    )
