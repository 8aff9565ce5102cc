"""Block-cyclic caches of chunked prefill: every device along a mesh axis holds a slice of each chunk."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.errors import MeshError, require
from ttmesh.chip.numerics.fpu import write_packed
from ttmesh.ops.attention.rotary_embedding import apply_pair_rotary
from ttmesh.ops.caches.kv_cache import make_writable
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32
Count = int | Lanes


def find_axis_positions(mesh_shape: tuple[int, ...], axis: int, device: torch.device) -> Lanes:
    """Every device's position along a mesh axis, [*mesh]."""
    shape = [1] * len(mesh_shape)
    shape[axis] = mesh_shape[axis]
    return torch.arange(mesh_shape[axis], device=device).reshape(shape).expand(mesh_shape)


def _expand_count(count: Count, lane_axes: int, device: torch.device) -> Lanes:
    """One number per device, [*mesh]: the number given, or the first element of a tensor."""
    if isinstance(count, Lanes):
        return count.flatten(lane_axes)[..., 0].long()
    return torch.full([1] * lane_axes, int(count), device=device, dtype=torch.int64)


def find_start_rows(valid: Lanes, rows: int, position: Lanes, devices: int) -> Lanes:
    """The row at which each device writes next; devices before the one that holds the first free row are a chunk ahead."""
    chunk, boundary = valid // (devices * rows), (valid // rows) % devices
    inside = torch.where(position == boundary, valid % rows, 0)
    return chunk * rows + torch.where(position < boundary, rows, inside)


def _mesh_shape(tensor: Tensor, cluster_axis: int) -> tuple[int, ...]:
    mesh = tensor.device()
    if mesh is None:
        raise MeshError("cache must be on device", expected="a device tensor", fix="Move it with to_device().")
    wrong = f"cluster_axis ({cluster_axis}) must be 0 or 1"
    require(cluster_axis in (0, 1), wrong, "a mesh axis", "Use 0 for rows or 1 for columns.")
    return tuple(mesh.shape)


def _identify_program(call: Call) -> tuple[Hashable, ...]:
    """Identify the device program; lengths and users are runtime arguments and do not change it."""
    fixed = tuple(call[name] for name in ("layer_idx", "num_layers", "chunk", "cluster_axis", "pad_align"))
    return ((call.name, fixed, call.specs, call["memory_config"]),)


