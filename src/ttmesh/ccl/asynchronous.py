"""The experimental forms with semaphores and persistent buffers.

Semaphores, worker counts and buffer counts order the kernels of a real chip; commands are ordered here already, so
they are taken and have no effect. A persistent output buffer is where the result is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.ccl.collective import check_common, collective, mesh_of, run
from ttmesh.ccl.collectives import gather, others_gathered, reduce_all, scatter
from ttmesh.ccl.copies import exchange
from ttmesh.ccl.placed import check_axis, normal_dim
from ttmesh.ccl.reductions import ReduceType
from ttmesh.fabric.config import Topology
from ttmesh.mesh.sub_devices import SubDeviceId
from ttmesh.ops.parameter_tags import Tag
from ttmesh.tensor.allocate import Footprint
from ttmesh.tensor.kind import kind_of
from ttmesh.tensor.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.tensor import Tensor

_EXPERIMENTAL = "ttnn.experimental."


def _gather_form(name: str, *, reverse: bool = False) -> None:
    @collective(_EXPERIMENTAL + name, direct=True)
    def form(
        input_tensor: Tensor,
        dim: int,
        persistent_output_buffer: Tensor | None = None,
        persistent_output_tensor: Tensor | None = None,
        cluster_axis: int | None = None,
        num_links: int | None = None,
        memory_config: MemoryConfig | None = None,
        topology: Topology | None = None,
        subdevice_id: SubDeviceId | None = None,
        mode: str | None = None,
        algorithm: str | None = None,
    ) -> Tensor:
        """All parts along an axis joined along a dim, on every device of it."""
        output = persistent_output_buffer if persistent_output_tensor is None else persistent_output_tensor
        return gather(
            _EXPERIMENTAL + name, input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
            topology=topology or Topology.Ring, num_links=num_links, subdevice_id=subdevice_id, mode=mode,
            algorithm=algorithm, output=output, whole_axis=True, reverse=reverse,
        )  # fmt: skip


_gather_form("all_gather_async")
_gather_form("all_gather_async_reversed", reverse=True)
_gather_form("strided_all_gather_async")


@collective("ttnn.experimental.high_bw_all_gather")
def high_bw_all_gather(
    input_tensor: Tensor,
    dim: int,
    output_tensor: Tensor,
    cluster_axis: int,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    input_batch_index: int | None = None,
    gathered_dim_size: int | None = None,
) -> Tensor:
    """all_gather into a given tensor."""
    if input_batch_index is not None or gathered_dim_size is not None:
        raise NotEmulatedError(
            "high_bw_all_gather of part of a batch is not emulated",
            expected="no input_batch_index and gathered_dim_size",
            fix="Slice the tensor first.",
        )
    return gather(
        "ttnn.experimental.high_bw_all_gather", input_tensor, dim, cluster_axis=cluster_axis, num_links=num_links,
        subdevice_id=subdevice_id, output=output_tensor, whole_axis=True,
    )  # fmt: skip


_RING_GATHER = "ttnn.experimental.ring_attention_all_gather_async"


@collective(_RING_GATHER, no_effect={"memory_config": Tag("no effect", "The given buffers have their own.")})
def ring_attention_all_gather_async(
    input_tensor: list[Tensor],
    persistent_output_buffer: list[Tensor],
    dim: int,
    cluster_axis: int,
    topology: Topology,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
) -> list[Tensor]:
    """The others' parts of several tensors in their buffers; where its own part would stand, a buffer stays as it is."""
    mesh = mesh_of(_RING_GATHER, [*input_tensor, *persistent_output_buffer])
    check_axis(mesh, cluster_axis)
    options = {"axis": cluster_axis, "topology": topology, "mode": check_common(mesh, None, num_links, subdevice_id)}
    results = []
    for tensor, output in zip(input_tensor, persistent_output_buffer, strict=True):
        at = normal_dim(tensor, dim, f"Invalid gather dim {dim} for {len(tensor.shape)}D input tensor")
        results.append(run(_RING_GATHER, others_gathered, [tensor, output], {"dim": at, **options}, [output]))
    return results


