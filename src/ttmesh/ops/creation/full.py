"""Tensor creation: full, zeros, ones, arange, empty and their _like variants, on a mesh or on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType, Layout, bfloat16, float32
from ttmesh.base.errors import MeshError, NotEmulatedError, require
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.elementwise.unary import unary
from ttmesh.ops.goldens import movement as goldens
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import allocate_tensor_on_device, from_torch


def requested_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The spec that the composite passes."""
    spec: TensorSpec = call["spec"]
    return [spec]


def launch_no_program(call: Call) -> tuple[()]:
    """No device program: TT-NN fills on the host and copies."""
    return ()


def _full_lane(spec: TensorSpec, fill_value: float, lane_axes: int, torch_device: torch.device) -> torch.Tensor:
    number = int(fill_value) if spec.dtype in INTEGERS else fill_value
    return torch.full((*[1] * lane_axes, *spec.shape), number, dtype=_lane_dtype(spec.dtype), device=torch_device)


def _lane_dtype(dtype: DataType) -> torch.dtype:
    """The torch dtype of values before they are rounded or wrapped to the format."""
    if dtype in INTEGERS:
        return torch.int64
    return torch.float32 if dtype in BLOCK_FLOATS else lane_dtype(dtype)


FULL = device_operation(
    "ttnn.full", out=requested_spec, runtime=("fill_value",), programs=launch_no_program, outputs=("optional_tensor",)
)(_full_lane)


def create_filled(
    shape: Sequence[int],
    fill_value: float,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None = None,
) -> Tensor:
    """A tensor of one value: in the given tensor, on the given mesh, or on the host."""
    if optional_tensor is not None:
        spec, device = optional_tensor.spec, optional_tensor.device()
    else:
        result_dtype = dtype or bfloat16
        default_layout = Layout.TILE if result_dtype in BLOCK_FLOATS else Layout.ROW_MAJOR
        spec = TensorSpec(
            tuple(shape),
            result_dtype,
            default_layout if layout is None else layout,
            memory_config=memory_config or DRAM_MEMORY_CONFIG,
        )
    if spec.dtype is DataType.FP8_E4M3:
        raise NotEmulatedError(
            "full/zeros/ones: FP8_E4M3 is an output-only dtype, used exclusively by the DeepSeek V3 prefill combine and "
            "dispatch ops; host-side construction via fill is not supported.",
            expected="a format other than fp8_e4m3",
            fix="Use bfloat8_b.",
        )
    if device is None:
        values = _full_lane(spec, fill_value, 0, torch.device("cpu"))
        return _make_on_host(values, spec)
    arguments: Arguments = {
        "spec": spec, "fill_value": fill_value, "device": device, "optional_tensor": optional_tensor,
    }  # fmt: skip
    result: Tensor = FULL(**arguments)
    return result


def _make_on_host(values: torch.Tensor, spec: TensorSpec) -> Tensor:
    tensor = from_torch(values, spec.dtype, layout=spec.layout)
    assert tensor is not None, "from_torch returns None only for None"
    return tensor


@composite("ttnn.full", golden=goldens.full)
def full(
    shape: Sequence[int],
    fill_value: float,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None,
) -> Tensor:
    """A tensor of one value."""
    return create_filled(shape, fill_value, dtype, layout, device, memory_config, optional_tensor)


