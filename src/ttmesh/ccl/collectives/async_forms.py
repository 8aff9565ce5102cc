"""The experimental forms with semaphores and persistent buffers.

Semaphores, worker counts and buffer counts order the kernels of a real chip; commands are ordered here already, so
they are taken and have no effect. A persistent output buffer is where the result is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.ccl.collectives.all_to_all import exchange
from ttmesh.ccl.collectives.reduce_gather import gather, others_gathered, reduce_all, scatter
from ttmesh.ccl.planning.collective_call import check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, normal_dim
from ttmesh.ccl.planning.reduction_terms import ReduceType
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.ops.catalogue.parameter_tags import Tag
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.tensor import Tensor

_EXPERIMENTAL = "ttnn.experimental."


_JOINED = "All parts along an axis joined along a dim, on every device of it."
_CUT = "The sum over an axis, cut along a dim: part i on device i."
_EXCHANGED = "A tensor cut along in_dim over an axis becomes one cut along out_dim."


@dataclass(frozen=True)
class Form:
    """A collective under another name of TT-NN's, with defaults of its own.

    `outputs`: the arguments that may name the tensor to write into; one that holds a list has it at `place`.
    `topology`: what is wanted where the call says nothing. `fixed`: arguments of the collective that calls do not give.
    """

    name: str
    base: Callable[..., Tensor]
    doc: str
    topology: Topology | None = None
    outputs: tuple[str, ...] = ("persistent_output_buffer",)
    place: int = 0
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def takes(self) -> list[str]:
        """TT-NN's names of the arguments that have an effect."""
        own = [p for p in inspect.signature(self.base).parameters if p not in {"name", "tensor", "output", *self.fixed}]
        return ["input_tensor", *own, *self.outputs]

    def __call__(self, **given: Any) -> Tensor:
        """Carry the call out; `given` has names of `takes` only."""
        tensor, output = given.pop("input_tensor"), None
        for name in self.outputs:
            value = given.pop(name, None)
            if value is not None:
                output = (
                    value if isinstance(value, Tensor) else (value[self.place] if len(value) > self.place else None)
                )
        if self.topology is not None and given.get("topology") is None:
            given["topology"] = self.topology
        return self.base(_EXPERIMENTAL + self.name, tensor, output=output, **given, **self.fixed)

    def enter(self) -> None:
        """Put it into the catalogue, with the signature that says what it takes."""

        def form(**given: Any) -> Tensor:
            return self(**given)

        kind = inspect.Parameter.KEYWORD_ONLY
        form.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in self.takes()])  # type: ignore[attr-defined]
        form.__doc__ = self.doc
        collective(_EXPERIMENTAL + self.name, direct=True)(form)


_BOTH = ("persistent_output_buffer", "persistent_output_tensor")
_LISTED = ("persistent_output_buffers",)  # the intermediate buffer, then the output

for _form in (
    Form("all_gather_async", gather, _JOINED, Topology.Ring, _BOTH, fixed={"whole_axis": True, "reverse": False}),
    Form(
        "all_gather_async_reversed", gather, _JOINED, Topology.Ring, _BOTH, fixed={"whole_axis": True, "reverse": True}
    ),
    Form("strided_all_gather_async", gather, _JOINED, Topology.Ring, fixed={"whole_axis": True, "reverse": False}),
    Form("reduce_scatter_minimal_async", scatter, _CUT, Topology.Ring, _LISTED, place=1),
    Form("strided_reduce_scatter_async", scatter, _CUT, Topology.Ring, _LISTED, place=1),
    Form("reduce_scatter_minimal_direct", scatter, _CUT, None, ("persistent_buffers",), fixed={"algorithm": "direct"}),
    Form("llama_reduce_scatter", scatter, _CUT, Topology.Linear, ()),
    Form("all_to_all_async", exchange, _EXCHANGED, Topology.Ring),
    Form("all_to_all_async_generic", exchange, _EXCHANGED),
):
    _form.enter()


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
        kind_of(spec, like.tensor_topology()), footprint_of(spec, mesh.heap.map).allocate(mesh, "persistent"), mesh
    )