@collective("ttnn.experimental.all_reduce_async", direct=True)
def all_reduce_async(
    input_tensor: Tensor,
    cluster_axis: int | None = None,
    num_devices: int | None = None,
    math_op: ReduceType = ReduceType.Sum,
    dtype: object = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """The sum (or what math_op says) over an axis, on every device of it."""
    if num_devices is not None and num_devices != len(input_tensor.coords()):
        raise MeshError(
            f"all_reduce_async over {num_devices} devices of a tensor on {len(input_tensor.coords())}",
            expected="num_devices to be the devices that hold the tensor",
            fix="Correct num_devices.",
        )
    return reduce_all(
        "ttnn.experimental.all_reduce_async", input_tensor, cluster_axis=cluster_axis, memory_config=memory_config,
        topology=topology or Topology.Linear, num_links=num_links, subdevice_id=subdevice_id, dtype=dtype,
        reduction=math_op, mode=mode, algorithm=algorithm,
    )  # fmt: skip


def _scatter_form(name: str) -> None:
    @collective(_EXPERIMENTAL + name, direct=True)
    def form(
        input_tensor: Tensor,
        dim: int,
        persistent_output_buffers: Sequence[Tensor] | None = None,
        num_links: int | None = None,
        memory_config: MemoryConfig | None = None,
        topology: Topology | None = None,
        subdevice_id: SubDeviceId | None = None,
        cluster_axis: int | None = None,
        mode: str | None = None,
        algorithm: str | None = None,
    ) -> Tensor:
        """The sum over an axis, cut along a dim: part i on device i."""
        return scatter(
            _EXPERIMENTAL + name, input_tensor, dim, cluster_axis=cluster_axis, memory_config=memory_config,
            topology=topology or Topology.Ring, num_links=num_links, subdevice_id=subdevice_id, mode=mode,
            algorithm=algorithm, output=_persistent(persistent_output_buffers),
        )  # fmt: skip


_scatter_form("reduce_scatter_minimal_async")
_scatter_form("strided_reduce_scatter_async")


@collective("ttnn.experimental.reduce_scatter_minimal_direct", direct=True)
def reduce_scatter_minimal_direct(
    input_tensor: Tensor,
    dim: int,
    cluster_axis: int | None = None,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    persistent_buffers: Sequence[Tensor] | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
) -> Tensor:
    """reduce_scatter in which every device sends straight to every other one."""
    return scatter(
        "ttnn.experimental.reduce_scatter_minimal_direct", input_tensor, dim, cluster_axis=cluster_axis,
        memory_config=memory_config, num_links=num_links, subdevice_id=subdevice_id, mode=mode, algorithm="direct",
        output=persistent_buffers[0] if persistent_buffers else None,
    )  # fmt: skip


@collective("ttnn.experimental.llama_reduce_scatter", direct=True)
def llama_reduce_scatter(
    input_tensor: Tensor,
    dim: int,
    cluster_axis: int,
    subdevice_id: SubDeviceId | None = None,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
) -> Tensor:
    """reduce_scatter through a packet buffer."""
    return scatter(
        "ttnn.experimental.llama_reduce_scatter", input_tensor, dim, cluster_axis=cluster_axis,
        memory_config=memory_config, topology=topology or Topology.Linear, num_links=num_links,
        subdevice_id=subdevice_id,
    )  # fmt: skip


@collective("ttnn.experimental.reduce_scatter_minimal_async_create_intermediate_buffer")
def reduce_scatter_minimal_async_create_intermediate_buffer(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> list[Tensor]:
    """The two staging buffers that TT-NN's reduce_scatter can be given; nothing is staged here."""
    return [_memory(input_tensor, input_tensor.shape) for _ in range(2)]


@collective("ttnn.experimental.reduce_scatter_minimal_direct_create_staging_buffer")
def reduce_scatter_minimal_direct_create_staging_buffer(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> Tensor:
    """The staging buffer of a direct reduce_scatter; nothing is staged here."""
    return _memory(input_tensor, input_tensor.shape)


@collective("ttnn.experimental.reduce_scatter_minimal_direct_create_persistent_buffers")
def reduce_scatter_minimal_direct_create_persistent_buffers(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> list[Tensor]:
    """The output and the staging buffer of a direct reduce_scatter."""
    mesh = mesh_of("reduce_scatter_minimal_direct", [input_tensor])
    shape = list(input_tensor.shape)
    shape[dim] //= len(input_tensor.coords()) if cluster_axis is None else mesh.shape[cluster_axis]
    return [_memory(input_tensor, shape), _memory(input_tensor, input_tensor.shape)]


def _memory(like: Tensor, shape: Sequence[int]) -> Tensor:
    mesh = mesh_of("reduce_scatter", [like])
    spec = like.spec.with_memory_config(DRAM_MEMORY_CONFIG).with_shape(shape)
    return Tensor.on_device(
        kind_of(spec, like.tensor_topology()), Footprint(spec, mesh.heap.map).allocate(mesh, "persistent"), mesh
    )


@collective("ttnn.experimental.all_to_all_async")
def all_to_all_async(
    input_tensor: Tensor,
    persistent_output_buffer: Tensor,
    in_dim: int,
    out_dim: int,
    num_links: int = 1,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """A tensor cut along in_dim becomes one cut along out_dim."""
    return exchange(
        "ttnn.experimental.all_to_all_async", input_tensor, in_dim, out_dim, memory_config=memory_config,
        topology=topology or Topology.Ring, num_links=num_links, subdevice_id=subdevice_id, mode=mode,
        algorithm=algorithm, output=persistent_output_buffer,
    )  # fmt: skip


@collective("ttnn.experimental.all_to_all_async_generic", direct=True)
def all_to_all_async_generic(
    input_tensor: Tensor,
    in_dim: int,
    out_dim: int,
    persistent_output_buffer: Tensor | None = None,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    subdevice_id: SubDeviceId | None = None,
    cluster_axis: int | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """A tensor cut along in_dim over an axis becomes one cut along out_dim."""
    return exchange(
        "ttnn.experimental.all_to_all_async_generic", input_tensor, in_dim, out_dim, cluster_axis=cluster_axis,
        memory_config=memory_config, topology=topology, num_links=num_links, subdevice_id=subdevice_id, mode=mode,
        algorithm=algorithm, output=persistent_output_buffer,
    )  # fmt: skip


def _persistent(buffers: Sequence[Tensor] | None) -> Tensor | None:
    """TT-NN's list holds the intermediate buffer, then the output."""
    return buffers[1] if buffers is not None and len(buffers) > 1 else None