@composite("ttnn.zeros", golden=goldens.zeros)
def zeros(
    shape: Sequence[int],
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of zeros."""
    return create_filled(shape, 0, dtype, layout, device, memory_config)


@composite("ttnn.ones", golden=goldens.ones)
def ones(
    shape: Sequence[int],
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of ones."""
    return create_filled(shape, 1, dtype, layout, device, memory_config)


def create_filled_like(
    tensor: Tensor,
    fill_value: float,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None,
) -> Tensor:
    """A tensor of one value with another tensor's shape and format; tiles of floats are filled by a device program."""
    out = optional_tensor
    result_dtype = out.dtype if out is not None else dtype or tensor.dtype
    result_layout = out.layout if out is not None else tensor.layout if layout is None else layout
    on_device = tensor.device() is not None
    has_program = result_dtype in (DataType.BFLOAT8_B, bfloat16, float32) and result_dtype is tensor.dtype
    if on_device and has_program and tensor.layout is result_layout is Layout.TILE:
        result: Tensor = unary["fill"](tensor, float(fill_value), memory_config=memory_config, output_tensor=out)
        return result
    if memory_config is None and on_device:
        memory_config = tensor.memory_config()
    return create_filled(
        tensor.shape, fill_value, result_dtype, result_layout, device or tensor.device(), memory_config, out
    )


@composite("ttnn.full_like", golden=goldens.full_like)
def full_like(
    tensor: Tensor,
    fill_value: float,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None,
) -> Tensor:
    """One value in the shape of another tensor."""
    return create_filled_like(tensor, fill_value, dtype, layout, device, memory_config, optional_tensor)


@composite("ttnn.zeros_like", golden=goldens.zeros_like, direct=True)
def zeros_like(
    tensor: Tensor,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None,
) -> Tensor:
    """Zeros in the shape of another tensor."""
    return create_filled_like(tensor, 0, dtype, layout, device, memory_config, optional_tensor)


@composite("ttnn.ones_like", golden=goldens.ones_like, direct=True)
def ones_like(
    tensor: Tensor,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    optional_tensor: Tensor | None,
) -> Tensor:
    """Ones in the shape of another tensor."""
    return create_filled_like(tensor, 1, dtype, layout, device, memory_config, optional_tensor)


def _arange_lane(
    spec: TensorSpec, start: int, end: int, step: int, lane_axes: int, torch_device: torch.device
) -> torch.Tensor:
    values = torch.arange(start, end, step, dtype=torch.int64, device=torch_device)
    return values.reshape(*[1] * lane_axes, -1).to(_lane_dtype(spec.dtype))


ARANGE = device_operation("ttnn.arange", out=requested_spec, programs=launch_no_program)(_arange_lane)


@composite("ttnn.arange", golden=goldens.arange)
def arange(
    end: int,
    dtype: DataType | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
    layout: Layout | None,
    start: int = 0,
    step: int = 1,
) -> Tensor:
    """Integers from start to end, exclusive, in one dim."""
    if step == 0:
        raise MeshError("Step must be nonzero", expected="a nonzero step", fix="Use 1 or -1.")
    if (step > 0) != (start < end) and start != end:
        raise MeshError(
            "Invalid range: Step direction does not match range bounds",
            expected=f"a step from {start} towards {end}",
            fix="Change the sign of step.",
        )
    length = max(0, -(-(end - start) // step))
    require(
        dtype not in BLOCK_FLOATS, "Unsupported dtype", "bfloat16, float32 or integers", "Convert it with typecast."
    )
    spec = TensorSpec(
        (length,), dtype or bfloat16, layout or Layout.ROW_MAJOR, memory_config=memory_config or DRAM_MEMORY_CONFIG
    )
    if device is None:
        return _make_on_host(_arange_lane(spec, start, end, step, 0, torch.device("cpu")), spec)
    result: Tensor = ARANGE(spec=spec, start=start, end=end, step=step, device=device)
    return result


@composite("ttnn.empty", golden=goldens.empty)
def empty(
    shape: Sequence[int],
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of uninitialized memory."""
    spec = TensorSpec(
        tuple(shape), dtype or bfloat16, layout or Layout.ROW_MAJOR, memory_config=memory_config or DRAM_MEMORY_CONFIG
    )
    return allocate_tensor_on_device(spec, device)


@composite("ttnn.empty_like", golden=goldens.empty_like)
def empty_like(
    tensor: Tensor,
    dtype: DataType | None,
    layout: Layout | None,
    device: MeshDevice | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of uninitialized memory in the shape of another tensor."""
    mesh = device or tensor.device()
    result_layout = tensor.layout if layout is None else layout
    if mesh is None:
        return create_filled(tensor.shape, 0, dtype or tensor.dtype, result_layout, None, None)
    config = memory_config or (tensor.memory_config() if tensor.device() is not None else DRAM_MEMORY_CONFIG)
    allocated = allocate_tensor_on_device(
        TensorSpec(tensor.shape, dtype or tensor.dtype, result_layout, memory_config=config), mesh
    )
    same_mesh = mesh is tensor.device()  # then it has the same placement
    return (
        Tensor.on_device(kind_of(allocated.spec, tensor.kind.topology, None), allocated.buffer, mesh)
        if same_mesh
        else allocated
    )


@composite("ttnn.from_buffer")
def from_buffer(
    buffer: Sequence[float],
    shape: Sequence[int],
    dtype: DataType,
    device: MeshDevice | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A list of numbers as a tensor."""
    if dtype in BLOCK_FLOATS or dtype is DataType.INVALID:
        raise MeshError(
            f"Unreachable: {dtype} cannot be made of a list", expected="a number for every element", fix="Use bfloat16."
        )
    values = torch.tensor(buffer, dtype=_lane_dtype(dtype), device="cpu").reshape(tuple(shape))
    tensor = from_torch(
        values, dtype, layout=layout or Layout.ROW_MAJOR, device=device, memory_config=memory_config
    )  # fmt: skip
    assert tensor is not None, "from_torch returns None only for None"
    return tensor
