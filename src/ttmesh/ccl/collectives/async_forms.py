"""The experimental collectives with semaphores and persistent buffers.

Semaphores, worker counts and buffer counts order the kernels of a real chip; ttmesh's commands are already ordered, so
they are accepted and have no effect. The result is written into a persistent output buffer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ttmesh.base.core_work import num_cores_to_corerangeset
from ttmesh.base.errors import MeshError, NotEmulatedError, require
from ttmesh.ccl.collectives.all_to_all import exchange
from ttmesh.ccl.collectives.reduce_gather import decide_gather_of_others, gather, reduce_all, scatter
from ttmesh.ccl.collectives.ring_buffer_checks import check_high_bandwidth, check_ring_buffers
from ttmesh.ccl.planning.collective_call import OWN_OPTIONS, Request, collective, common_options, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_usable_topology
from ttmesh.ccl.planning.link_limits import check_link_number
from ttmesh.ccl.planning.reduction_terms import ReduceType
from ttmesh.ccl.planning.staging_buffers import allocate_replicated, list_direct_buffers, list_ring_buffers
from ttmesh.ccl.planning.tensor_dims import find_tensor_dim
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.ops.catalogue.signatures import signatures
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.tensor import Tensor

_EXPERIMENTAL = "ttnn.experimental."
TILE = 32
HIDDEN = ("use_l1_small_for_semaphores", "intermediate", "fused")  # callers of these forms bring the semaphores


_GATHERED = "All shards along an axis concatenated along a dim, on every device of it."
_SCATTERED = "The sum over an axis, sharded along a dim: shard i on device i."
_EXCHANGED = "A tensor sharded along in_dim over an axis becomes sharded along out_dim."


@dataclass(frozen=True)
class Form:
    """A collective under another TT-NN name, with other defaults.

    `outputs`: the arguments that may hold the output tensor; in a list it is at `output_index`.
    `topology`: the default. `fixed`: arguments of the collective that callers do not pass.
    """

    name: str
    base: Callable[..., Tensor]
    doc: str
    topology: Topology | None = None
    outputs: tuple[str, ...] = ("persistent_output_buffer",)
    output_index: int = 0
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def takes(self) -> list[str]:
        """TT-NN's names of the arguments that have an effect."""
        given = {p for signature in signatures(_EXPERIMENTAL + self.name) for p in signature.parameters} | OWN_OPTIONS
        hidden = {"name", "tensor", "output", *HIDDEN, *self.fixed}
        base_parameters = [p for p in inspect.signature(self.base).parameters if p in given and p not in hidden]
        return ["input_tensor", *base_parameters, *self.outputs]

    def __call__(self, **arguments: Any) -> Tensor:
        """Run the call; `arguments` has names of `takes` only."""
        tensor, output = arguments.pop("input_tensor"), None
        for name in self.outputs:
            value = arguments.pop(name, None)
            if value is not None:
                output = value
                if not isinstance(value, Tensor):
                    output = value[self.output_index] if len(value) > self.output_index else None
                    if self.output_index and value:
                        arguments["intermediate"] = value[0]
        if self.topology is not None and arguments.get("topology") is None:
            arguments["topology"] = self.topology
        if self.name == "llama_reduce_scatter" and arguments.get("memory_config") is None:
            arguments["memory_config"] = _one_tile_per_core(tensor, arguments["dim"], arguments["cluster_axis"])
        return self.base(_EXPERIMENTAL + self.name, tensor, output=output, **arguments, **self.fixed)

    def define(self) -> None:
        """Add it to the catalogue, with the signature of what it takes."""

        def form(**arguments: Any) -> Tensor:
            return self(**arguments)

        kind = inspect.Parameter.KEYWORD_ONLY
        form.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in self.takes()])  # type: ignore[attr-defined]
        form.__doc__ = self.doc
        collective(_EXPERIMENTAL + self.name, direct=True)(form)


_BUFFER_OR_TENSOR = ("persistent_output_buffer", "persistent_output_tensor")
_BUFFER_LIST = ("persistent_output_buffers",)  # the intermediate buffer, then the output