def _check_update(call: Call) -> None:
    cache, x = call["cache"].spec, call["input"].spec
    require(
        cache.dtype is x.dtype, "cache and input dtype must match", "equal formats", "Convert one with ttnn.typecast."
    )
    wrong = "cache and input layout must match"
    require(cache.layout is x.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")
    layer, layers = call["layer_idx"], call["num_layers"]
    wrong = f"layer_idx {layer} out of range for num_layers {layers}"
    require(0 <= layer < layers, wrong, f"an index from 0 to {layers - 1}", "Count layers from 0.")
    slots, slot, valid = cache.shape[0] // layers, call["slot_idx"], call["valid"]
    devices, rows = call["mesh_shape"][call["cluster_axis"]], x.shape[-2]
    if isinstance(slot, int):
        require(
            slot < slots,
            f"slot_idx ({slot}) out of range for num_slots ({slots})",
            f"an index from 0 to {layers - 1}",
            "Count layers from 0.",
        )
    if isinstance(valid, int):
        wrong = f"kv_actual_global ({valid}) must be tile-aligned (a multiple of {TILE})"
        require(valid % TILE == 0, wrong, f"a multiple of {TILE}", "Pad the sequence to whole tiles.")
        capacity, chunk = devices * cache.shape[-2], devices * rows
        wrong = f"kv_actual_global ({valid}) + chunk_global ({chunk}) would overflow global cache capacity ({capacity})"
        require(valid + chunk <= capacity, wrong, "a shorter sequence", "Allocate a longer cache.")


@device_operation(
    "ttnn.experimental.deepseek_prefill.update_padded_kv_cache",
    out=like_written,
    check=_check_update,
    programs=_identify_program,
    writes="cache",
    in_place=True,
)
def _update(
    cache: Lanes,
    input: Lanes,
    slot_idx: Count,
    valid: Count,
    layer_idx: int,
    num_layers: int,
    cluster_axis: int,
    mesh_shape: tuple[int, ...],
    lane_axes: int,
    specs: Sequence[TensorSpec],
) -> Lanes:
    """Write every device's rows of the next chunk after the rows it already holds."""
    position = find_axis_positions(mesh_shape, cluster_axis, cache.device)
    cache = make_writable(cache, [input, position[..., None]], lane_axes)
    if cache.is_meta:
        return cache
    rows = write_packed(input, specs[0].dtype).expand(*cache.shape[:lane_axes], *input.shape[lane_axes:])
    count = rows.shape[-2]
    start = find_start_rows(_expand_count(valid, lane_axes, cache.device), count, position, mesh_shape[cluster_axis])
    batch = (_expand_count(slot_idx, lane_axes, cache.device) * num_layers + layer_idx).expand(start.shape)
    for lane in torch.cartesian_prod(*[torch.arange(n, device="cpu") for n in cache.shape[:lane_axes]]).reshape(
        -1, lane_axes
    ):
        coord = tuple(int(i) for i in lane)
        slot = cache[coord][int(batch[coord])]
        slot[:, int(start[coord]) : int(start[coord]) + count] = rows[coord][0]
    return cache


@composite("ttnn.experimental.deepseek_prefill.update_padded_kv_cache")
def update_padded_kv_cache(
    cache: Tensor,
    input: Tensor,
    slot_idx: int | Tensor,
    layer_idx: int,
    num_layers: int,
    kv_actual_global: int | Tensor,
    cluster_axis: int,
) -> Tensor:
    """Write the chunk that follows the first kv_actual_global tokens into one user's layer of the cache, in place."""
    if isinstance(layer_idx, Tensor):  # the overload with tensors takes the length before the layers
        kv_actual_global, layer_idx, num_layers = layer_idx, num_layers, kv_actual_global  # type: ignore[assignment]
    result: Tensor = _update(
        cache=cache,
        input=input,
        slot_idx=slot_idx,
        valid=kv_actual_global,
        layer_idx=layer_idx,
        num_layers=num_layers,
        cluster_axis=cluster_axis,
        mesh_shape=_mesh_shape(cache, cluster_axis),
    )
    return result


@device_operation(
    "ttnn.experimental.deepseek_prefill.zero_padded_kv_cache",
    out=like_written,
    programs=_identify_program,
    writes="cache",
    in_place=True,
)
def _zero(
    cache: Lanes,
    slot_idx: Count,
    valid: Count,
    layer_idx: int,
    num_layers: int,
    chunk: int,
    cluster_axis: int,
    pad_align: int,
    mesh_shape: tuple[int, ...],
    lane_axes: int,
) -> Lanes:
    """Write zeros between the last token and the next multiple of pad_align, on the devices that hold those rows."""
    position = find_axis_positions(mesh_shape, cluster_axis, cache.device)
    cache = make_writable(cache, [position[..., None]], lane_axes)
    if cache.is_meta:
        return cache
    per_device = chunk // mesh_shape[cluster_axis]
    row = torch.arange(cache.shape[-2], device=cache.device)
    # Row r of a device is row r % per_device of its slice of chunk r // per_device.
    token = (row // per_device) * chunk + position[..., None] * per_device + row % per_device
    first = _expand_count(valid, lane_axes, cache.device)[..., None]
    last = -(-first // pad_align) * pad_align
    inside = (token >= first) & (token < last)
    batch = (_expand_count(slot_idx, lane_axes, cache.device) * num_layers + layer_idx).expand(position.shape)
    for lane in torch.cartesian_prod(*[torch.arange(n, device="cpu") for n in cache.shape[:lane_axes]]).reshape(
        -1, lane_axes
    ):
        coord = tuple(int(i) for i in lane)
        cache[coord][int(batch[coord])][:, inside[coord]] = 0
    return cache


@composite("ttnn.experimental.deepseek_prefill.zero_padded_kv_cache")
def zero_padded_kv_cache(
    cache: Tensor,
    slot_idx: int | Tensor,
    layer_idx: int,
    num_layers: int,
    valid_global: int | Tensor,
    chunk_size_global: int,
    cluster_axis: int,
    pad_align: int,
) -> Tensor:
    """Write zeros after the last token of one user's layer up to the next multiple of pad_align, in place."""
    if isinstance(layer_idx, Tensor):
        valid_global, layer_idx, num_layers = layer_idx, num_layers, valid_global  # type: ignore[assignment]
    result: Tensor = _zero(
        cache=cache,
        slot_idx=slot_idx,
        valid=valid_global,
        layer_idx=layer_idx,
        num_layers=num_layers,
        chunk=chunk_size_global,
        cluster_axis=cluster_axis,
        pad_align=pad_align,
        mesh_shape=_mesh_shape(cache, cluster_axis),
    )
    return result


@device_operation("ttnn.experimental.deepseek_prefill.rotary_embedding_indexed", programs=_identify_program)
def _rotate(
    input: Lanes,
    cos: Lanes,
    sin: Lanes,
    trans_mat: Lanes,
    valid: Count,
    cluster_axis: int,
    mesh_shape: tuple[int, ...],
    lane_axes: int,
) -> Lanes:
    """Apply the rotary embedding with the angles from each device's start row on."""
    rows = input.shape[-2]
    position = find_axis_positions(mesh_shape, cluster_axis, input.device)
    start = find_start_rows(_expand_count(valid, lane_axes, input.device), rows, position, mesh_shape[cluster_axis])
    row_indices = (start[..., None] + torch.arange(rows, device=input.device))[..., None, None, :, None]
    local_angles = [
        torch.take_along_dim(cache.expand(*position.shape, *cache.shape[lane_axes:]), row_indices, dim=-2)
        for cache in (cos, sin)
    ]
    return apply_pair_rotary(input, local_angles[0], local_angles[1], trans_mat)


@composite("ttnn.experimental.deepseek_prefill.rotary_embedding_indexed")
def rotary_embedding_indexed(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    trans_mat: Tensor,
    kv_actual_global: int | Tensor,
    cluster_axis: int,
    memory_config: MemoryConfig | None,
) -> Tensor:
    """Rotary embedding of the chunk that follows kv_actual_global tokens; cos and sin are block-cyclic as the cache is."""
    result: Tensor = _rotate(
        input=input,
        cos=cos,
        sin=sin,
        trans_mat=trans_mat,
        valid=kv_actual_global,
        cluster_axis=cluster_axis,
        mesh_shape=_mesh_shape(input, cluster_axis),
        memory_config=memory_config,
    )
    return result
