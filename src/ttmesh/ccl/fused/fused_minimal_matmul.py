"""Collectives fused with minimal_matmul, which video models use: gather, then multiply; or multiply, then scatter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ttmesh.base.errors import NotEmulatedError
from ttmesh.ccl.collectives.reduce_gather import gather, scatter
from ttmesh.ccl.fused.fused_matmul import operation
from ttmesh.ccl.planning.collective_call import collective
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

TILE = 32


class MMSignalAggregatorMode(Enum):
    """Which cores tell the product that columns have arrived on the chip: speed only."""

    Auto = 0
    On = 1
    Off = 2


@collective("ttnn.experimental.all_gather_minimal_matmul_async")
def all_gather_minimal_matmul_async(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    bias_tensor: Tensor | None = None,
    scalar: float | None = None,
    addcmul_input_tensor1: Tensor | None = None,
    addcmul_input_tensor2: Tensor | None = None,
    fused_activation: Any = None,
    topology: Topology | None = None,
    memory_config: MemoryConfig | None = None,
    dtype: Any = None,
    persistent_output_buffer: Tensor | None = None,
    num_links: int = 1,
    cluster_axis: int | None = None,
    chunks: int = 1,
    dim: int = -1,
    fsdp_cluster_axis: int | None = None,
    fuse_swiglu: bool = False,
    chunk_sizes: tuple[int, ...] = (),
) -> list[Tensor]:
    """The product of the gathered columns with the weights, in parts; with addcmul, base + scalar * product * gate."""
    if fsdp_cluster_axis is not None or chunk_sizes:
        raise NotEmulatedError(
            "all_gather_minimal_matmul_async with gathered weights or uneven chunks is not emulated",
            expected="no fsdp_cluster_axis and no chunk_sizes",
            fix="Gather the weights first, and slice the result.",
        )
    gathered = gather(
        "ttnn.experimental.all_gather_minimal_matmul_async", input_tensor, -1, cluster_axis=cluster_axis,
        topology=topology or Topology.Ring, num_links=num_links, output=persistent_output_buffer, whole_axis=True,
    )  # fmt: skip
    return _products(
        gathered, weight_tensor, bias_tensor, fused_activation, memory_config, dtype, chunks, dim, fuse_swiglu, scalar,
        addcmul_input_tensor1, addcmul_input_tensor2,
    )  # fmt: skip


@collective("ttnn.experimental.strided_all_gather_minimal_matmul_async")
def strided_all_gather_minimal_matmul_async(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    dim: int,
    persistent_output_buffer: Tensor | None = None,
    num_links: int = 1,
    memory_config_ag: MemoryConfig | None = None,
    topology: Topology | None = None,
    cluster_axis: int | None = None,
    bias: Tensor | None = None,
    fused_activation: Any = None,
    memory_config_mm: MemoryConfig | None = None,
    fused_ternary_input_a: Tensor | None = None,
    fused_ternary_input_b: Tensor | None = None,
    fused_ternary_scalar: float | None = None,
    chunks: int = 1,
    fuse_swiglu: bool = False,
) -> list[Tensor]:
    """The gathered tensor, then its product with the weights, in parts."""
    gathered = gather(
        "ttnn.experimental.strided_all_gather_minimal_matmul_async", input_tensor, dim, cluster_axis=cluster_axis,
        memory_config=memory_config_ag, topology=topology or Topology.Ring, num_links=num_links,
        output=persistent_output_buffer, whole_axis=True,
    )  # fmt: skip
    products = _products(
        gathered, weight_tensor, bias, fused_activation, memory_config_mm, None, chunks, -1, fuse_swiglu,
        fused_ternary_scalar, fused_ternary_input_a, fused_ternary_input_b,
    )  # fmt: skip
    return [gathered, *products]


@collective("ttnn.experimental.minimal_matmul_strided_reduce_scatter_async")
def minimal_matmul_strided_reduce_scatter_async(
    input_tensor: Tensor | Sequence[Tensor],
    weight_tensor: Tensor,
    dim: int,
    num_links: int = 1,
    memory_config_mm: MemoryConfig | None = None,
    rs_output_mem_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    cluster_axis: int | None = None,
    bias: Tensor | None = None,
    fused_activation: Any = None,
    sub_device_id: SubDeviceId | None = None,
    optional_rs_output_tensor: Tensor | None = None,
    fused_ternary_scalar: float | None = None,
    addcmul_input_tensor1: Tensor | None = None,
    addcmul_input_tensor2: Tensor | None = None,
    dtype: Any = None,
) -> list[Tensor]:
    """The product, then its scattered sum; addcmul is applied to the sum. Several inputs stand side by side."""
    whole = input_tensor if isinstance(input_tensor, Tensor) else _side_by_side(input_tensor)
    (product,) = _products(
        whole, weight_tensor, bias, fused_activation, memory_config_mm, dtype, 1, -1, False, None, None, None
    )
    scattered = scatter(
        "ttnn.experimental.minimal_matmul_strided_reduce_scatter_async", product, dim, cluster_axis=cluster_axis,
        memory_config=rs_output_mem_config, topology=topology or Topology.Ring, num_links=num_links,
        subdevice_id=sub_device_id, output=optional_rs_output_tensor,
    )  # fmt: skip
    return [product, _add_gated(scattered, fused_ternary_scalar, addcmul_input_tensor1, addcmul_input_tensor2)]


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Columns of several tensors in one, each filled up to whole tiles with zeros, as they lie on the chip."""
    filled = []
    for part in parts:
        missing = -part.shape[-1] % TILE
        sides = [(0, 0)] * (len(part.shape) - 1) + [(0, missing)]
        filled.append(operation("ttnn.pad")(part, sides, 0.0) if missing else part)
    joined: Tensor = operation("ttnn.concat")(filled, -1)
    return joined


def _products(
    values: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Any,
    memory_config: MemoryConfig | None,
    dtype: Any,
    chunks: int,
    dim: int,
    swiglu: bool,
    scalar: float | None,
    base: Tensor | None,
    gate: Tensor | None,
) -> list[Tensor]:
    if chunks > 1:
        parts: list[Tensor] = operation("ttnn.experimental.minimal_matmul_split")(
            values, weight, chunks=chunks, dim=dim, bias_tensor=bias, fused_activation=activation,
            memory_config=memory_config, dtype=dtype, fuse_swiglu=swiglu,
        )  # fmt: skip
        return parts
    whole: Tensor = operation("ttnn.experimental.minimal_matmul")(
        values, weight, bias_tensor=bias, fused_activation=activation, memory_config=memory_config, dtype=dtype,
        fuse_swiglu=swiglu,
    )  # fmt: skip
    return [_add_gated(whole, scalar, base, gate)]


def _add_gated(product: Tensor, scalar: float | None, base: Tensor | None, gate: Tensor | None) -> Tensor:
    """base + scalar * product * gate, where a base is given."""
    if base is None or gate is None:
        return product
    sum_: Tensor = operation("ttnn.addcmul")(base, product, gate, value=1.0 if scalar is None else scalar)
    return sum_
