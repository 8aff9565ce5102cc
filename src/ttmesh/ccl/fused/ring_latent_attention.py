"""ring_mla: causal attention over a latent cache whose sequence is sharded over a ring of devices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, NotEmulatedError, require
from ttmesh.ccl.collectives.line_checks import check_closed_ring
from ttmesh.ccl.collectives.reduce_gather import decide_all_gather
from ttmesh.ccl.fused.ring_attention import find_ring_positions
from ttmesh.ccl.fused.ring_attention_checks import TILE, LatentRing, check_latent_ring, check_ring_cores, read_size
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, common_options, mesh_of, run
from ttmesh.fabric.fabric_config import Topology, is_2d
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.process_fabric import get_fabric_config
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.attention.attention_scores import attend_prefill, make_additive_mask
from ttmesh.ops.attention.block_cyclic_cache import find_start_rows
from ttmesh.ops.attention.sdpa_prefill import prefill_scratch
from ttmesh.ops.attention.sequence_shards import find_sequence_ranks
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import sdpa as goldens
from ttmesh.tensor.calls.call_temporaries import Composition
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.transformer.ring_mla"
SEMAPHORES = 2  # one for each direction of the ring


def _decide_cache_gather(request: Request) -> Decision:
    """Decide a gather of one slot of a cache, or of all of it, into the first rows of a buffer."""
    kv, buffer, dim = request.tensors[0], request.tensors[1], request["dim"]
    lane_axes, selects = request.mesh.shape.dims(), request["selects_slot"]
    layers, layer, index = request["layers"], request["layer"], request["slot"]
    spec = kv.spec.with_shape((1, *kv.shape[1:])) if selects else kv.spec
    shard = Tensor(kind_of(spec, kv.tensor_topology(), kv.kind.presence), None, request.mesh, None)
    decision = decide_all_gather(replace(request, tensors=(shard,), outputs=()))
    fits = tuple(decision.specs[0].shape) == tuple(buffer.shape)

    def compute(cache: Lanes, output: Lanes, slot: Lanes | None = None) -> tuple[Lanes]:
        if slot is not None:
            place = slot.flatten(lane_axes)[..., 0].long() * layers + layer
            cache = torch.take_along_dim(cache, place[..., None, None, None, None], lane_axes)
        elif selects:
            cache = cache.narrow(lane_axes, index * layers + layer, 1)
        (gathered,) = decision.compute(cache)
        if fits:
            return (gathered,)
        dims = [max(a, b) for a, b in zip(gathered.shape[:lane_axes], output.shape[:lane_axes], strict=True)]
        result = output.expand(*dims, *output.shape[lane_axes:]).clone()
        corner = result.narrow(lane_axes, 0, gathered.shape[lane_axes]).narrow(
            dim + lane_axes, 0, gathered.shape[dim + lane_axes]
        )
        corner.copy_(gathered)
        return (result,)

    c = Composition()
    return replace(
        decision, specs=(buffer.spec,), compute=compute, stages=(c, [c.allocate(buffer.spec)]),
        topology=buffer.tensor_topology(),
    )  # fmt: skip


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        TensorSpec(shape, DataType.BFLOAT16, Layout.TILE, memory_config=DRAM_MEMORY_CONFIG) for shape, _ in inferred
    ]


def _programs(call: Call) -> tuple[Hashable, ...]:
    """Identify the device program; slots, and the lengths of a rotated chunk, are runtime arguments."""
    length = None if call["kv_actual_isl"] is not None else call["logical_n"]
    return ((call.name, call.specs, length, *(call[name] for name in ("scale", "head_dim_v", "is_balanced", "setup"))),)


@device_operation(NAME, out=_spec, scratch=prefill_scratch, programs=_programs)
def _attend(
    q: Lanes,
    kv: Lanes,
    kv_actual_isl: int | Lanes | None,
    valid_end: Lanes | None,
    scale: float | None,
    head_dim_v: int,
    logical_n: int,
    is_balanced: bool,
    keys_per_device: int,
    axis: int,
    mesh_shape: tuple[int, ...],
    rank_block: RankBlock | None,
    lane_axes: int,
) -> tuple[Lanes, Lanes]:
    """Rows that no token fills get zeros; TT-NN leaves them as they are."""
    ring, rows, device = mesh_shape[axis], q.shape[-2], q.device
    rank = find_sequence_ranks(mesh_shape, axis, rank_block, device)
    k = kv.narrow(lane_axes, 0, q.shape[lane_axes])[..., : ring * keys_per_device, :]
    end = torch.full([1] * lane_axes, logical_n, device=device, dtype=torch.int64)
    if isinstance(kv_actual_isl, Lanes):
        kv_actual_isl = _read_number(kv_actual_isl, lane_axes)
        end = kv_actual_isl + ring * rows
    if valid_end is not None:
        end = torch.minimum(end, -(-_read_number(valid_end, lane_axes) // TILE) * TILE)
    if rows == keys_per_device:
        by_device = find_ring_positions(rows, ring, is_balanced, device)
        keys, positions = by_device.flatten(), by_device[rank]
    else:
        local = torch.arange(keys_per_device, device=device)
        keys = _find_tokens(local, torch.arange(ring, device=device)[:, None], rows, ring).flatten()
        row = torch.arange(rows, device=device)
        if kv_actual_isl is None:
            positions = (-(-logical_n // TILE) * TILE - ring * rows + rank * rows)[..., None] + row
        else:
            start = find_start_rows(torch.as_tensor(kv_actual_isl, device=device), rows, rank, ring)
            positions = _find_tokens(start[..., None] + row, rank[..., None], rows, ring)
    is_filled = (positions < end[..., None])[..., None, None, :, None]
    allowed = (keys <= positions[..., None]) & (keys < end[..., None, None])
    out = attend_prefill(
        q, k, k[..., :head_dim_v], lane_axes, scale=scale,
        mask=make_additive_mask(allowed[..., None, None, :, :] | ~is_filled),
    )  # fmt: skip
    statistics = out.new_zeros(*out.shape[:-2], 2 * rows, 1)  # TT-NN returns its kernel's scratch
    return out * is_filled, statistics


def _read_number(tensor: Lanes, lane_axes: int) -> Lanes:
    """The one number of every device, [*mesh]."""
    return tensor.flatten(lane_axes)[..., 0].long()


def _find_tokens(row: Lanes, rank: Lanes, rows: int, ring: int) -> Lanes:
    """The position in the sequence of a row of a device's cache; every device holds `rows` of each chunk."""
    return row // rows * (ring * rows) + rank * rows + row % rows


