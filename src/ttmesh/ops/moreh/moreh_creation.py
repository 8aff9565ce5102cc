"""Moreh's creation operations, which fill tiles with a device program."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from ttmesh.base.dtypes import INTEGERS, DataType, Layout, bfloat16
from ttmesh.base.errors import require
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.creation.full import create_filled, requested_spec
from ttmesh.ops.goldens import moreh as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor


@composite("ttnn.moreh_full", golden=goldens.full)
def moreh_full(
    shape: Sequence[int],
    fill_value: float,
    device: MeshDevice,
    dtype: DataType | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of one value."""
    _check_full(len(shape), dtype or bfloat16)
    key = (tuple(shape), fill_value, dtype, layout, memory_config)
    device.program_cache.compile("ttnn.moreh_full", (("ttnn.moreh_full", *key),))
    made = create_filled(
        shape, fill_value, dtype or bfloat16, Layout.TILE if layout is None else layout, device, memory_config
    )
    return Tensor.on_device(kind_of(made.spec, TensorTopology.replicated_along_axes(device.shape)), made.buffer, device)


def _check_full(rank: int, dtype: DataType) -> None:
    wrong = f"Full operation error: Shape size must be greater than 1, but got shape size = {rank}"
    require(rank > 1, wrong, "two dims or more", "Reshape it afterwards.")
    wrong = f"Full: Unsupported data type DataType::{dtype.name}"
    allowed = (bfloat16, DataType.FLOAT32, DataType.INT32)
    require(dtype in allowed, wrong, "bfloat16, float32 or int32", "Convert it with ttnn.typecast.")


def _check_full_like(call: Call) -> None:
    spec = call.specs[0]
    _check_full(len(spec.shape), call["dtype"] or spec.dtype)


def _full_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], layout=call["layout"])]


@op(
    "ttnn.moreh_full_like",
    golden=goldens.full_like,
    out=_full_spec,
    check=_check_full_like,
)
def moreh_full_like(input: torch.Tensor, fill_value: float, lane_axes: int) -> torch.Tensor:
    """One value in the shape of another tensor."""
    dtype = torch.float32 if isinstance(fill_value, float) else torch.int64
    return torch.full((*[1] * lane_axes, *input.shape[lane_axes:]), fill_value, device=input.device, dtype=dtype)


def _arange_lane(
    spec: TensorSpec, start: float, step: float, lane_axes: int, torch_device: torch.device
) -> torch.Tensor:
    count = torch.arange(spec.shape.volume(), dtype=torch.float64, device=torch_device)
    values = start + step * count
    return (values.long() if spec.dtype in INTEGERS else values.float()).reshape(*[1] * lane_axes, *spec.shape)


_ARANGE = device_operation(
    "ttnn.moreh_arange",
    out=requested_spec,
    outputs=("output",),
    topology=lambda call: TensorTopology.replicated_along_axes(call.mesh.shape),
)(_arange_lane)


def _check_arange(
    start: float, end: float, step: float, dtype: DataType, output: Tensor | None, layout: Layout
) -> None:
    require(step != 0, "step must be nonzero.", "a nonzero step", "Use 1 or -1.")
    wrong = "Upper bound and larger bound inconsistent with step sign."
    require((end - start) * step >= 0, wrong, f"a step from {start} towards {end}", "Change the sign of step.")
    for unsupported in (DataType.BFLOAT8_B, DataType.UINT32):
        wrong = f"moreh arange not support {unsupported.name.lower()} dtype."
        require(
            dtype is not unsupported,
            wrong,
            f"a format other than {unsupported.name.lower()}",
            "Convert the result with ttnn.typecast.",
        )
    if output is not None:
        wrong = "If output is provided as input, its dtype should match the dtype parameter."
        require(dtype is output.dtype, wrong, f"dtype={output.dtype}", "Pass the output's dtype.")
        condition = "when untilize_out" if layout is Layout.ROW_MAJOR else "when !untilize_out"
        wrong = f"Error: output_layout must be Layout::{layout.name} {condition}"
        require(output.layout is layout, wrong, f"{layout}", "Convert it with ttnn.to_layout.")


@composite("ttnn.moreh_arange", golden=goldens.arange)
def moreh_arange(
    start: float,
    end: float,
    step: float,
    device: MeshDevice,
    output: Tensor | None,
    untilize_out: bool,
    dtype: DataType | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """Numbers from start to end, exclusive: a row of tiles, or one dim when untilized."""
    layout, result_dtype = (Layout.ROW_MAJOR if untilize_out else Layout.TILE), dtype or bfloat16
    _check_arange(start, end, step, result_dtype, output, layout)
    count = ceil((end - start) / step)
    shape = (count,) if untilize_out else (1, count)
    spec = TensorSpec(shape, result_dtype, layout, memory_config=memory_config or DRAM_MEMORY_CONFIG)
    arguments = {
        "spec": spec if output is None else output.spec,
        "start": start,
        "step": step,
        "device": device,
        "output": output,
    }
    result: Tensor = _ARANGE(**arguments)
    return result
