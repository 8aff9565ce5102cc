"""all_to_all: a tensor sharded along one dim over the chips of an axis becomes sharded along another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ccl.collectives.collective_semaphores import program_stages
from ttmesh.ccl.collectives.exchange_checks import check_exchange, check_index, is_composed_exchange
from ttmesh.ccl.collectives.line_checks import check_routes
from ttmesh.ccl.planning import plan_executor
from ttmesh.ccl.planning.collective_call import Decision, Request, common_options, drop_memory, mesh_of, run
from ttmesh.ccl.planning.group_plan import ChipGroups, check_axis, find_groups, normalize_tensor_dim
from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.rank_exchange import exchange_by_target
from ttmesh.ccl.planning.tensor_dims import index_text
from ttmesh.ccl.planning.topology_changes import scattered_topology
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.shape import Shape
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def exchange(
    name: str,
    tensor: Tensor,
    in_dim: int,
    out_dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    subdevice_id: SubDeviceId | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
    output: Tensor | None = None,
    persistent_intermediate_buffer: Tensor | None = None,
) -> Tensor:
    """all_to_all: a tensor sharded along in_dim becomes sharded along out_dim."""
    mesh = mesh_of(name, [tensor])
    check_axis(mesh, cluster_axis, name)
    rank = len(tensor.shape)
    if name.endswith("_generic"):
        for key, dim in (("in_dim", in_dim), ("out_dim", out_dim)):
            if not -max(4, rank) <= dim < rank:
                raise ShapeError(index_text(dim, rank), expected=f"0 to {rank - 1}", fix=f"Change {key}.")
            if dim < 0:
                raise ShapeError(f"{key} out of range", expected=f"0 to {rank - 1}, not {dim}", fix=f"Change {key}.")
    elif name.startswith("ttnn."):
        check_index(tensor, out_dim=out_dim, in_dim=in_dim)
    dims = {
        key: normalize_tensor_dim(tensor, dim, f"AllToAllAsync: {key} must be in range [0, {rank}), but is {dim}")
        for key, dim in (("in_dim", in_dim), ("out_dim", out_dim))
    }
    options: dict[str, Any] = {
        **dims, "axis": cluster_axis, "memory_config": memory_config, "topology": topology, "algorithm": algorithm,
        "intermediate": None if persistent_intermediate_buffer is None else drop_memory(persistent_intermediate_buffer),
        "given_dims": (in_dim, out_dim), **common_options(name, mesh, mode, num_links, subdevice_id),
    }  # fmt: skip
    result: Tensor = run(name, decide_all_to_all, [tensor], options, [output] if output is not None else [])
    return result


def all_to_all(
    tensor: Tensor,
    in_dim: int,
    out_dim: int,
    *,
    cluster_axis: int | None = None,
    memory_config: MemoryConfig | None = None,
    mode: str | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """A tensor sharded along in_dim over an axis becomes sharded along out_dim."""
    return exchange(
        "ttmesh.all_to_all", tensor, in_dim, out_dim, cluster_axis=cluster_axis, memory_config=memory_config, mode=mode,
        algorithm=algorithm,
    )  # fmt: skip


def decide_all_to_all(request: Request) -> Decision:
    """Decide what all_to_all computes and sends."""
    groups, spec = find_groups(request, request["axis"]), request.tensor.spec
    in_dim, out_dim, n = request["in_dim"], request["out_dim"], groups.group_size
    extent = spec.shape[out_dim]
    if request.name == "ttnn.experimental.all_to_all_async" and not (request.over_host or request["algorithm"]):
        given_in, given_out = request["given_dims"]
        check_exchange(request, given_in, given_out, n)
    if n == 1 and request.name.endswith("_generic"):
        raise MeshError(
            f"all_to_all_async is a collective operation and requires more than 1 device, but has {n}",
            expected="an axis of two chips or more",
            fix="Choose another cluster_axis.",
        )
    if request.name.endswith("_generic"):
        alignment = request.mesh.heap.map.banks[spec.buffer_type].page_alignment
        require(
            spec.page_size_bytes % alignment == 0,
            "AllToAllAsync currently requires aligned pages",
            f"pages of a multiple of {alignment} bytes, not {spec.page_size_bytes}",
            "Pad the rows, or use tiles.",
        )
    if extent % n:
        raise ShapeError(
            f"AllToAllAsync: input tensor dimension {extent} must be divisible by num_devices {n}",
            expected=f"a multiple of {n}",
            fix="Choose another out_dim or pad the tensor.",
        )
    shape = [*spec.shape]
    shape[out_dim] //= n
    shape[in_dim] *= n
    if request.name.endswith("_generic"):
        if not request.outputs:
            request.result_spec(shape)
        _check_output(request, shape)
        _check_tiles(spec, shape, in_dim, out_dim)
        check_routes(request)
    size, result = spec.packed_size_bytes, request.result_spec(shape)
    plan = groups.plan("all_to_all", size)
    rank = len(shape)

    def split_targets(lanes: torch.Tensor) -> torch.Tensor:
        """[groups, chips, targets, *local with out_dim / n]."""
        return split_dim(expand_group(groups, lanes), out_dim - rank, n).movedim(out_dim - rank - 1, 2)

    def merge_arrivals(arrived: torch.Tensor) -> tuple[torch.Tensor]:
        """Concatenate [groups, targets, origins, *local] along in_dim."""
        dim_position = arrived.dim() - rank + in_dim - 1
        return (groups.lane_groups.merge(arrived.movedim(2, dim_position).flatten(dim_position, dim_position + 1)),)

    def compute(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return merge_arrivals(split_targets(lanes).transpose(1, 2))

    def run_plan(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        return merge_arrivals(plan_executor.run_all_to_all(split_targets(lanes), plan))

    rank_block, exchange_axes = request.mesh.rank_block, groups.exchange_axes

    def compute_on_rank(lanes: torch.Tensor) -> tuple[torch.Tensor]:
        assert rank_block is not None, "used only if ranks share the axis"
        assert exchange_axes is not None, "used only if ranks share the axis"
        group_lanes = groups.lane_groups.split(lanes)
        local_lanes = group_lanes.expand(
            group_lanes.shape[0], rank_block.block_shape[exchange_axes[0]], *group_lanes.shape[2:]
        )
        shards = split_dim(local_lanes, out_dim - rank, n).movedim(out_dim - rank - 1, 2)
        return merge_arrivals(exchange_by_target(rank_block, exchange_axes[0], shards))

    return Decision(
        (result,),
        run_plan if request["algorithm"] else compute,
        groups.loads(plan, size * n, up=[size] * n, down=[size] * n),
        request.tensor.tensor_topology()
        if request.name.endswith("_generic") or _keeps_topology(request, n)
        else scattered_topology(request.tensor, out_dim, request["axis"]),
        exchange_axes=exchange_axes,
        compute_on_rank=None if exchange_axes is None or request["algorithm"] else compute_on_rank,
        stages=program_stages(request, "all_to_all", [result]) if request.name.endswith("_generic") else None,
    )


def _keeps_topology(request: Request, n: int) -> bool:
    """Whether one of TT-NN's programs makes the exchange, not a gather and a slice."""
    in_dim, out_dim = request["given_dims"]
    return request.name.startswith("ttnn.") and not is_composed_exchange(request, in_dim, out_dim, n)


