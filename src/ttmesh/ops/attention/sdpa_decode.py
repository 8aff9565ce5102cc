"""Attention of one new token per user over its kv cache, plain or paged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.chip.formats.kernels.gpu_loader import find_gpu_kernels
from ttmesh.chip.numerics import fpu
from ttmesh.ops.attention.attention_scores import attend_decode, gather_pages, make_additive_mask
from ttmesh.ops.attention.decode_buffers import decode_scratch
from ttmesh.ops.attention.sdpa_prefill import attention_spec, check_geometry, view_paged
from ttmesh.ops.caches.paged_cache_update import make_positions, to_signed_positions
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.configs.program_configs import PagedCacheGeometryOverride
from ttmesh.ops.goldens import sdpa as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

CHECK_CACHE, CHECK_TABLE = "Check the shapes of the cache.", "Check the page table."


def check_output(call: Call) -> None:
    """Sharded results are sharded by height."""
    config = call["memory_config"]
    if config is not None and config.is_sharded():
        layout = config.memory_layout
        wrong = (
            f"Output memory config layout must be HEIGHT_SHARDED when sharded but got TensorMemoryLayout::{layout.name}"
        )
        require(layout is TensorMemoryLayout.HEIGHT_SHARDED, wrong, "HEIGHT_SHARDED", "Change memory_config.")


def check_mask(call: Call) -> None:
    """A mask is allowed with is_causal=False only, and has the heads of the queries."""
    q, k, mask = call.specs[0], call.specs[1], call["attn_mask"]
    if mask is None:
        return
    wrong = "Must not have attn_mask tensor for non-causal attention"
    require(not call["is_causal"], wrong, "is_causal=False with attn_mask", "Pass one of both.")
    given, padded = mask.spec.shape, mask.spec.padded_shape
    wrong = f"Expect same number of padded heads in mask as in Q, got {padded[2]} and {q.padded_shape[2]}"
    require(padded[2] == q.padded_shape[2], wrong, f"{q.padded_shape[2]}", "Change the mask.")
    wrong = f"Expect same number of heads in mask as in Q, got {given[2]} and {q.shape[2]}"
    require(given[2] == q.shape[2], wrong, f"{q.shape[2]}", "Change the mask.")
    if call["page_table_tensor"] is None:
        wrong = f"Expect same sequence length in mask as in K, got {padded[3]} and {k.padded_shape[2]}"
        require(padded[3] == k.padded_shape[2], wrong, f"{k.padded_shape[2]}", "Change the mask.")
    allowed = (DataType.BFLOAT16, DataType.BFLOAT8_B, DataType.BFLOAT4_B)
    wrong = f"Unsupported data type for mask tensor: DataType::{mask.dtype.name}."
    require(mask.dtype in allowed, wrong, "bfloat16, bfloat8_b or bfloat4_b", "Convert it with ttnn.typecast.")


def check_paged(call: Call, *, latent: bool) -> None:
    """Positions and page table have a row per user, keys and values equal blocks."""
    q, k, table, positions = call.specs[0], call.specs[1], call["page_table_tensor"].spec, call["cur_pos_tensor"]
    v = k if call["input_tensor_v"] is None else call["input_tensor_v"].spec
    sharded = table.memory_config.is_sharded()
    users = q.padded_shape[1] if sharded else table.padded_shape[0]
    if call["is_causal"]:
        wrong = "Must have cur_pos tensor for paged attention in causal mode"
        require(positions is not None, wrong, "cur_pos_tensor=", "Pass the positions as a tensor.")
        spec = positions.spec
        wrong = f"Expect cur_pos to be INT32, got DataType::{spec.dtype.name}"
        require(spec.dtype is DataType.INT32, wrong, "int32", "Convert it with ttnn.typecast.")
        wrong = f"Expect cur_pos to be ROW_MAJOR, got Layout::{spec.layout.name}"
        require(spec.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR", "Convert it with ttnn.to_layout.")
        wrong = f"cur_pos must have batch size equal to Q, got {spec.padded_shape[0]} and {users}"
        fits = spec.memory_config.is_sharded() or spec.padded_shape[-1] == users
        require(fits, wrong, f"{users} positions", "Pass a position per user.")
    wrong = "Error: SDPA currently only supports INT32 datatype"
    require(sharded or table.dtype is DataType.INT32, wrong, "int32", "Convert it with ttnn.typecast.")
    wrong = f"Page table tensor layout must be ROW_MAJOR but got Layout::{table.layout.name}"
    require(table.layout is Layout.ROW_MAJOR, wrong, "ROW_MAJOR", "Convert it with ttnn.to_layout.")
    wrong = "Page_table must have batch size equal to Q"
    require(sharded or table.padded_shape[0] == users, wrong, f"{users} rows", CHECK_TABLE)
    same = k.padded_shape[2] == v.padded_shape[2]
    require(same, "K and V must have same block size", "equal block sizes", CHECK_CACHE)
    if not latent and call["paged_cache_geometry"] is None:
        widths = {spec.padded_shape[3] for spec in (q, k, v)}
        require(len(widths) == 1, "Q, K, V must have same hidden size", "equal head sizes", CHECK_CACHE)


def check_contiguous(call: Call, *, latent: bool) -> None:
    """A cache has a batch per user and the head size of the queries."""
    q, k = call.specs[0].padded_shape, call.specs[1].padded_shape
    v = k if call["input_tensor_v"] is None else call["input_tensor_v"].spec.padded_shape
    users = q[1]
    for shape, name in ((k, "K"), (v, "V")):
        if call["share_cache"]:
            wrong = f"Share cache expects {name} to have batch size of 1, but got {shape[0]}"
            require(shape[0] == 1, wrong, "1", CHECK_CACHE)
        else:
            wrong = f"{name} tensor batch size ({shape[0]}) must equal B ({users})"
            require(shape[0] == users, wrong, f"{users}", CHECK_CACHE)
    wrong = f"Q tensor batch size must be 1 for decode mode but got {q[0]}"
    require(q[0] == 1, wrong, "[1, users, heads, dim]", "Reshape the query.")
    wrong = f"K and V tensors must have the same sequence length. K: {k[-2]}, V: {v[-2]}"
    require(k[-2] == v[-2], wrong, "equal lengths", CHECK_CACHE)
    wrong = f"K tensor hidden dimension ({k[-1]}) must equal Q tensor hidden dimension ({q[-1]})"
    require(k[-1] == q[-1], wrong, "equal head sizes", CHECK_CACHE)
    wrong = f"V tensor hidden dimension ({v[-1]}) must equal Q tensor hidden dimension ({q[-1]})"
    require(latent or v[-1] == q[-1], wrong, "equal head sizes", CHECK_CACHE)
    for position in call["cur_pos"] or ():
        require(position < k[-2], "cur_pos must be <= K sequence dim", f"below {k[-2]}", "Allocate a longer cache.")


def check_groups(call: Call) -> None:
    """Several key heads (GQA) take bfloat16 queries, and give no shards."""
    q, k = call.specs[0], call.specs[1].padded_shape
    v = k if call["input_tensor_v"] is None else call["input_tensor_v"].spec.padded_shape
    wrong = f"Flash decode expects K and V to have same number of heads, but got {k[1]} and {v[1]}"
    require(k[1] == v[1], wrong, "equal heads", CHECK_CACHE)
    if k[1] <= 1:
        return
    config = call["memory_config"]
    sharded = config is not None and config.is_sharded()
    require(not sharded, "Sharded output not supported for GQA", "interleaved results", "Change memory_config.")
    wrong = f"GQA expects BFLOAT16 input tensor, but got DataType::{q.dtype.name}"
    require(q.dtype is DataType.BFLOAT16, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    wrong = f"GQA expects Q to have a multiple of K heads, but got {q.shape[2]} and {k[1]}"
    require(q.shape[2] % k[1] == 0, wrong, f"a multiple of {k[1]}", "Check the head counts.")


def _check_decode(call: Call) -> None:
    check_decode_shapes(call, latent=False)
    q, config = call.specs[0], call["program_config"]
    if config is not None and config.k_chunk_size & (config.k_chunk_size - 1):
        raise MeshError(
            f"User provided k_chunk_size must be power of 2, got: {config.k_chunk_size}",
            expected="a power of 2",
            fix="Round k_chunk_size to a power of 2.",
        )
    if call["is_causal"] and not call["cur_pos"] and call["cur_pos_tensor"] is None:
        raise MeshError(
            "causal decode attention needs the position of every user",
            expected="cur_pos or cur_pos_tensor",
            fix="Pass one of them, or is_causal=False.",
        )
    if call["page_table_tensor"] is not None:
        check_geometry(call, call.specs[1], q.shape[-1])
        _check_table_shards(call["page_table_tensor"].spec, q.shape[1])


def check_latent_decode(call: Call) -> None:
    """Decode attention whose values are columns of the keys."""
    check_decode_shapes(call, latent=True)


def check_decode_shapes(call: Call, *, latent: bool) -> None:
    """Raise for shapes that do not fit each other, in TT-NN's order."""
    check_output(call)
    check_mask(call)
    (check_contiguous if call["page_table_tensor"] is None else check_paged)(call, latent=latent)
    check_groups(call)
    q = call.specs[0]
    if len(q.shape) != 4 or q.shape[0] != 1:
        raise ShapeError(
            f"decode attention got a query of shape {q.shape}",
            expected="[1, users, heads, head size]",
            fix="Reshape the query.",
        )


