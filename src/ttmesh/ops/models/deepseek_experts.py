"""Experts of DeepSeek's prefill: rows extracted from and inserted into a buffer, feed-forward networks, weighted sums."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor as Lanes
from torch.nn import functional as F

from ttmesh.base.dtypes import Arch, BufferType, DataType, Layout, PrintedEnum
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.checks import require_dtype, require_interleaved, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.device_programs import like_written
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import mixture_of_experts as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, L1_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
TOKEN_FORMATS = {DataType.BFLOAT8_B, DataType.BFLOAT16}
PREFILL = "ttnn.experimental.deepseek_prefill"


class RoutedExpertActivation(PrintedEnum):
    """The activation between an expert's matmuls."""

    Silu = 0
    SwiGluOai = 1
    SituGlu = 2


def _check_index_tensors(call: Call, *names: str) -> None:
    for name in names:
        spec = call[name].spec
        require_dtype(spec, DataType.UINT32, f"{name} must be UINT32, got {spec.dtype}")
        row_major = spec.layout is Layout.ROW_MAJOR
        wrong = f"{name} must be ROW_MAJOR layout, got {spec.layout}"
        require(row_major, wrong, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
        require(
            spec.memory_config == DRAM_MEMORY_CONFIG,
            f"{name} must be DRAM interleaved",
            "DRAM_MEMORY_CONFIG",
            "Move it with ttnn.to_memory_config.",
        )
        is_row = len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[0] == 1)
        wrong = f"{name} must be 1D or 2D with first dimension == 1, got shape {spec.shape!r}"
        require(is_row, wrong, "one row", "Reshape it to one row.")


def _check_tokens(call: Call, name: str) -> None:
    spec = call[name].spec
    wrong = f"{name} must be BFLOAT8_B or BFLOAT16, got {spec.dtype}"
    require(spec.dtype in TOKEN_FORMATS, wrong, "bfloat8_b or bfloat16", "Convert it with ttnn.typecast.")
    require_layout(spec, Layout.TILE, f"{name} must be TILE layout, got {spec.layout}")
    require(
        spec.memory_config == DRAM_MEMORY_CONFIG,
        f"{name} must be DRAM interleaved",
        "DRAM_MEMORY_CONFIG",
        "Move it with ttnn.to_memory_config.",
    )
    wrong = f"{name} must be 2D, got rank {len(spec.shape)}"
    require(len(spec.shape) == 2, wrong, "[rows, columns]", "Reshape it to two dims.")
    rows, columns = spec.shape
    wrong = f"{name} rows/tokens ({rows}) must be a multiple of TILE_HEIGHT ({TILE})"
    require(rows % TILE == 0, wrong, f"a multiple of {TILE}", "Pad it with ttnn.pad.")
    wrong = f"{name} hidden_dim ({columns}) must be a multiple of TILE_WIDTH ({TILE})"
    require(columns % TILE == 0, wrong, f"a multiple of {TILE}", "Pad it with ttnn.pad.")


def _check_slice(call: Call) -> None:
    _check_index_tensors(call, "start", "counts", "global_expert_idx_table")
    start, counts = (call[name].shape[-1] for name in ("start", "counts"))
    wrong = f"start and counts must have the same last dimension, got start={start} and counts={counts}"
    require(start == counts, wrong, "equal lengths", "Give the tensors the same number of experts.")
    expert, last = call["local_expert_id"], call["global_expert_idx_table"].shape[-1] - 1
    wrong = f"local_expert_id ({expert}) must be in the range [0, {last}] (global_expert_idx_table last dimension - 1)"
    require(0 <= expert <= last, wrong, f"0 to {last}", "Choose an expert of this device.")


def _check_extract(call: Call) -> None:
    _check_tokens(call, "global_tensor")
    _check_slice(call)
    max_tokens = call["max_dispatched_tokens_per_expert"]
    wrong = "max_dispatched_tokens_per_expert must be > 0"
    require(max_tokens > 0, wrong, "1 or more", "Pass the largest number of rows of one expert.")
    wrong = f"max_dispatched_tokens_per_expert ({max_tokens}) must be a multiple of TILE_HEIGHT ({TILE})"
    require(max_tokens % TILE == 0, wrong, f"a multiple of {TILE}", "Round it up to whole tiles.")