for _form in (
    Form(
        "all_gather_async",
        gather,
        _GATHERED,
        Topology.Ring,
        _BUFFER_OR_TENSOR,
        fixed={"replicates_axis": True, "reverse": False},
    ),
    Form(
        "all_gather_async_reversed",
        gather,
        _GATHERED,
        Topology.Ring,
        _BUFFER_OR_TENSOR,
        fixed={"replicates_axis": True, "reverse": True},
    ),
    Form(
        "strided_all_gather_async", gather, _GATHERED, Topology.Ring, fixed={"replicates_axis": True, "reverse": False}
    ),
    Form("reduce_scatter_minimal_async", scatter, _SCATTERED, Topology.Ring, _BUFFER_LIST, output_index=1),
    Form(
        "strided_reduce_scatter_async",
        scatter,
        _SCATTERED,
        Topology.Ring,
        _BUFFER_LIST,
        output_index=1,
        fixed={"fused": "strided"},
    ),
    Form(
        "reduce_scatter_minimal_direct",
        scatter,
        _SCATTERED,
        None,
        ("persistent_buffers",),
        fixed={"algorithm": "direct"},
    ),
    Form("llama_reduce_scatter", scatter, _SCATTERED, Topology.Linear, (), fixed={"fused": "buffered"}),
    Form("all_to_all_async", exchange, _EXCHANGED, Topology.Ring),
    Form("all_to_all_async_generic", exchange, _EXCHANGED),
):
    _form.define()


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
            "high_bw_all_gather of a slice of a batch is not emulated",
            expected="no input_batch_index and gathered_dim_size",
            fix="Slice the tensor first.",
        )
    mesh = mesh_of("ttnn.experimental.high_bw_all_gather", [input_tensor, output_tensor])
    check_axis(mesh, cluster_axis, "high_bw_all_gather")
    check_link_number("high_bw_all_gather", num_links)
    require(
        cluster_axis is not None,
        "high_bw_all_gather cluster_axis=None requires a 2D fabric config (FABRIC_2D or FABRIC_2D_TORUS_X/Y/XY), got "
        f"FabricConfig::{get_fabric_config().name}",
        "0 or 1",
        "Pass cluster_axis.",
    )
    check_high_bandwidth(input_tensor, output_tensor, dim, cluster_axis, mesh.shape[cluster_axis], subdevice_id)
    return gather(
        "ttnn.experimental.high_bw_all_gather", input_tensor, dim, cluster_axis=cluster_axis, num_links=num_links,
        subdevice_id=subdevice_id, output=output_tensor, replicates_axis=True, fused="into the output",
    )  # fmt: skip


RING_SEMAPHORES = 2
_RING_GATHER = "ttnn.experimental.ring_attention_all_gather_async"


@collective(_RING_GATHER)
def ring_attention_all_gather_async(
    input_tensor: list[Tensor],
    persistent_output_buffer: list[Tensor],
    dim: int,
    cluster_axis: int,
    topology: Topology,
    num_links: int | None = None,
    memory_config: MemoryConfig | None = None,
    subdevice_id: SubDeviceId | None = None,
    multi_device_global_semaphore: list[Any] | None = None,
) -> list[Tensor]:
    """Gather the other devices' shards of several tensors into buffers; a buffer's slice of the own shard is not written."""
    if not input_tensor:
        raise MeshError(_describe_index(0, 0), expected="one tensor or more", fix="Pass the tensors to gather.")
    mesh = mesh_of(_RING_GATHER, [*input_tensor, *persistent_output_buffer])
    check_axis(mesh, cluster_axis, _RING_GATHER)
    options = {
        "axis": cluster_axis, "topology": topology, **common_options(_RING_GATHER, mesh, None, num_links, subdevice_id)
    }  # fmt: skip
    dims = [find_tensor_dim(_RING_GATHER, tensor, dim) for tensor in input_tensor]
    check_ring_buffers(input_tensor, persistent_output_buffer, dim, mesh.shape[cluster_axis], memory_config)
    results = []
    if multi_device_global_semaphore is not None and len(multi_device_global_semaphore) < RING_SEMAPHORES:
        count = len(multi_device_global_semaphore)
        raise MeshError(
            _describe_index(RING_SEMAPHORES - 1, count),
            expected="two semaphores",
            fix="Create them with ttnn.create_global_semaphore.",
        )
    for tensor, output, dim_position in zip(input_tensor, persistent_output_buffer, dims, strict=True):
        results.append(
            run(_RING_GATHER, decide_gather_of_others, [tensor, output], {"dim": dim_position, **options}, [output])
        )
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
    barrier_semaphores: list[Any] | None = None,
    rs_global_semaphores: list[Any] | None = None,
    ag_global_semaphores: list[Any] | None = None,
    buffer_tensor: Tensor | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """The reduction (by default the sum) over an axis, on every device of it."""
    del num_devices  # TT-NN counts the devices of the tensor
    return reduce_all(
        "ttnn.experimental.all_reduce_async", input_tensor, cluster_axis=cluster_axis, memory_config=memory_config,
        topology=topology or Topology.Linear, num_links=num_links, subdevice_id=subdevice_id, dtype=dtype,
        reduction=math_op, mode=mode, algorithm=algorithm,
        brings_semaphores=barrier_semaphores is not None and rs_global_semaphores is not None,
        semaphores=[
            len(given or ()) for given in (barrier_semaphores, rs_global_semaphores, ag_global_semaphores)
        ],
        buffer=buffer_tensor,
    )  # fmt: skip


