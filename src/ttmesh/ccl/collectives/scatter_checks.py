"""What TT-NN's reduce_scatter refuses, in its order."""

from __future__ import annotations

from dataclasses import replace

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores
from ttmesh.ccl.collectives.composed_scatter import is_composed_scatter
from ttmesh.ccl.planning.collective_call import Request, print_spec, require_routers
from ttmesh.ccl.planning.group_plan import find_fabric_topology
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.tensor import Tensor

TILE = 32
SEMAPHORES = 3


def check_reduce_scatter(request: Request, dim: int, n: int) -> None:
    """Raise what TT-NN's program for this operation refuses; shards that are padded first pass."""
    spec, rank = request.tensor.spec, len(request.tensor.shape)
    if n == 1 and brings_semaphores(request) and not request.over_host:
        raise MeshError(
            f"{request.name.rpartition('.')[2]} op will only work for num_devices > 1, but has {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    composed = is_composed_scatter(spec, dim, n)
    if brings_semaphores(request) and composed and spec.memory_config.is_sharded():
        require(
            request["memory_config"] is not None,
            "If input memory config is sharded, then output memory config must be provided. Defaulting the output memory "
            "config to the input sharded memory config will break the op as the input and output shapes are different.",
            "memory_config for shards that are joined",
            "Pass memory_config.",
        )
    if composed:
        _check_padding(request)
    else:
        _check_topology(request)
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
        for output in request.outputs:
            if output is not None:
                _check_output(request, output, dim, n)
        _check_intermediate(request)
        require(
            request["tuning"] is None or request["tuning"][1] != 0,
            "Expecting a non-empty CoreRangeSet!",
            "one worker per link or more",
            "Change num_workers_per_link.",
        )
    if spec.shape[dim] % n:
        raise ShapeError(
            f"dim {dim} of length {spec.shape[dim]} cannot be scattered over {n} chips",
            expected=f"a multiple of {n}; its padding of tiles divides, its elements do not",
            fix="Scatter another dim or pad the tensor.",
        )
    if n == 1 and not request.over_host:
        refuse_lone_chip()
    require_routers(request)


def _check_padding(request: Request) -> None:
    """Raise for shards that TT-NN cannot pad to tiles."""
    spec = request.tensor.spec
    require(
        spec.dtype is not DataType.BFLOAT4_B,
        "Only TILE layout is supported for BFLOAT8_B dtype!",
        "another format than bfloat4_b where shards do not fill tiles",
        "Convert it with ttnn.typecast first.",
    )
    require(
        spec.dtype is not DataType.UINT8 or request.over_host,
        "Can only tilize bfloat16/float32 or int32/uint32/uint16 or fp8_e4m3 tensors",
        "another format than uint8",
        "Convert it with ttnn.typecast first.",
    )


def _check_topology(request: Request) -> None:
    """The asynchronous form takes lines and rings as such; the other takes the lines of a mesh."""
    if brings_semaphores(request) and not request.over_host and request["algorithm"] is None:
        topology = find_fabric_topology(request, request["axis"])
        require(
            topology in (Topology.Ring, Topology.Linear),
            "Topology must be either Ring or Linear",
            f"one of these, not {topology}",
            "Pass topology=ttnn.Topology.Linear.",
        )


def _check_output(request: Request, output: Tensor, dim: int, n: int) -> None:
    tensor = request.tensor
    if not brings_semaphores(request):
        shape = list(tensor.shape)
        shape[dim] //= n
        wanted = replace(request, outputs=()).result_spec(shape)
        require(
            output.spec == wanted,
            f"Output tensor spec {print_spec(output.spec)} does not match computed output spec {print_spec(wanted)}",
            f"{wanted!r}",
            "Allocate it with that spec.",
        )
        return
    for name in ("layout", "dtype"):
        require(
            getattr(output, name) is getattr(tensor, name),
            f"Output tensor {name} must match input tensor {name}",
            f"{getattr(tensor, name)}",
            f"Allocate it with that {name}.",
        )
    require(
        output.memory_config() == (request["memory_config"] or tensor.memory_config()),
        "Output tensor memory config must match provided memory_config",
        "the memory config asked for, or the input's",
        "Allocate it there, or pass memory_config.",
    )
    require(
        len(output.shape) == len(tensor.shape),
        "Output tensor must have same number of dimensions as input tensor",
        f"{len(tensor.shape)} dims",
        "Allocate it with as many dims.",
    )
    for i, (given, own) in enumerate(zip(output.padded_shape, tensor.padded_shape, strict=True)):
        rule = "be input dimension / ring_size" if i == dim else "match input dimension"
        length = own // n if i == dim else own
        require(
            given == length, f"Output tensor dimension {i} must {rule}", f"{length}", "Allocate it with that length."
        )


def _check_intermediate(request: Request) -> None:
    """The buffer and the semaphores that callers of the asynchronous form bring."""
    tensor, given, count = request.tensor, request["intermediate"], request["semaphores"]
    if isinstance(given, Tensor):
        require(
            given.device() is not None,
            "Persistent intermediate tensor must be on device",
            "a tensor on a device",
            "Move it with to_device() first.",
        )
        for name in ("layout", "dtype"):
            require(
                getattr(given, name) is getattr(tensor, name),
                f"Intermediate tensor {name} must match input tensor {name}",
                f"{getattr(tensor, name)}",
                f"Allocate it with that {name}.",
            )
    if isinstance(count, int) and request.name.endswith("reduce_scatter_minimal_async"):
        require(
            count == SEMAPHORES,
            f"Expected {SEMAPHORES} semaphores but got {count}",
            f"{SEMAPHORES} semaphores",
            "Create them with ttnn.create_global_semaphore.",
        )


def refuse_lone_chip() -> None:
    """Raise what TT-NN says where a chip has no neighbour along the axis."""
    raise MeshError(
        "DEBUG: forward_coord or backward_coord is null",
        expected="an axis of two chips or more",
        fix="Choose another cluster_axis.",
    )