def _check_table_shards(table: TensorSpec, users: int) -> None:
    """A table in shards holds the rows of all users once per core, as TT-NN wants it."""
    shards = table.memory_config.shard_spec
    if shards is None:
        return
    if table.dtype is not DataType.UINT16:
        raise MeshError(
            "Error: SDPA currently only supports UINT16 datatype for sharded configurations",
            expected=f"a page table of uint16 in shards, not {table.dtype}",
            fix="Make the page table with dtype=ttnn.uint16, or leave it interleaved.",
        )
    cores = shards.grid.num_cores()
    if table.shape[0] // cores != users:
        raise ShapeError(
            f"Page_table must have shard height batch_size {users} equal to Q on {cores} cores",
            expected=f"{users * cores} rows, not {table.shape[0]}",
            fix="Repeat the page table once per core of its shards.",
        )


def attend_cached(
    q: Lanes,
    k: Lanes,
    v: Lanes,
    lane_axes: int,
    *,
    positions: Lanes | None,
    mask: Lanes | None,
    sink: Lanes | None,
    scale: float | None,
    window: int | None,
    modulo: int | None = None,
    table: Lanes | None = None,
) -> Lanes:
    """Decode attention; positions [*mesh, users] (None: no causality), mask [*mesh, users, 1, heads, keys]."""
    factor = scale if scale is not None else q.shape[-1] ** -0.5
    kernels = find_gpu_kernels("gpu_decoding") if q.is_cuda and not fpu.is_emulated(q, k, v) else None
    plain = positions is not None and all(option is None for option in (mask, sink, modulo))
    if kernels is not None and plain and kernels.can_attend(q, k, v, table):
        result: Lanes = kernels.attend_decode(q, k, v, positions, table, factor, window)
        return result
    keys = k.shape[-2] if table is None else k.shape[-2] * table.shape[-1]
    if modulo is not None:
        keys = min(keys, modulo)  # the ring buffer has no more slots
    elif positions is not None and positions.is_cpu and positions.numel():
        # On a GPU the host would have to wait, which no CUDA graph can hold.
        keys = min(keys, int(positions.max()) + 1) or 1  # keys after every user's position have no weight
    if table is None:
        k, v = k[..., :keys, :], v[..., :keys, :]
    else:
        users = q.shape[lane_axes + 1]  # a table in shards is repeated on every core: the first copy serves
        pages = table[..., :users, : -(-keys // k.shape[-2])]
        k, v = (gather_pages(cache, pages, lane_axes)[..., :keys, :] for cache in (k, v))
    masks: list[Lanes] = []
    skipped = None
    if positions is not None:
        slots = torch.arange(keys, device=q.device)
        position = positions[..., None]
        if modulo is not None:  # slot j holds the newest position that is j modulo the ring's length
            slots = position - (position - slots) % modulo
        visible = (slots <= position) & (slots >= 0)
        if window:
            visible = visible & (slots > position - window)
        skipped = positions < 0
        allowed = visible | skipped[..., None]
        if not allowed.is_cpu or not bool(allowed.all()):  # without a mask torch is faster, at the last position
            masks.append(make_additive_mask(allowed)[..., None, :])
    if mask is not None:
        masks.append(mask.squeeze(lane_axes + 1)[..., :keys].float())
    combined_mask = None if not masks else masks[0] if len(masks) == 1 else masks[0] + masks[1]
    logits = None if sink is None else sink.flatten(lane_axes, -2)[..., : q.shape[-2], 0].float() * factor
    return attend_decode(q, k, v, lane_axes, scale=factor, mask=combined_mask, sink=logits, skipped=skipped)


def find_user_positions(cur_pos: Sequence[int], cur_pos_tensor: Lanes | None, q: Lanes, lane_axes: int) -> Lanes | None:
    """Positions [*mesh, users] from the tensor or the list; an unsigned -1 becomes -1."""
    users = q.shape[lane_axes + 1]
    if cur_pos_tensor is not None:
        return to_signed_positions(cur_pos_tensor.flatten(lane_axes)[..., :users])
    if not cur_pos:
        return None
    return make_positions(tuple(cur_pos), q.device).reshape(*[1] * lane_axes, -1)


@op(
    "ttnn.transformer.scaled_dot_product_attention_decode",
    golden=goldens.sdpa_decode,
    out=attention_spec,
    check=_check_decode,
    scratch=decode_scratch,
)
def scaled_dot_product_attention_decode(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes,
    is_causal: bool,
    attn_mask: Lanes | None,
    cur_pos: Sequence[int],
    cur_pos_tensor: Lanes | None,
    attention_sink: Lanes | None,
    scale: float | None,
    sliding_window_size: int | None,
    lane_axes: int,
) -> Lanes:
    """Attention of one token per user over keys 0 to its position."""
    return attend_cached(
        input_tensor_q,
        input_tensor_k,
        input_tensor_v,
        lane_axes,
        positions=find_user_positions(cur_pos, cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
    )


@op(
    "ttnn.transformer.paged_scaled_dot_product_attention_decode",
    golden=goldens.paged_sdpa_decode,
    out=attention_spec,
    check=_check_decode,
    scratch=decode_scratch,
)
def paged_scaled_dot_product_attention_decode(
    input_tensor_q: Lanes,
    input_tensor_k: Lanes,
    input_tensor_v: Lanes,
    page_table_tensor: Lanes,
    is_causal: bool,
    attn_mask: Lanes | None,
    cur_pos_tensor: Lanes | None,
    attention_sink: Lanes | None,
    scale: float | None,
    sliding_window_size: int | None,
    paged_cache_geometry: PagedCacheGeometryOverride | None,
    cache_position_modulo: int | None,
    lane_axes: int,
) -> Lanes:
    """Attention of one token per user over keys found through a page table."""
    head_dim = input_tensor_q.shape[-1]
    return attend_cached(
        input_tensor_q,
        view_paged(input_tensor_k, paged_cache_geometry, head_dim),
        view_paged(input_tensor_v, paged_cache_geometry, head_dim),
        lane_axes,
        positions=find_user_positions((), cur_pos_tensor, input_tensor_q, lane_axes) if is_causal else None,
        mask=attn_mask,
        sink=attention_sink,
        scale=scale,
        window=sliding_window_size,
        modulo=cache_position_modulo,
        table=page_table_tensor,
    )
