"""The experimental forms with semaphores and persistent buffers.

Semaphores, worker counts and buffer counts order the kernels of a real chip; commands are ordered here already, so
they are taken and have no effect. A persistent output buffer is where the result is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttmesh.base.errors import MeshError
from ttmesh.ccl.collective import collective
from ttmesh.ccl.collectives import gather, reduce_all, scatter
from ttmesh.ccl.copies import exchange
from ttmesh.ccl.reductions import ReduceType
from ttmesh.fabric.config import Topology
from ttmesh.mesh.sub_devices import SubDeviceId
from ttmesh.tensor.allocate import Footprint
from ttmesh.tensor.memory_config import MemoryConfig
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


@collective("ttnn.experimental.ring_attention_all_gather_async")
def ring_attention_all_gather_async(
    input_tensor: list[Tensor],
    persistent_output_buffer: list[Tensor],
    dim: int,
    cluster_axis: int,
    topology: Topology,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
) -> list[Tensor]:
    """all_gather of several tensors into their buffers."""
    return [
        gather(
            "ttnn.experimental.ring_attention_all_gather_async", tensor, dim, cluster_axis=cluster_axis,
            memory_config=memory_config, topology=topology, num_links=num_links, subdevice_id=subdevice_id,
            output=output, whole_axis=True,
        )
        for tensor, output in zip(input_tensor, persistent_output_buffer, strict=True)
    ]  # fmt: skip


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
        output=_persistent(persistent_buffers),
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


def _intermediate_form(name: str, count: int) -> None:
    @collective(_EXPERIMENTAL + name)
    def form(input_tensor: Tensor, dim: int, cluster_axis: int | None = None) -> Tensor | list[Tensor]:
        """Memory that a reduce_scatter may use in between: nothing needs it here, it is as large as the input."""
        mesh = input_tensor.device()
        assert mesh is not None, "staging memory is made for device tensors"
        made = [
            Tensor.on_device(
                input_tensor.kind, Footprint(input_tensor.spec, mesh.heap.map).allocate(mesh, name), mesh
            )
            for _ in range(count)
        ]  # fmt: skip
        return made[0] if count == 1 else made


_intermediate_form("reduce_scatter_minimal_async_create_intermediate_buffer", 1)
_intermediate_form("reduce_scatter_minimal_direct_create_staging_buffer", 1)


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
