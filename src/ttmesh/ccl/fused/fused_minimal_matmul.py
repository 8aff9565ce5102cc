"""Collectives fused with minimal_matmul, for video models: all_gather then matmul, or matmul then reduce_scatter."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ttmesh.base.errors import NotEmulatedError
from ttmesh.ccl.collectives.line_checks import check_closed_ring, require_ring
from ttmesh.ccl.collectives.reduce_gather import gather, scatter
from ttmesh.ccl.fused.fused_checks import check_sender_groups, check_worker_semaphores
from ttmesh.ccl.fused.fused_matmul import find_operation
from ttmesh.ccl.planning.collective_call import collective, mesh_of
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.ops.matmul.minimal_matmul import multiply_gathered
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor

TILE = 32


class MMSignalAggregatorMode(Enum):
    """Which cores signal the matmul that columns have arrived; it affects only speed."""

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
    config: Any = None,
    compute_kernel_config: Any = None,
    force_transpose: bool = True,
    num_workers_per_link: int = 1,
) -> list[Tensor]:
    """The matmul of the gathered columns with the weights, in chunks; with addcmul, base + scalar * matmul * gate."""
    if fsdp_cluster_axis is not None or chunk_sizes:
        raise NotEmulatedError(
            "all_gather_minimal_matmul_async with gathered weights or uneven chunks is not emulated",
            expected="no fsdp_cluster_axis and no chunk_sizes",
            fix="Gather the weights first, and slice the result.",
        )
    mesh = mesh_of("ttnn.experimental.all_gather_minimal_matmul_async", [input_tensor])
    size = mesh.compute_with_storage_grid_size() if config is None else config.compute_with_storage_grid_size
    check_sender_groups((size.x, size.y), num_links, num_workers_per_link, transposed=force_transpose)
    gathered = gather(
        "ttnn.experimental.all_gather_minimal_matmul_async", input_tensor, -1, cluster_axis=cluster_axis,
        topology=topology or Topology.Ring, num_links=num_links, output=persistent_output_buffer, replicates_axis=True,
        fused="inside",
    )  # fmt: skip
    return _multiply(
        gathered, weight_tensor, bias_tensor, fused_activation, memory_config, dtype, chunks, dim, fuse_swiglu, scalar,
        addcmul_input_tensor1, addcmul_input_tensor2, config, compute_kernel_config, gathered=True,
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
    config: Any = None,
    compute_kernel_config: Any = None,
    multi_device_global_semaphore: Any = (),
    num_workers_per_link: int | None = None,
) -> list[Tensor]:
    """The gathered tensor, then its matmul with the weights, in chunks."""
    mesh = mesh_of("ttnn.experimental.strided_all_gather_minimal_matmul_async", [input_tensor])
    check_worker_semaphores(len(multi_device_global_semaphore), num_workers_per_link)
    check_closed_ring(mesh, cluster_axis, topology or Topology.Ring)
    gathered = gather(
        "ttnn.experimental.strided_all_gather_minimal_matmul_async", input_tensor, dim, cluster_axis=cluster_axis,
        memory_config=memory_config_ag, topology=topology or Topology.Ring, num_links=num_links,
        output=persistent_output_buffer, replicates_axis=True,
    )  # fmt: skip
    results = _multiply(
        gathered, weight_tensor, bias, fused_activation, memory_config_mm, None, chunks, -1, fuse_swiglu,
        fused_ternary_scalar, fused_ternary_input_a, fused_ternary_input_b, config, compute_kernel_config,
    )  # fmt: skip
    return [gathered, *results]


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
    config: Any = None,
    compute_kernel_config: Any = None,
) -> list[Tensor]:
    """The matmul, then its reduce_scatter; addcmul is applied to the sum. Several inputs are concatenated."""
    require_ring(topology or Topology.Ring, "MinimalMatmulStridedReduceScatterAsync only supports Ring topology.")
    first = input_tensor if isinstance(input_tensor, Tensor) else input_tensor[0]
    mesh = mesh_of("ttnn.experimental.minimal_matmul_strided_reduce_scatter_async", [first])
    check_closed_ring(mesh, cluster_axis, Topology.Ring)
    values = input_tensor if isinstance(input_tensor, Tensor) else _concat_columns(input_tensor)
    (matmul_result,) = _multiply(
        values,
        weight_tensor,
        bias,
        fused_activation,
        memory_config_mm,
        dtype,
        1,
        -1,
        False,
        None,
        None,
        None,
        config,
        compute_kernel_config,
    )
    scattered = scatter(
        "ttnn.experimental.minimal_matmul_strided_reduce_scatter_async", matmul_result, dim, cluster_axis=cluster_axis,
        memory_config=rs_output_mem_config, topology=topology or Topology.Ring, num_links=num_links,
        subdevice_id=sub_device_id, output=optional_rs_output_tensor, fused="strided matmul",
    )  # fmt: skip
    return [matmul_result, _add_gated(scattered, fused_ternary_scalar, addcmul_input_tensor1, addcmul_input_tensor2)]


def _concat_columns(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the columns of several tensors, each padded with zeros to full tiles, as they are stored on the chip."""
    padded = []
    for tensor in tensors:
        missing = -tensor.shape[-1] % TILE
        padding = [(0, 0)] * (len(tensor.shape) - 1) + [(0, missing)]
        padded.append(find_operation("ttnn.pad")(tensor, padding, 0.0) if missing else tensor)
    result: Tensor = find_operation("ttnn.concat")(padded, -1)
    return result


def _multiply(
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
    config: Any,
    compute_kernel_config: Any,
    *,
    gathered: bool = False,
) -> list[Tensor]:
    if chunks > 1:
        split_results: list[Tensor] = find_operation("ttnn.experimental.minimal_matmul_split")(
            values, weight, chunks=chunks, dim=dim, bias_tensor=bias, fused_activation=activation,
            memory_config=memory_config, dtype=dtype, fuse_swiglu=swiglu, config=config,
            compute_kernel_config=compute_kernel_config,
        )  # fmt: skip
        return split_results
    multiply = multiply_gathered if gathered else find_operation("ttnn.experimental.minimal_matmul")
    result: Tensor = multiply(
        input_tensor=values, weight_tensor=weight, bias_tensor=bias, fused_activation=activation,
        memory_config=memory_config, dtype=dtype, fuse_swiglu=swiglu, config=config,
        compute_kernel_config=compute_kernel_config,
    )  # fmt: skip
    return [_add_gated(result, scalar, base, gate)]


def _add_gated(values: Tensor, scalar: float | None, base: Tensor | None, gate: Tensor | None) -> Tensor:
    """base + scalar * values * gate, if a base is given."""
    if base is None or gate is None:
        return values
    result: Tensor = find_operation("ttnn.addcmul")(base, values, gate, value=1.0 if scalar is None else scalar)
    return result