def _check_insert(call: Call) -> None:
    _check_tokens(call, "global_tensor")
    _check_tokens(call, "local_tensor")
    buffer, expert_rows = call["global_tensor"].spec, call["local_tensor"].spec
    wrong = (
        f"global_tensor and local_tensor must have the same dtype, got global={buffer.dtype} local={expert_rows.dtype}"
    )
    require(buffer.dtype is expert_rows.dtype, wrong, "equal formats", "Convert one with ttnn.typecast.")
    wrong = f"local_tensor hidden_dim ({expert_rows.shape[1]}) must match global_tensor hidden_dim ({buffer.shape[1]})"
    require(
        expert_rows.shape[1] == buffer.shape[1],
        wrong,
        f"{buffer.shape[1]} columns",
        "Reshape local_tensor to that many columns.",
    )
    _check_slice(call)


def _find_region(starts: Lanes, counts: Lanes, table: Lanes, expert: int, lane_axes: int) -> tuple[Lanes, Lanes]:
    """A local expert's first row and its number of rows, rounded up to full tiles: [*mesh, 1] each."""
    starts, counts, table = align_mesh_dims([x.flatten(lane_axes).long() for x in (starts, counts, table)], lane_axes)
    expert_index = table[..., expert, None]
    return starts.gather(-1, expert_index), -(-counts.gather(-1, expert_index) // TILE) * TILE


@op(f"{PREFILL}.extract", golden=goldens.extract, check=_check_extract)
def extract(
    global_tensor: Lanes,
    start: Lanes,
    counts: Lanes,
    global_expert_idx_table: Lanes,
    local_expert_id: int,
    max_dispatched_tokens_per_expert: int,
    lane_axes: int,
) -> Lanes:
    """An expert's rows at the front of a new buffer, then zeros; the chip does not write those rows."""
    first, rows = _find_region(start, counts, global_expert_idx_table, local_expert_id, lane_axes)
    row = torch.arange(max_dispatched_tokens_per_expert, device=global_tensor.device)
    source_rows = (first + row).clamp(max=global_tensor.shape[-2] - 1)
    buffer, source_rows, rows = align_mesh_dims([global_tensor, source_rows, rows], lane_axes)
    expert_rows = torch.take_along_dim(buffer, source_rows[..., None], dim=-2)
    return torch.where(
        (row < rows)[..., None], expert_rows, torch.zeros((), dtype=expert_rows.dtype, device=expert_rows.device)
    )


@op(f"{PREFILL}.insert", golden=goldens.insert, check=_check_insert, out=like_written, writes="global_tensor")
def insert(
    global_tensor: Lanes,
    local_tensor: Lanes,
    start: Lanes,
    counts: Lanes,
    global_expert_idx_table: Lanes,
    local_expert_id: int,
    lane_axes: int,
) -> Lanes:
    """Write an expert's rows to its region of the buffer of all experts, in place."""
    first, rows = _find_region(start, counts, global_expert_idx_table, local_expert_id, lane_axes)
    return _write_rows(global_tensor, local_tensor, first, rows, lane_axes)


def _write_rows(buffer: Lanes, expert_rows: Lanes, first: Lanes, rows: Lanes, lane_axes: int) -> Lanes:
    row = torch.arange(buffer.shape[-2], device=buffer.device)
    buffer, expert_rows, local_rows, rows = align_mesh_dims([buffer, expert_rows, row - first, rows], lane_axes)
    inside = ((local_rows >= 0) & (local_rows < rows))[..., None]
    aligned_rows = torch.take_along_dim(expert_rows, local_rows.clamp(0, expert_rows.shape[-2] - 1)[..., None], dim=-2)
    return torch.where(inside, aligned_rows.to(buffer.dtype), buffer)


# -- feed-forward networks ---------------------------------------------------------------------------------------------

LIMIT, STEEPNESS = 7.0, 1.702  # constants of gpt-oss's clamped activation
KIMI_GATE, KIMI_UP = 4.0, 25.0  # Kimi's bounds (tt-metal e4f9f0b, unified_routed_expert_ffn_types.hpp)


def _apply_activation(gate: Lanes, up: Lanes, activation: RoutedExpertActivation | None) -> Lanes:
    if activation is RoutedExpertActivation.SwiGluOai:
        gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
        return (up + 1) * gate * torch.sigmoid(STEEPNESS * gate)
    if activation is RoutedExpertActivation.SituGlu:
        capped = KIMI_GATE * torch.tanh(gate / KIMI_GATE) * torch.sigmoid(gate)
        return capped * (KIMI_UP * torch.tanh(up / KIMI_UP))
    return F.silu(gate) * up


def _add_bias(values: Lanes, bias: Lanes | None, lane_axes: int) -> Lanes:
    if bias is None:
        return values
    return values + bias.float().flatten(lane_axes).unsqueeze(-2)


def _check_ffn(call: Call) -> None:
    x = call.specs[0]
    wrong = f"routed_expert_ffn: x must be BFLOAT16 or BFLOAT8_B, got {x.dtype}"
    require(x.dtype in TOKEN_FORMATS, wrong, "bfloat16 or bfloat8_b", "Convert it with ttnn.typecast.")
    wrong = f"routed_expert_ffn_chunked: x must have rank >= 2, got {len(x.shape)}"
    require(len(x.shape) >= 2, wrong, "rows", "Reshape it to two dims or more.")
    for i, length in enumerate(x.shape[:-2]):
        wrong = f"routed_expert_ffn_chunked: x leading dim {i} must be 1, got {length}"
        require(length == 1, wrong, "one batch", "Reshape it to one matrix.")


def _ffn_programs(call: Call) -> tuple[Hashable, ...]:
    """Three matmuls, the activation and the product with it."""
    return tuple((call.name, step, call.specs) for step in ("gate", "up", "activation", "multiply", "down"))


@op(
    f"{PREFILL}.routed_expert_ffn",
    golden=goldens.expert_ffn,
    check=_check_ffn,
    outputs=("output",),
    programs=_ffn_programs,
)
def routed_expert_ffn(x: Lanes, gate_proj: Lanes, up_proj: Lanes, down_proj: Lanes, lane_axes: int) -> Lanes:
    """silu(x @ gate) · (x @ up) @ down, of one expert."""
    rows = x.float().reshape(*x.shape[:lane_axes], -1, x.shape[-1])
    gate, up = (fpu.matmul(rows, _to_matrix(weights, lane_axes)) for weights in (gate_proj, up_proj))
    out = fpu.matmul(fpu.keep(F.silu(gate) * up), _to_matrix(down_proj, lane_axes))
    return out.reshape(*out.shape[:lane_axes], *x.shape[lane_axes:-1], out.shape[-1])


def _to_matrix(weights: Lanes, lane_axes: int) -> Lanes:
    return weights.float().reshape(*weights.shape[:lane_axes], *weights.shape[-2:])


def _check_moe(call: Call) -> None:
    require(
        call.mesh.arch() is Arch.BLACKHOLE,
        "unified_routed_expert_ffn requires Blackhole",
        "a Blackhole system",
        "Choose a Blackhole system with TTMESH_SYSTEM or --system.",
    )
    _check_index_tensors(call, "expert_region_offsets", "expert_token_counts", "global_expert_idx_table")
    gates, ups, downs = (call[name] for name in ("gate_projs", "up_projs", "down_projs"))
    wrong = f"gate_projs, up_projs and down_projs have {len(gates)}, {len(ups)} and {len(downs)} experts"
    require(
        len(gates) == len(ups) == len(downs) > 0,
        wrong,
        "lists of equal length",
        "Pass one gate, up and down projection per expert.",
    )


@op(f"{PREFILL}.unified_routed_expert_moe", golden=goldens.unified_expert_moe, check=_check_moe)
def unified_routed_expert_moe(
    dispatched_buffer: Lanes,
    expert_region_offsets: Lanes,
    expert_token_counts: Lanes,
    global_expert_idx_table: Lanes,
    gate_projs: Sequence[Lanes],
    up_projs: Sequence[Lanes],
    down_projs: Sequence[Lanes],
    activation: RoutedExpertActivation | None,
    gate_biases: Sequence[Lanes] | None,
    up_biases: Sequence[Lanes] | None,
    down_biases: Sequence[Lanes] | None,
    lane_axes: int,
) -> Lanes:
    """Every local expert's feed-forward network on its rows of the buffer; other rows, which the chip keeps, are zeros."""
    rows = dispatched_buffer.float()
    out = torch.zeros_like(rows)
    for i, (gate, up, down) in enumerate(zip(gate_projs, up_projs, down_projs, strict=True)):
        biases = [None if bias_list is None else bias_list[i] for bias_list in (gate_biases, up_biases, down_biases)]
        gated = _add_bias(fpu.matmul(rows, _to_matrix(gate, lane_axes)), biases[0], lane_axes)
        value = _add_bias(fpu.matmul(rows, _to_matrix(up, lane_axes)), biases[1], lane_axes)
        hidden = fpu.keep(_apply_activation(gated, value, activation))
        expert_output = _add_bias(fpu.matmul(hidden, _to_matrix(down, lane_axes)), biases[2], lane_axes)
        region = _find_region(expert_region_offsets, expert_token_counts, global_expert_idx_table, i, lane_axes)
        first, count = region
        row = torch.arange(rows.shape[-2], device=rows.device)
        inside = ((row >= first) & (row < first + count))[..., None]
        out, expert_output, inside = align_mesh_dims([out, expert_output, inside], lane_axes)
        out = torch.where(inside, expert_output, out)
    return out


# -- the weighted sum --------------------------------------------------------------------------------------------------


def _check_reduce(call: Call) -> None:
    combined, weights = call["combine_output"].spec, call["weights"].spec
    indices, table, dim = call["indices"], call["expert_dispatch_table"], call["expert_dim"]
    wrong = (
        "indices and expert_dispatch_table must be provided together or omitted together; "
        f"got indices={indices is not None}, expert_dispatch_table={table is not None}"
    )
    require((indices is None) == (table is None), wrong, "both or none", "Pass both tensors, or leave both out.")
    rank = len(combined.shape)
    wrong = f"combine_output rank must be at least 2 (expert + embedding dimensions), got {rank}"
    require(rank >= 2, wrong, "two dims or more", "Reshape it with ttnn.reshape.")
    wrong = f"expert_dim {dim} must be less than combine_output rank {rank}"
    require(dim < rank, wrong, f"a dim below {rank}", "Choose a dim of combine_output.")
    weights_rank = len(weights.shape)
    wrong = (
        f"weights rank must match combine_output rank: got weights rank {weights_rank} and combine_output rank {rank}"
    )
    require(weights_rank == rank, wrong, "equal ranks", "Reshape one with ttnn.reshape.")
    for name, spec in (("combine_output", combined), ("weights", weights)):
        require_layout(spec, Layout.ROW_MAJOR, f"{name} must be ROW_MAJOR")
        require_dtype(spec, DataType.BFLOAT16, f"{name} must be bfloat16")
    if indices is not None:
        require_layout(indices, Layout.ROW_MAJOR, "indices must be ROW_MAJOR")
        wrong = f"indices must be uint16 (matching moe_grouped_topk output), got {indices.dtype}"
        require_dtype(indices, DataType.UINT16, wrong)
        require_dtype(table, DataType.INT32, "expert_dispatch_table must be int32")
    width = combined.shape[-1]
    wrong = f"Embedding dimension {width} must be divisible by tile width ({TILE}); remainder is {width % TILE}"
    require(width % TILE == 0, wrong, f"a multiple of {TILE}", "Pad the embedding with ttnn.pad.")


def _reduce_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["output_memory_config"] or L1_MEMORY_CONFIG
    return [make_output_spec(call, inferred[0][0], layout=Layout.TILE, memory_config=memory_config)]


@op(f"{PREFILL}.post_combine_reduce", golden=goldens.post_combine_reduce, check=_check_reduce, out=_reduce_spec)
def post_combine_reduce(
    combine_output: Lanes,
    weights: Lanes,
    indices: Lanes | None,
    expert_dispatch_table: Lanes | None,
    expert_dim: int,
    lane_axes: int,
) -> Lanes:
    """The weighted sum of the experts' results, without experts on other devices or with weight 0."""
    combined, factors = align_mesh_dims([combine_output.float(), weights.float()], lane_axes)
    included = factors != 0
    if indices is not None and expert_dispatch_table is not None:
        table, expert_ids = align_mesh_dims(
            [expert_dispatch_table.flatten(lane_axes), indices.flatten(lane_axes).long()], lane_axes
        )
        local = table.gather(-1, expert_ids) != -1
        included = local.reshape(*local.shape[:lane_axes], *weights.shape[lane_axes:])
    weighted = torch.where(included, fpu.multiply(combined, factors), 0.0)
    dim = expert_dim - (combined.dim() - lane_axes)
    return fpu.add_up_in_l1(weighted, dim).squeeze(dim)  # the packer adds one expert's rows to those before


# -- tiles for the reduction -------------------------------------------------------------------------------------------


def _check_tiles(call: Call) -> None:
    x, memory_config, name = call.specs[0], call["output_memory_config"], "DeepseekMoEPostCombineTilize"
    wrong = f"{name} requires rank >= 2, but has {len(x.shape)}"
    require(len(x.shape) >= 2, wrong, "rows", "Reshape it to two dims or more.")
    require_dtype(x, DataType.BFLOAT16, f"{name} requires dtype to be bfloat16, but has {x.dtype}")
    require_interleaved(x, f"{name} requires input to be interleaved")
    require_layout(x, Layout.ROW_MAJOR, f"{name} requires input layout to be ROW_MAJOR")
    shards = memory_config.nd_shard_spec
    require(
        memory_config.is_sharded() and shards is not None,
        f"{name} requires sharded output",
        "an NdShardSpec",
        "Pass a memory_config with an NdShardSpec.",
    )
    require(
        memory_config.buffer_type is BufferType.L1,
        f"{name} requires L1 output",
        "an L1 memory_config",
        "Use ttnn.BufferType.L1 in memory_config.",
    )
    shape = tuple(shards.shard_shape)
    wrong = f"{name} requires dimension 2 output shard shape"
    require(len(shape) == 2, wrong, "[rows, columns]", "Give the NdShardSpec a shard shape of two dims.")
    rows, columns = x.shape.volume() // x.shape[-1], x.shape[-1]
    wrong = f"{name} requires output shard width to be even multiple of tiles"
    require(
        shape[1] % TILE == 0 and columns % shape[1] == 0,
        wrong,
        f"a multiple of {TILE} that divides {columns}",
        "Choose another shard width.",
    )
    wrong = f"{name} requires output shard height to be a single tile high"
    require(shape[0] == TILE and rows % TILE == 0, wrong, f"{TILE} rows", f"Set the shard height to {TILE}.")
    wrong = f"{name} requires one output shard per core"
    require(
        columns // shape[1] * (rows // TILE) == shards.grid.num_cores(),
        wrong,
        "as many cores as shards",
        "Choose a grid with one core per shard.",
    )


def _tiles_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0], layout=Layout.TILE)]


@op(
    "ttnn.experimental.deepseek_moe_post_combine_tilize",
    golden=goldens.post_combine_tilize,
    check=_check_tiles,
    out=_tiles_spec,
)
def deepseek_moe_post_combine_tilize(input_tensor: Lanes) -> Lanes:
    """The same values in tile layout, with a shard of one tile's height on every core."""
    return input_tensor