@collective(NAME, golden=goldens.ring_mla)
def ring_mla(
    input_tensor_q: Tensor,
    input_tensor_kv: Tensor,
    persistent_output_buffer_kv: Tensor,
    head_dim_v: int,
    logical_n: int,
    program_config: Any,
    dim: int,
    multi_device_global_semaphore: Sequence[Any],
    num_links: int,
    cluster_axis: int | None,
    mesh_device: MeshDevice,
    topology: Topology,
    ccl_core_grid_offset: Any,
    scale: float | None = None,
    compute_kernel_config: Any = None,
    subdevice_id: SubDeviceId | None = None,
    use_column_major_ccl: bool = False,
    is_balanced: bool = False,
    kv_cache_batch_idx: int | None = None,
    kv_actual_isl: int | None = None,
    slot_id: Tensor | None = None,
    kv_actual_isl_tensor: Tensor | None = None,
    kv_cache_num_layers: int | None = None,
    kv_cache_layer_idx: int | None = None,
    kv_valid_end_tensor: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal attention of this device's rows over all devices' keys, whose first columns are the values."""
    mesh = mesh_of(NAME, [input_tensor_q, input_tensor_kv, persistent_output_buffer_kv])
    axis = _check_axis(mesh, cluster_axis, input_tensor_kv, dim)
    rank = len(input_tensor_kv.shape)
    wrong = f"Dimension input should be in between -{rank} and {rank - 1}, but has {dim}"
    require(-rank <= dim < rank, wrong, "a dim of the cache", "Pass dim=2, the sequence.")
    gather_dim = dim % rank
    metadata = (slot_id, kv_actual_isl_tensor, kv_valid_end_tensor)
    layers, layer = 1 if kv_cache_num_layers is None else kv_cache_num_layers, kv_cache_layer_idx or 0
    for tensor in (input_tensor_q, input_tensor_kv):
        wrong = f"ShapeBase[] index out of range. 3 not in [-4, {len(tensor.shape)})"
        require(len(tensor.shape) == 4, wrong, "four dims", "Reshape it to [batch, heads, sequence, dim].")
    ring = LatentRing(
        input_tensor_q.spec, input_tensor_kv.spec, persistent_output_buffer_kv.spec, mesh.shape[axis], gather_dim,
        head_dim_v, logical_n, is_balanced, kv_cache_batch_idx, layers, layer, kv_actual_isl, metadata,
    )  # fmt: skip
    check_latent_ring(ring, program_config, ccl_core_grid_offset, use_column_major_ccl)
    require(
        compute_kernel_config is None or not compute_kernel_config.fp32_dest_acc_en,
        "Latent-V ring attention is implemented only for streaming compute (fp32_dest_acc_en must be false)",
        "fp32_dest_acc_en=False",
        "Change compute_kernel_config.",
    )
    if (count := len(multi_device_global_semaphore)) < SEMAPHORES:
        raise MeshError(
            f"vector::_M_range_check: __n (which is {SEMAPHORES - 1}) >= this->size() (which is {count})",
            expected="two semaphores",
            fix="Create them with ttnn.create_global_semaphore.",
        )
    check_ring_cores(mesh, program_config, ccl_core_grid_offset, num_links)
    check_closed_ring(mesh, axis, topology)
    common = common_options(NAME, mesh, None, num_links, subdevice_id)
    options = {
        "axis": axis, "dim": gather_dim, "topology": topology, "fused": "inside", "selects_slot": ring.selects_slot,
        "slot": kv_cache_batch_idx, "layers": layers, "layer": layer, **common,
    }  # fmt: skip
    gathered = run(
        NAME, _decide_cache_gather,
        [input_tensor_kv, persistent_output_buffer_kv, *([] if slot_id is None else [slot_id])],
        options, [persistent_output_buffer_kv],
    )  # fmt: skip
    length = kv_actual_isl_tensor if ring.has_metadata and ring.is_chunked else kv_actual_isl
    setup = (
        axis, topology, num_links, ring.selects_slot, read_size(ccl_core_grid_offset), input_tensor_kv.spec,
        (layers, layer) if ring.has_metadata else None, _read_fidelity(compute_kernel_config),
        tuple(map(read_size, [program_config.compute_with_storage_grid_size])),
        program_config.q_chunk_size, program_config.k_chunk_size,
    )  # fmt: skip
    result: tuple[Tensor, Tensor] = _attend(
        q=input_tensor_q, kv=gathered, kv_actual_isl=length, valid_end=kv_valid_end_tensor, scale=scale,
        head_dim_v=head_dim_v, logical_n=logical_n, is_balanced=is_balanced,
        keys_per_device=input_tensor_kv.shape[2], axis=axis, mesh_shape=tuple(mesh.shape), rank_block=mesh.rank_block,
        program_config=program_config, compute_kernel_config=compute_kernel_config, setup=setup,
    )  # fmt: skip
    return result


def _read_fidelity(config: Any) -> tuple[Any, ...]:
    """What a compute config, or TT-NN's default, says."""
    if config is None:
        return ("HiFi2", True, False, False)
    return (config.math_fidelity.name, config.math_approx_mode, config.fp32_dest_acc_en, config.packer_l1_acc)


def _check_axis(mesh: MeshDevice, axis: int | None, kv: Tensor, dim: int) -> int:
    if axis is not None:
        wrong = f"ring_mla cluster_axis must be an in-range mesh axis or None; got {axis} for mesh {mesh.shape!r}"
        require(0 <= axis < 2, wrong, "0, 1 or None", "Choose an axis of the mesh.")
        return axis
    devices, shards = mesh.get_num_devices(), _count_shards(kv, dim)
    require(
        shards == devices,
        f"Full-mesh ring MLA requires KV sequence shards on every device (dim {dim}); got {shards} shards on {devices} "
        "devices",
        f"{devices} shards",
        "Shard the cache over the full mesh with ttnn.ShardTensorToMesh.",
    )
    config = get_fabric_config()
    require(
        is_2d(config),
        "ring_mla cluster_axis=None requires a 2D fabric config (FABRIC_2D or FABRIC_2D_TORUS_X/Y/XY), got "
        f"FabricConfig::{config.name}",
        "FABRIC_2D",
        "Configure it before the mesh is opened.",
    )
    raise NotEmulatedError(
        f"{NAME} over one ring of all devices (cluster_axis=None) is not emulated",
        expected="cluster_axis=0 or 1",
        fix="Use a ring along one axis.",
    )


def _count_shards(tensor: Tensor, dim: int) -> int:
    """Into how many shards a dim is divided."""
    topology, count = tensor.tensor_topology(), 1
    for extent, placement in zip(topology.distribution_shape(), topology.placements(), strict=True):
        if getattr(placement, "dim", None) in (dim, dim - len(tensor.shape)):
            count *= extent
    return count
