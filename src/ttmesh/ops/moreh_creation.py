"""Creation as Moreh's operations do it: on the device, by a program, in tiles."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import DataType, Layout, bfloat16
from ttmesh.mesh.mesh_device import MeshDevice
from ttmesh.ops.creation import arange, filled
from ttmesh.ops.entry import composite, op
from ttmesh.ops.specs import Inferred, out_spec
from ttmesh.tensor.launch import Call
from ttmesh.tensor.memory_config import MemoryConfig
from ttmesh.tensor.spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfers import copy_host_to_device_tensor


@composite("ttnn.moreh_full", golden=lambda shape, fill_value, *_, **__: torch.full(tuple(shape), fill_value))
def moreh_full(
    shape: Sequence[int],
    fill_value: float,
    device: MeshDevice,
    dtype: DataType | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """A tensor of one value."""
    return filled(
        shape, fill_value, dtype or bfloat16, Layout.TILE if layout is None else layout, device, memory_config
    )


def _full_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [out_spec(call, inferred[0][0], layout=call["layout"])]


@op(
    "ttnn.moreh_full_like",
    golden=lambda input, fill_value, **_: torch.full(input.shape, fill_value, dtype=input.dtype),
    out=_full_spec,
)
def moreh_full_like(input: torch.Tensor, fill_value: float, lane_axes: int) -> torch.Tensor:
    """One value in the shape of another tensor."""
    return torch.full((*[1] * lane_axes, *input.shape[lane_axes:]), fill_value, device=input.device)


@composite("ttnn.moreh_arange", golden=lambda start, end, step, *_, **__: torch.arange(start, end, step))
def moreh_arange(
    start: int,
    end: int,
    step: int,
    device: MeshDevice,
    output: Tensor | None,
    untilize_out: bool,
    dtype: DataType | None,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """Whole numbers from start up to but without end, in tiles unless rows are asked for."""
    layout = Layout.ROW_MAJOR if untilize_out else Layout.TILE
    if output is not None:
        values: Tensor = arange(start, end, step, dtype=output.dtype, layout=output.layout)
        copy_host_to_device_tensor(values, output)
        return output
    made: Tensor = arange(
        start, end, step, dtype=dtype or bfloat16, device=device, memory_config=memory_config, layout=layout
    )
    return made
