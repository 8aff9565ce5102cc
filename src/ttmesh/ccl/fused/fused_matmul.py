"""Collectives that TT-NN fuses with another operation; ttmesh runs the two one after the other."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError, NotEmulatedError, ShapeError, require
from ttmesh.ccl.collectives.gather_checks import check_buffer_format
from ttmesh.ccl.collectives.line_checks import check_closed_ring, check_routes
from ttmesh.ccl.collectives.reduce_gather import gather, reduce_all, scatter
from ttmesh.ccl.fused.fused_checks import (
    check_concat_buffers,
    check_concat_cores,
    check_gathered_shards,
    check_head_cores,
)
from ttmesh.ccl.planning.collective_call import Request, collective, mesh_of
from ttmesh.ccl.planning.group_plan import check_axis, find_usable_topology
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.ops.attention.decode_heads import concat_gathered_heads, split_scattered_heads
from ttmesh.ops.catalogue.definition import OpFunction, catalogue
from ttmesh.ops.matmul.given_config_checks import without_config_checks
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.tensor import Tensor


def find_operation(name: str) -> OpFunction:
    """The operation of this name, which a fused one contains."""
    entry = catalogue.get(name)
    if entry is None or not isinstance(entry.function, OpFunction):
        raise NotEmulatedError(
            f"{name} is not emulated",
            expected="an emulated operation",
            fix="Call the collective and the operation separately.",
        )
    return entry.function


@collective("ttnn.experimental.all_gather_matmul_async")
def all_gather_matmul_async(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    dim: int,
    persistent_output_buffer: Tensor | None = None,
    bias: Tensor | None = None,
    num_links: int = 1,
    memory_config_ag: MemoryConfig | None = None,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config_mm: MemoryConfig | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any = None,
    program_config: Any = None,
    activation: Any = None,
    compute_kernel_config: Any = None,
    core_grid: Any = None,
) -> list[Tensor]:
    """The gathered tensor, and its matmul with the weights."""
    name = "ttnn.experimental.all_gather_matmul_async"
    mesh = mesh_of(name, [input_tensor])
    asked = Request(name, mesh, (input_tensor,), (), {"topology": topology or Topology.Ring})
    if persistent_output_buffer is not None:
        check_buffer_format(input_tensor, persistent_output_buffer)
    require(
        mesh.shape.is_line_topology() or find_usable_topology(asked, None) is Topology.Ring,
        "linear is not support when using fused for all-gather",
        "Topology.Ring",
        "Leave topology out.",
    )
    gathered = gather(
        name, input_tensor, dim, memory_config=memory_config_ag, topology=topology or Topology.Ring,
        num_links=num_links, subdevice_id=subdevice_id, output=persistent_output_buffer, replicates_axis=True,
    )  # fmt: skip
    # TT-NN checks the matmul only where the gathered tensor is given. Models' results lie on more cores than compute.
    with nullcontext() if persistent_output_buffer is not None else without_config_checks():
        result = find_operation("ttnn.linear")(
            gathered, weight_tensor, bias=bias, transpose_a=transpose_a, transpose_b=transpose_b,
            memory_config=memory_config_mm, dtype=dtype, program_config=program_config, activation=activation,
            compute_kernel_config=compute_kernel_config, core_grid=core_grid,
        )  # fmt: skip
    return [gathered, result]


@collective("ttnn.experimental.matmul_reduce_scatter_async")
def matmul_reduce_scatter_async(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    persistent_output_buffer: Tensor,
    dim: int,
    bias: Tensor | None = None,
    num_links: int | None = None,
    memory_config_rs: MemoryConfig | None = None,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
    memory_config_mm: MemoryConfig | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any = None,
    program_config: Any = None,
    activation: Any = None,
    compute_kernel_config: Any = None,
    core_grid: Any = None,
) -> list[Tensor]:
    """The matmul, and its reduce_scatter."""
    mesh = mesh_of("ttnn.experimental.matmul_reduce_scatter_async", [input_tensor])
    check_routes(Request("", mesh, (input_tensor,), (), {"topology": topology or Topology.Ring}))
    matmul_result = find_operation("ttnn.linear")(
        input_tensor, weight_tensor, bias=bias, transpose_a=transpose_a, transpose_b=transpose_b,
        memory_config=memory_config_mm, dtype=dtype, program_config=program_config, activation=activation,
        compute_kernel_config=compute_kernel_config, core_grid=core_grid,
    )  # fmt: skip
    scattered = scatter(
        "ttnn.experimental.matmul_reduce_scatter_async", matmul_result, dim, memory_config=memory_config_rs,
        topology=topology or Topology.Ring, num_links=num_links, subdevice_id=subdevice_id,
        output=persistent_output_buffer,
    )  # fmt: skip
    return [matmul_result, scattered]


@collective("ttnn.experimental.llama_all_gather_matmul_async")
def llama_all_gather_matmul_async(
    input_tensor0: Tensor,
    input_tensor1: Tensor,
    dim: int,
    cluster_axis: int,
    topology: Topology,
    num_links: int | None = None,
    ag_memory_config: MemoryConfig | None = None,
    mm_memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
    program_config: Any = None,
    compute_kernel_config: Any = None,
    dtype: Any = None,
) -> Tensor:
    """The matmul of the gathered tensor with the weights."""
    mesh_of("ttnn.experimental.llama_all_gather_matmul_async", [input_tensor0])
    check_gathered_shards(input_tensor0, ag_memory_config)
    gathered = gather(
        "ttnn.experimental.llama_all_gather_matmul_async", input_tensor0, dim, cluster_axis=cluster_axis,
        memory_config=ag_memory_config, topology=topology, num_links=num_links, subdevice_id=subdevice_id,
        replicates_axis=True,
    )  # fmt: skip
    result: Tensor = find_operation("ttnn.matmul")(
        gathered, input_tensor1, memory_config=mm_memory_config, program_config=program_config,
        compute_kernel_config=compute_kernel_config, dtype=dtype,
    )  # fmt: skip
    return result


@collective("ttnn.experimental.llama_rs_matmul")
def llama_rs_matmul(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    dim: int,
    cluster_axis: int,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    second_weight_tensor: Tensor | None = None,
    rs_tensor: Tensor | None = None,
    topology: Topology | None = None,
    memory_config_rs: MemoryConfig | None = None,
    memory_config_mm: MemoryConfig | None = None,
    compute_kernel_config: Any = None,
    core_grid: Any = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    dtype: Any = None,
    program_config: Any = None,
    activation: Any = None,
    output_tile: Any = None,
    optional_output_tensor: Tensor | None = None,
) -> list[Tensor]:
    """Matmuls with one or two weights, then the reduce_scatter of another tensor, or of the first of two matmuls."""
    if (rs_tensor is None) == (second_weight_tensor is None):
        raise MeshError(
            "Exactly one of rs_tensor or second_weight_tensor must have a value",
            expected=f"one of them, not {'none' if rs_tensor is None else 'both'}",
            fix="Pass the tensor to reduce and scatter, or a second weight.",
        )
    require(
        program_config is not None,
        "bad optional access: no program_config",
        "a program config with gather_in0",
        "Pass program_config.",
    )
    matmul = find_operation("ttnn.matmul")
    weights = [weight_tensor] if second_weight_tensor is None else [weight_tensor, second_weight_tensor]
    outputs = [optional_output_tensor, None]
    results = [
        matmul(
            input_tensor, weight, transpose_a=transpose_a, transpose_b=transpose_b,
            memory_config=memory_config_mm or input_tensor.memory_config(), dtype=dtype,
            program_config=program_config, activation=activation,
            compute_kernel_config=compute_kernel_config, core_grid=core_grid,
            output_tile=output_tile, optional_output_tensor=output,
        )
        for weight, output in zip(weights, outputs, strict=False)
    ]  # fmt: skip
    terms = results[0] if rs_tensor is None else rs_tensor
    scattered = scatter(
        "ttnn.experimental.llama_rs_matmul", terms, dim, cluster_axis=cluster_axis, memory_config=memory_config_rs,
        topology=topology or Topology.Linear, num_links=num_links, subdevice_id=subdevice_id, fused="buffered",
    )  # fmt: skip
    return [*results, scattered]


@collective("ttnn.experimental.all_gather_concat")
def all_gather_concat(
    input_tensor: Tensor,
    buffer_tensor: Tensor,
    dim: int,
    cluster_axis: int,
    num_heads: int,
    memory_config: MemoryConfig,
    num_links: int = 1,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
) -> Tensor:
    """The gathered heads, concatenated."""
    name = "ttnn.experimental.all_gather_concat"
    mesh_of(name, [input_tensor])
    check_concat_cores(input_tensor)
    check_concat_buffers(buffer_tensor, memory_config)
    gathered = gather(
        name, input_tensor, dim, cluster_axis=cluster_axis, memory_config=L1_MEMORY_CONFIG, num_links=num_links,
        topology=topology or Topology.Linear, subdevice_id=subdevice_id, replicates_axis=True, fused=True,
    )  # fmt: skip
    result: Tensor = concat_gathered_heads(input_tensor=gathered, num_heads=num_heads, memory_config=memory_config)
    return result


@collective("ttnn.experimental.all_reduce_create_qkv_heads")
def all_reduce_create_qkv_heads(
    input_tensor: Tensor,
    batch_offset: Tensor,
    cluster_axis: int,
    num_heads: int,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    num_kv_heads: int | None = None,
    slice_size: int | None = None,
    final_memory_config: MemoryConfig | None = None,
    dtype: Any = None,
) -> Any:
    """The all-reduced projection and its heads."""
    heads_in_all = num_heads + 2 * (num_heads if num_kv_heads is None else num_kv_heads)
    require(
        heads_in_all > 0 and input_tensor.shape[-1] % heads_in_all == 0,
        f"Input shape {input_tensor.shape[-1]} must be divisible by num_heads + 2*num_kv_heads = {heads_in_all}",
        f"a multiple of {heads_in_all}",
        "Change num_heads or num_kv_heads.",
    )
    mesh = mesh_of("ttnn.experimental.all_reduce_create_qkv_heads", [input_tensor])
    check_head_cores(input_tensor.shape[-2] if slice_size is None else slice_size, final_memory_config)
    made = input_tensor.dtype if dtype is None else dtype
    require(
        made is DataType.BFLOAT16,
        f"Unsupported data format DataType::{made.name}, currently only bfloat16 is supported",
        "bfloat16",
        "Pass dtype=ttnn.bfloat16.",
    )
    check_closed_ring(mesh, cluster_axis, topology)
    total = reduce_all(
        "ttnn.experimental.all_reduce_create_qkv_heads", input_tensor, cluster_axis=cluster_axis,
        memory_config=memory_config, topology=topology or Topology.Linear, num_links=num_links,
        subdevice_id=subdevice_id, dtype=dtype,
    )  # fmt: skip
    heads = find_operation("ttnn.experimental.nlp_create_qkv_heads_decode")(
        total, num_heads=num_heads, num_kv_heads=num_kv_heads, batch_offset=batch_offset, slice_size=slice_size,
        memory_config=final_memory_config,
    )  # fmt: skip
    return (total, *heads)


@collective("ttnn.experimental.llama_rs_create_heads")
def llama_rs_create_heads(
    input_tensor: Tensor,
    dim: int,
    cluster_axis: int,
    topology: Topology,
    num_heads: int,
    num_kv_heads: int,
    subdevice_id: SubDeviceId | None = None,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    qkv_memory_config: MemoryConfig | None = None,
) -> Any:
    """The heads of the summed projection, of as many users on each chip of the axis."""
    del memory_config  # taken and not used by TT-NN: the heads are where qkv_memory_config says
    name = "ttnn.experimental.llama_rs_create_heads"
    _check_heads(name, input_tensor, dim, cluster_axis, qkv_memory_config)
    users = scatter(
        name, input_tensor, 2, cluster_axis=cluster_axis, memory_config=L1_MEMORY_CONFIG, topology=topology,
        num_links=num_links, subdevice_id=subdevice_id,
    )  # fmt: skip
    return split_scattered_heads(
        input_tensor=users, num_heads=num_heads, num_kv_heads=num_kv_heads, qkv_memory_config=qkv_memory_config
    )


def _check_heads(name: str, x: Tensor, dim: int, axis: int, config: MemoryConfig | None) -> None:
    chips, shard = x.mesh_shape[1], x.memory_config().shard_spec
    check_axis(x.device() or mesh_of(name, [x]), axis, "all_reduce")
    for holds, wrong, expected in (
        (config is not None, "bad optional access: no qkv_memory_config", "qkv_memory_config=, sharded"),
        (dim % len(x.shape) == 3, f"dim must be 3, got {dim}", "dim=3"),
        (axis == 1, f"cluster_axis must be 1, got {axis}", "cluster_axis=1"),
        (chips in (2, 4), f"ring_devices must be 4 or 2, got {chips}", "a mesh of 2 or 4 columns"),
        (shard is not None, "input_tensor must have a shard spec", "a sharded input"),
        (
            config is not None and config.shard_spec is not None,
            "bad optional access: qkv_memory_config must have a shard spec",
            "qkv_memory_config=, sharded",
        ),
    ):
        if not holds:
            raise ShapeError(wrong, expected=expected, fix=f"Change that argument of {name}.")


_MOE_SCATTER = "ttnn.experimental.deepseek_moe_reduce_scatter"
RING_TENSORS = 8


@collective(_MOE_SCATTER)
def deepseek_moe_reduce_scatter(
    input_tensors: list[Tensor],
    output_memory_config: MemoryConfig,
    dim: int,
    num_links: int | None = None,
    topology: Topology | None = None,
    cluster_axis: int | None = None,
) -> Tensor:
    """The reduce_scatter of tensors that are already split: device i gets the sum of the i-th."""
    mesh, first = mesh_of(_MOE_SCATTER, input_tensors[:1]), input_tensors[0]
    check_axis(mesh, cluster_axis, _MOE_SCATTER)
    asked = Request(_MOE_SCATTER, mesh, (first,), (), {"topology": topology or Topology.Ring})
    usable = find_usable_topology(asked, cluster_axis)
    require(
        usable is Topology.Ring,
        f"deepseek_moe_reduce_scatter is hardcoded for tt::tt_fabric::Topology::Ring, but has usable_topology "
        f"Topology::{usable.name}",
        "a ring fabric, and a link between the ends of the axis",
        "Configure FABRIC_1D_RING before opening the mesh.",
    )
    require(
        len(input_tensors) == RING_TENSORS,
        f"deepseek_moe_reduce_scatter requires {RING_TENSORS} input tensors, but has {len(input_tensors)}",
        f"{RING_TENSORS} tensors",
        "Pass one tensor per chip of the ring.",
    )
    concatenated = find_operation("ttnn.concat")(input_tensors, dim)
    return scatter(
        _MOE_SCATTER, concatenated, dim, cluster_axis=cluster_axis,
        memory_config=output_memory_config, topology=topology or Topology.Ring, num_links=num_links,
    )  # fmt: skip