@collective("ttnn.experimental.reduce_scatter_minimal_async_create_intermediate_buffer")
def reduce_scatter_minimal_async_create_intermediate_buffer(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> list[Tensor]:
    """The two staging buffers that TT-NN's reduce_scatter accepts; ttmesh does not use them."""
    mesh = mesh_of("ttnn.experimental.reduce_scatter_minimal_async_create_intermediate_buffer", [input_tensor])
    check_axis(mesh, cluster_axis)
    request = Request("", mesh, (input_tensor,), (), {"topology": Topology.Ring})
    if find_usable_topology(request, cluster_axis) is not Topology.Ring or dim % len(input_tensor.shape) == 0:
        raise MeshError(
            "reduce_scatter_minimal_async_create_intermediate_buffer only applies to the contiguous fast path (Ring "
            "topology, scatter dim != 0). For other configurations the intermediate has the input tensor shape and can be "
            "allocated directly.",
            expected="a ring and another dim than 0",
            fix="Allocate a tensor like the input.",
        )
    n = len(input_tensor.coords()) if cluster_axis is None else mesh.shape[cluster_axis]
    return [allocate_replicated(mesh, spec) for spec in list_ring_buffers(input_tensor, dim, n)]


@collective("ttnn.experimental.reduce_scatter_minimal_direct_create_staging_buffer")
def reduce_scatter_minimal_direct_create_staging_buffer(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> Tensor:
    """The staging buffer of a direct reduce_scatter; ttmesh does not use it."""
    mesh = mesh_of("reduce_scatter_minimal_direct_create_staging_buffer", [input_tensor])
    return allocate_replicated(mesh, list_direct_buffers(input_tensor, mesh, dim, cluster_axis)[1])


@collective("ttnn.experimental.reduce_scatter_minimal_direct_create_persistent_buffers")
def reduce_scatter_minimal_direct_create_persistent_buffers(
    input_tensor: Tensor, dim: int, cluster_axis: int | None = None
) -> list[Tensor]:
    """The output and the staging buffer of a direct reduce_scatter."""
    mesh = mesh_of("reduce_scatter_minimal_direct_create_persistent_buffers", [input_tensor])
    specs = list_direct_buffers(input_tensor, mesh, dim, cluster_axis)
    return [allocate_replicated(mesh, spec) for spec in specs]


def _one_tile_per_core(tensor: Tensor, dim: int, axis: int) -> MemoryConfig | None:
    """Where llama_reduce_scatter puts its result by default: one tile of its width on each of the first cores."""
    mesh, shard = tensor.device(), tensor.memory_config().shard_spec
    if mesh is None or shard is None or axis >= mesh.shape.dims():
        return None
    columns, grid = tensor.shape[-1] // mesh.shape[axis] // TILE, mesh.compute_with_storage_grid_size()
    if dim % len(tensor.shape) != len(tensor.shape) - 1 or not 0 < columns <= grid.x * grid.y:
        return None
    cores = num_cores_to_corerangeset(columns, grid, row_wise=True)
    own = tensor.memory_config()
    return MemoryConfig(own.memory_layout, own.buffer_type, ShardSpec(cores, [shard.shape[0], TILE], shard.orientation))


def _describe_index(index: int, count: int) -> str:
    """The text of a C++ vector for an index past its end."""
    return f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is {count})"
