"""What TT-NN's gathers into given buffers refuse, in its order."""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import MeshError
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.tensor import Tensor


def _require(condition: bool, text: str, expected: str, fix: str) -> None:
    if not condition:
        raise MeshError(text, expected=expected, fix=fix)


def check_ring_buffers(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], dim: int, n: int, asked: MemoryConfig | None
) -> None:
    """Raise for tensors that ring_attention_all_gather_async does not take; a buffer may be longer along the dim."""
    first = inputs[0]
    tiles = "Convert it with ttnn.to_layout first."
    for i, tensor in enumerate(inputs):
        _require(tensor.layout is Layout.TILE, f"Input tensor {i} must be tiled", "TILE layout", tiles)
    held = first.memory_config()
    _require(
        not held.is_sharded(), f"Unsupported memory layout {held.memory_layout}.", "an interleaved tensor",
        "Convert it with ttnn.to_memory_config first.",
    )  # fmt: skip
    config = held if asked is None else asked
    for i, tensor in enumerate(outputs):
        _require(tensor.layout is Layout.TILE, f"Output tensor {i} must be tiled", "TILE layout", tiles)
        _require(
            tensor.dtype is first.dtype, f"Output tensor {i} dtype should match input tensors but has {tensor.dtype}",
            f"{first.dtype}", "Allocate it with that dtype.",
        )  # fmt: skip
        _require(
            tensor.memory_config() == config, f"Output tensor {i} memory config should match output_mem_config",
            "the memory config asked for, or the input's", "Allocate it there, or pass memory_config.",
        )  # fmt: skip
        at = dim % len(first.shape)
        for d, (given, own) in enumerate(zip(tensor.shape, inputs[i].shape, strict=False)):
            wanted = own * n if d == at else own
            if d == at:
                _require(
                    given >= wanted,
                    f"Output tensor {i} gather dim {d} too small: got {given}, expected >= {wanted} (= input_dim * "
                    f"ring_size {n})",
                    f"{wanted} or more", "Allocate a longer buffer.",
                )  # fmt: skip
            else:
                _require(
                    given == wanted, f"Output tensor {i} non-gather dim {d} mismatch: got {given}, expected {wanted}",
                    f"{wanted}", "Allocate it with that length.",
                )  # fmt: skip


def check_high_bandwidth(
    tensor: Tensor, output: Tensor, dim: int, axis: int, n: int, subdevice_id: SubDeviceId | None
) -> None:
    """Raise for tensors that high_bw_all_gather does not take."""
    topology, mesh = tensor.tensor_topology(), tensor.device()
    assert mesh is not None, "looked for before"
    _require(
        subdevice_id is None or int(subdevice_id) < len(mesh.sub_devices.loaded.sub_devices),
        f"high_bw_all_gather subdevice_id {int(subdevice_id or 0)} is not part of active subdevice manager 0",
        "a sub-device of the loaded manager", "Load the manager that has it, or use another id.",
    )  # fmt: skip
    rank, count = topology.distribution_shape().dims(), len(topology.placements())
    _require(
        n > 1, f"high_bw_all_gather cluster_axis {axis} selects a singleton mesh axis in mesh shape {tensor.mesh_shape!r}",
        "an axis of two chips or more", "Choose another cluster_axis.",
    )  # fmt: skip
    _require(
        axis < rank,
        "high_bw_all_gather requires the tensor distribution axes to match the device mesh axes; "
        f"cluster_axis={axis}, distribution rank={rank}, placement count={count}",
        "a tensor distributed over the axes of its mesh", "Distribute it with ShardTensor2dMesh.",
    )  # fmt: skip
    _require(
        tensor.memory_config().buffer_type is BufferType.DRAM, "high_bw_all_gather requires DRAM input",
        "a tensor in DRAM", "Move it with ttnn.to_memory_config first.",
    )  # fmt: skip
    _require(
        output.layout is tensor.layout,
        f"Output tensor layout Layout::{output.layout.name} should be same as input tensor layout "
        f"Layout::{tensor.layout.name}",
        f"{tensor.layout}", "Allocate it with that layout.",
    )  # fmt: skip
    _require(
        output.dtype is tensor.dtype,
        f"Output tensor dtype DataType::{output.dtype.name} should be same as input tensor dtype "
        f"DataType::{tensor.dtype.name}",
        f"{tensor.dtype}", "Allocate it with that dtype.",
    )  # fmt: skip
    wanted = list(tensor.padded_shape)
    wanted[dim] *= n
    _require(
        len(output.shape) == len(wanted),
        f"Output tensor shape should have same number of dimensions as input tensor but has {len(output.shape)}",
        f"{len(wanted)} dims", "Allocate it with that shape.",
    )  # fmt: skip
    _require(
        list(output.padded_shape) == wanted,
        f"Output tensor shape must be the worst-case gathered shape {Shape(wanted)!r}, got {output.padded_shape!r}",
        f"{wanted}", "Allocate it with that shape.",
    )  # fmt: skip