def _check_output(request: Request, shape: Sequence[int]) -> None:
    """Raise for a buffer that all_to_all_async_generic does not write into."""
    tensor = request.tensor
    for output in request.outputs:
        if output is None:
            continue
        config = output.memory_config()
        require(
            config.buffer_type is BufferType.DRAM,
            f"Output tensor for all_to_all_async must be in DRAM, but is in BufferType::{config.buffer_type.name}",
            "a tensor in DRAM",
            "Allocate it there.",
        )
        require(
            output.layout is Layout.TILE,
            f"Unsupported output layout Layout::{output.layout.name}.",
            "TILE",
            "Allocate it in tiles.",
        )
        require(
            output.dtype is tensor.dtype,
            "Output tensor dtype must match input tensor dtype",
            f"{tensor.dtype}",
            "Allocate it with that dtype.",
        )
        require(
            config == (request["memory_config"] or tensor.memory_config()),
            "Output tensor memory config must match specified output_mem_config",
            "the memory config asked for, or the input's",
            "Allocate it there, or pass memory_config.",
        )
        require(
            list(output.shape) == list(shape),
            f"Output tensor shape {output.shape!r} must match expected output tensor shape {Shape(shape)!r} for "
            "AllToAllAsync",
            f"{list(shape)}",
            "Allocate it with that shape.",
        )


def _check_tiles(spec: TensorSpec, shape: Sequence[int], in_dim: int, out_dim: int) -> None:
    """Raise for rows, and for shards that end inside a face or a tile."""
    if spec.layout is not Layout.TILE:
        raise MeshError(
            f"Unsupported input layout Layout::{spec.layout.name}.",
            expected="TILE",
            fix="Convert it with ttnn.to_layout.",
        )
    rank = len(shape)
    for role, dim, extents in (("Input", in_dim, spec.shape), ("Output", out_dim, shape)):
        grain = {rank - 2: 16, rank - 1: 32}.get(dim, 1)
        if extents[dim] % grain:
            rule = "support only 0 or 16 padding" if grain == 16 else "doesn't support padding"
            raise ShapeError(
                f"{dim} dimension {rule}, so must be divisible by {grain}. {role} tensor shape {Shape(extents)!r} , but has "
                f"{extents[dim] % grain} padding",
                expected=f"a multiple of {grain} along dim {dim}",
                fix="Choose another dim or pad the tensor.",
            )


def expand_group(groups: ChipGroups, lanes: torch.Tensor) -> torch.Tensor:
    """[groups, chips, *local] with a lane for every chip."""
    group_lanes = groups.lane_groups.split(lanes)
    return group_lanes.expand(group_lanes.shape[0], groups.group_size, *group_lanes.shape[2:])
