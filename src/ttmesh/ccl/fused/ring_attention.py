"""Attention over a sequence that is sharded over a ring of devices: keys and values are passed around, queries stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import NotEmulatedError, require
from ttmesh.ccl.collectives.line_checks import check_closed_ring
from ttmesh.ccl.collectives.reduce_gather import gather
from ttmesh.ccl.planning.collective_call import collective
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.allocation.sub_devices import SubDeviceId
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.attention.attention_scores import attend_prefill, make_additive_mask
from ttmesh.ops.attention.sdpa_prefill import prefill_scratch
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.transformer.ring_joint_scaled_dot_product_attention"


def _spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [
        TensorSpec(shape, DataType.BFLOAT16, Layout.TILE, memory_config=DRAM_MEMORY_CONFIG) for shape, _ in inferred
    ]


def find_ring_positions(rows: int, ring: int, balanced: bool, device: torch.device) -> Lanes:
    """The positions of each device's rows in the sequence, [ring, rows]; balanced: an early and a late chunk per device."""
    if not balanced:
        return torch.arange(ring * rows, device=device).reshape(ring, rows)
    chunks = torch.arange(ring * rows, device=device).reshape(2 * ring, -1)
    return torch.stack([torch.cat([chunks[i], chunks[2 * ring - 1 - i]]) for i in range(ring)])


@device_operation(NAME, out=_spec, scratch=prefill_scratch)
def _attend(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    joint_q: Lanes | None,
    joint_k: Lanes | None,
    joint_v: Lanes | None,
    attention_sink: Lanes | None,
    scale: float | None,
    logical_n: int,
    axis: int,
    ring: int,
    local_devices: slice,
    is_causal: bool,
    is_balanced: bool,
    window: int | None,
    lane_axes: int,
) -> tuple[Lanes, Lanes, Lanes]:
    rows, device = q.shape[-2], q.device
    row_positions = find_ring_positions(rows, ring, is_balanced, device)
    keys = row_positions.flatten()
    shape = [1] * lane_axes
    shape[axis] = -1
    own_positions = (
        row_positions[local_devices].reshape(*shape, 1, 1, rows, 1)
        if is_causal or window
        else row_positions[:1].reshape(*[1] * lane_axes, 1, 1, rows, 1)
    )
    allowed = (keys < logical_n).expand(*own_positions.shape[:-1], -1)
    if is_causal:
        allowed = allowed & (keys <= own_positions)
    if window:
        in_window = (own_positions - keys < window) if is_causal else (own_positions - keys).abs() <= window // 2
        allowed = allowed & in_window
    joint_rows = 0
    if joint_q is not None and joint_k is not None and joint_v is not None:
        joint_rows = joint_q.shape[-2]
        q, k, v = (_concat_rows(a, b, lane_axes) for a, b in ((q, joint_q), (k, joint_k), (v, joint_v)))
        allowed = torch.nn.functional.pad(allowed, (0, joint_k.shape[-2], 0, joint_rows), value=True)
        allowed[..., rows:, : keys.shape[0]] = keys < logical_n
    mask = None if is_all_true(allowed) else make_additive_mask(allowed)
    sink = None if attention_sink is None else attention_sink.float() * (scale or q.shape[-1] ** -0.5)
    out = attend_prefill(q, k, v, lane_axes, scale=scale, mask=mask, sink=sink)
    statistics = out.new_zeros(
        *out.shape[:-2], 2 * out.shape[-2], 1
    )  # TT-NN returns its kernel's scratch, whose values are undefined
    return out[..., :rows, :], out[..., rows : rows + joint_rows, :], statistics


def is_all_true(allowed: Lanes) -> bool:
    """Whether nothing is masked; False on the meta backend, which has no values."""
    return not allowed.is_meta and bool(allowed.all())


def _concat_rows(first: Lanes, second: Lanes, lane_axes: int) -> Lanes:
    dims = [max(a, b) for a, b in zip(first.shape[:lane_axes], second.shape[:lane_axes], strict=True)]
    return torch.cat([tensor.expand(*dims, *tensor.shape[lane_axes:]) for tensor in (first, second)], dim=-2)


@collective(NAME)
def ring_joint_scaled_dot_product_attention(
    input_tensor_q: Tensor,
    input_tensor_k: Tensor,
    input_tensor_v: Tensor,
    joint_tensor_q: Tensor | None,
    joint_tensor_k: Tensor | None,
    joint_tensor_v: Tensor | None,
    persistent_output_buffer_k: Tensor,
    persistent_output_buffer_v: Tensor,
    joint_strategy: str,
    logical_n: int,
    program_config: Any,
    dim: int,
    num_links: int,
    cluster_axis: int,
    mesh_device: MeshDevice,
    topology: Topology,
    logical_l: int = 0,
    scale: float | None = None,
    subdevice_id: SubDeviceId | None = None,
    is_causal: bool = False,
    is_balanced: bool = False,
    is_cross: bool = False,
    kv_cache_batch_idx: int | None = None,
    kv_actual_isl: int | None = None,
    attention_sink: Tensor | None = None,
    sliding_window_size: int | None = None,
    compute_kernel_config: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention of this device's rows over all devices' keys, and of joint rows over both; keys are gathered first."""
    if is_cross or logical_l or kv_cache_batch_idx is not None or kv_actual_isl is not None or joint_strategy != "rear":
        raise NotEmulatedError(
            f"{NAME} with is_cross, logical_l, kv_cache_batch_idx, kv_actual_isl or a joint_strategy other than 'rear' is "
            "not emulated",
            expected="keys and values of the same sequence",
            fix="Gather them and use scaled_dot_product_attention.",
        )
    require(
        not is_causal or joint_tensor_q is None,
        "Causality is enabled only for ring attention",
        "no joint tensors with is_causal",
        "Leave them out.",
    )
    check_closed_ring(mesh_device, cluster_axis, topology)
    gathered = [
        gather(
            NAME, values, dim, cluster_axis=cluster_axis, topology=topology, num_links=num_links,
            subdevice_id=subdevice_id, output=buffer, fused="inside",
        )
        for values, buffer in (
            (input_tensor_k, persistent_output_buffer_k),
            (input_tensor_v, persistent_output_buffer_v),
        )
    ]  # fmt: skip
    first = 0 if mesh_device.rank_block is None else mesh_device.rank_block.start[cluster_axis]
    result: tuple[Tensor, Tensor, Tensor] = _attend(
        q=input_tensor_q,
        k=gathered[0],
        v=gathered[1],
        joint_q=joint_tensor_q,
        joint_k=joint_tensor_k,
        joint_v=joint_tensor_v,
        attention_sink=attention_sink,
        scale=scale,
        logical_n=logical_n,
        axis=cluster_axis,
        ring=tuple(mesh_device.shape)[cluster_axis],
        local_devices=slice(first, first + mesh_device.lane_shape[cluster_axis]),
        is_causal=is_causal,
        is_balanced=is_balanced,
        window=sliding_window_size,
        program_config=program_config,
        compute_kernel_config=compute_kernel_config,
    )
    return result
