"""What TT-NN's all_gather programs refuse, in their order."""

from __future__ import annotations

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores
from ttmesh.ccl.collectives.line_checks import check_routes
from ttmesh.ccl.planning.collective_call import Request, require_routers
from ttmesh.ccl.planning.tensor_dims import index_text
from ttmesh.fabric.fabric_config import is_2d
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor

SEMAPHORES = 2
TILE = 32


def check_all_gather(request: Request, dim: int, n: int) -> None:
    """Raise what the program of ttnn.all_gather, or of its asynchronous forms, does not take."""
    if brings_semaphores(request):
        _check_async(request, dim, n)
        return
    is_line = request.mesh.shape.is_line_topology() or request.tensor.kind.presence is not None
    require(
        bool(request.over_host or request["axis"] is not None or is_line or is_2d(get_fabric_config())),
        "1D fabric on a 2D mesh_device requires cluster_axis to be set",
        "cluster_axis 0 or 1, or a 2D fabric",
        "Pass cluster_axis, or configure FABRIC_2D before opening the mesh.",
    )
    for output in request.outputs:
        if output is not None:
            _check_given_output(request.tensor, output, dim, n)


def _check_given_output(tensor: Tensor, output: Tensor, dim: int, n: int) -> None:
    for name, found, wanted in (("layout", output.layout, tensor.layout), ("dtype", output.dtype, tensor.dtype)):
        text = f"Output tensor {name} {_print(found)} should be same as input tensor {name} {_print(wanted)}"
        require(found is wanted, text, f"{wanted}", f"Allocate the output with the input's {name}.")
    shape, wanted_shape = list(output.padded_shape), list(tensor.padded_shape)
    wanted_shape[dim - len(tensor.shape)] *= n
    require(
        len(shape) == len(wanted_shape),
        f"Output tensor shape should have same number of dimensions as input tensor but has {len(shape)}",
        f"{len(wanted_shape)} dims",
        "Allocate it with that shape.",
    )
    require(
        shape == wanted_shape,
        f"Output tensor shape must be {Shape(wanted_shape)!r}, got {Shape(shape)!r}",
        f"{wanted_shape}",
        "Allocate it with that shape.",
    )


def _check_async(request: Request, dim: int, n: int) -> None:
    tensor, count = request.tensor, request["semaphores"]
    if count is not None:
        require(
            count == SEMAPHORES,
            "Default implementation requires 2 semaphores",
            f"two semaphores, not {count}",
            "Create them with ttnn.create_global_semaphore.",
        )
    for output in request.outputs:
        if output is not None:
            _check_persistent_output(request, tensor, output, dim, n)
    require(
        len(tensor.shape) > 1,
        "AllGatherAsync requires tensor of rank 2 or greater",
        "two dims or more",
        "Add a dim with ttnn.unsqueeze.",
    )
    require(
        request["tuning"] is None or request["tuning"][1] != 0,
        "At least one type of channel must be configured",
        "one worker per link or more",
        "Change num_workers_per_link.",
    )
    if request["reverse"]:
        _check_width(tensor, dim, n)
    if request["axis"] is None:
        check_routes(request)
    require_routers(request)


def check_buffer_format(tensor: Tensor, output: Tensor) -> None:
    """Raise for a persistent output of another layout or format than the input."""
    for name, found, wanted in (("layout", output.layout, tensor.layout), ("dtype", output.dtype, tensor.dtype)):
        text = f"Error, Output tensor {name} should be same as input tensor {name} but has {_print(found)}"
        require(found is wanted, text, f"{wanted}", f"Allocate the output with the input's {name}.")


def _check_persistent_output(request: Request, tensor: Tensor, output: Tensor, dim: int, n: int) -> None:
    check_buffer_format(tensor, output)
    config = request["memory_config"] or tensor.memory_config()
    require(
        output.memory_config() == config,
        f"Error, Output tensor memory config should be same as output_mem_config but has {output.memory_config()!r}",
        f"{config!r}",
        "Allocate it there, or pass memory_config.",
    )
    shape, own = output.padded_shape, tensor.padded_shape
    if len(shape) != len(own):
        raise ShapeError(
            f"Error, Output tensor shape should have same number of dimensions as input tensor but has {len(shape)}",
            expected=f"{len(own)} dims",
            fix="Allocate it with that shape.",
        )
    for i, (given, length) in enumerate(zip(shape, own, strict=True)):
        wanted_length = length * n if i == dim else length
        if given > wanted_length or (given < wanted_length and i != dim):
            raise ShapeError(
                f"Error, Output tensor shape at dimension {i} should be {wanted_length} but has {given}",
                expected=f"{wanted_length}",
                fix="Allocate it with that length.",
            )

    require(
        shape[dim] == own[dim] * n,
        f"Error, Output tensor shape at dimension {dim} should be {own[dim] * n} but has {shape[dim]}",
        f"{own[dim] * n}",
        "Allocate it with that length.",
    )


def _check_width(tensor: Tensor, dim: int, n: int) -> None:
    """TT-NN takes the fourth dim for the width."""
    shape = list(tensor.padded_shape)
    shape[dim - len(tensor.shape)] *= n
    if len(shape) < 4:
        raise ShapeError(index_text(3, len(shape)), expected="four dims", fix="Add dims with ttnn.unsqueeze.")
    if shape[3] % (TILE * n):
        raise MeshError(
            f"When reverse_order=true, tensor width ({shape[3]}) must be divisible by 32*num_devices (32*{n} = {TILE * n})",
            expected=f"a multiple of {TILE * n}",
            fix="Pad the tensor, or use all_gather_async.",
        )


def _print(value: object) -> str:
    kind = "Layout" if isinstance(value, Layout) else "DataType"
    return f"{kind}::{getattr(value, 'name', value)}"
