"""Rows in fp8 with one scale per 128 values, and sparse-cache rows packed from them."""

from __future__ import annotations

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import Arch, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.goldens import quantize as goldens
from ttmesh.ops.lane_functions.lane_broadcast import align_mesh_dims
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

BLOCK, TILE = 128, 32  # values that share a scale; rows of a tile
LARGEST, MIN_AMAX = 448.0, 1e-4  # the largest e4m3 number; the lower bound of a block's absolute maximum
LATENT, ROPE = 512, 64
PREFILL = "ttnn.experimental.deepseek_prefill"
FLOAT_FORMATS = {DataType.BFLOAT16, DataType.FLOAT32}


def _check_device_and_memory(call: Call, operation: str) -> None:
    arch, memory_config = call.mesh.arch(), call["memory_config"]
    wrong = f"FP8_E4M3 is not supported on arch {arch.name.lower()}: {operation} needs Blackhole hardware"
    require(
        arch is Arch.BLACKHOLE, wrong, "a Blackhole system", "Choose a Blackhole system with TTMESH_SYSTEM or --system."
    )
    wrong = f"{operation}: output memory config must be DRAM interleaved"
    require(
        memory_config is None or memory_config == DRAM_MEMORY_CONFIG,
        wrong,
        "DRAM_MEMORY_CONFIG",
        "Move it with ttnn.to_memory_config.",
    )


def _check_cast_to(call: Call) -> None:
    x, name = call.specs[0], "per_token_cast_to_fp8"
    _check_device_and_memory(call, name)
    wrong = "per_token_cast_to_fp8: input_tensor must be DRAM interleaved"
    require(x.memory_config == DRAM_MEMORY_CONFIG, wrong, "DRAM_MEMORY_CONFIG", "Move it with ttnn.to_memory_config.")
    wrong = f"{name}: input dtype must be BFLOAT16 or FLOAT32, got {x.dtype}"
    require(x.dtype in FLOAT_FORMATS, wrong, "bfloat16 or float32", "Convert it with ttnn.typecast.")
    wrong = f"{name}: input rank must be >= 2, got {len(x.shape)}"
    require(len(x.shape) >= 2, wrong, "rows", "Reshape it to two dims or more.")
    width = x.shape[-1]
    wrong = f"{name}: hidden dim H={width} must be a multiple of BLOCK_W={BLOCK}"
    require(width > 0 and width % BLOCK == 0, wrong, f"a multiple of {BLOCK}", "Pad the rows with ttnn.pad.")


def _cast_to_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    formats = (DataType.FP8_E4M3, DataType.FLOAT32)
    return [
        TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=memory_config)
        for (shape, _), dtype in zip(inferred, formats, strict=True)
    ]


def truncate_to_e4m3(values: Lanes) -> Lanes:
    """Values as e4m3, rounded towards zero, as the chip's packer truncates them."""
    rounded = values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    too_large = rounded.float().abs() > values.abs()
    return (rounded.view(torch.uint8) - too_large.to(torch.uint8)).view(torch.float8_e4m3fn)


@op(f"{PREFILL}.per_token_cast_to_fp8", golden=goldens.per_token_cast_to_fp8, check=_check_cast_to, out=_cast_to_spec)
def per_token_cast_to_fp8(input_tensor: Lanes, round_scale_to_power_of_two: bool) -> tuple[Lanes, Lanes]:
    """Rows in fp8, every 128 values divided by their scale, and the scales."""
    blocks = torch.unflatten(input_tensor.float(), -1, (-1, BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=MIN_AMAX) / LARGEST
    if round_scale_to_power_of_two:
        mantissa, exponent = torch.frexp(scale)
        scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
    return truncate_to_e4m3(blocks / scale).flatten(-2), scale.squeeze(-1)


def _check_cast_back(call: Call) -> None:
    x, scale, name = call["input_e4m3"].spec, call["input_scale"], "per_token_cast_back"
    metadata, count_aware = call["metadata"], call["token_count_aware"]
    expert_tensors = (call["expert_region_offsets"], call["expert_token_counts"], call["global_expert_idx_table"])
    if count_aware:
        wrong = f"{name}: provide exactly one of `input_scale` or `metadata`"
        require(
            (scale is None) != (metadata is None),
            wrong,
            "input_scale or metadata",
            "Pass one of the two and leave the other out.",
        )
        wrong = (
            f"{name}: token_count_aware=true requires expert_region_offsets, expert_token_counts and "
            "global_expert_idx_table"
        )
        require(
            all(tensor is not None for tensor in expert_tensors),
            wrong,
            "three tensors",
            "Pass all three, or leave token_count_aware out.",
        )
        wrong = f"{name}: experts_per_chip must be > 0"
        require(call["experts_per_chip"] > 0, wrong, "a number of experts", "Pass 1 or more.")
    else:
        wrong = f"{name}: input_scale is required (unless token_count_aware with metadata)"
        require(scale is not None, wrong, "input_scale=", "Pass input_scale.")
        wrong = f"{name}: metadata / expert_* tensors are only valid when token_count_aware=true"
        require(
            metadata is None and all(tensor is None for tensor in expert_tensors),
            wrong,
            "no metadata and no expert tensors",
            "Pass token_count_aware=True, or leave them out.",
        )
    _check_device_and_memory(call, name)
    require_dtype(x, DataType.FP8_E4M3, f"{name}: input_e4m3 dtype must be FP8_E4M3")
    dtype = call["output_dtype"]
    wrong = f"{name}: output_dtype must be BFLOAT16 or FLOAT32"
    require(dtype is None or dtype in FLOAT_FORMATS, wrong, "bfloat16 or float32", "Pass another output_dtype.")
    require(len(x.shape) >= 2, f"{name}: input_e4m3 rank must be >= 2", "rows", "Reshape it to two dims or more.")
    if scale is None:
        blocks, last = x.shape[-1] // BLOCK, metadata.shape[-1]
        wrong = f"{name}: metadata last dim ({last}) must be >= H/BLOCK_W ({blocks}) to hold the scale tail"
        require(last >= blocks, wrong, f"{blocks} columns or more", "Widen the metadata.")
        return
    require_dtype(scale, DataType.FLOAT32, f"{name}: input_scale dtype must be FLOAT32")
    shape, other = x.shape, scale.spec.shape
    wrong = f"{name}: input_e4m3 ({len(shape)}D) and input_scale ({len(other)}D) must have the same rank"
    require(len(shape) == len(other), wrong, "equal ranks", "Reshape one with ttnn.reshape.")
    for i, (a, b) in enumerate(zip(shape[:-1], other[:-1], strict=True)):
        wrong = f"{name}: leading dim {i} mismatch ({a} vs {b})"
        require(a == b, wrong, "equal rows", "Give all inputs the same dims before the last.")
    wrong = f"{name}: e4m3 last dim ({shape[-1]}) must equal scale last dim ({other[-1]}) * BLOCK_W ({BLOCK})"
    require(shape[-1] == other[-1] * BLOCK, wrong, f"{other[-1] * BLOCK} columns", "Pass one scale per block.")


def _cast_back_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    dtype = call["output_dtype"] or DataType.BFLOAT16
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(inferred[0][0], dtype, Layout.ROW_MAJOR, memory_config=memory_config)]


@op(f"{PREFILL}.per_token_cast_back", golden=goldens.per_token_cast_back, check=_check_cast_back, out=_cast_back_spec)
def per_token_cast_back(
    input_e4m3: Lanes,
    input_scale: Lanes | None,
    narrow_scales_to_bf16: bool,
    expert_region_offsets: Lanes | None,
    expert_token_counts: Lanes | None,
    global_expert_idx_table: Lanes | None,
    experts_per_chip: int,
    metadata: Lanes | None,
    lane_axes: int,
) -> Lanes:
    """fp8 rows times their scales; if the experts' regions are given, rows after the last region are zeros."""
    blocks = input_e4m3.shape[-1] // BLOCK
    scale = input_scale
    if metadata is not None:  # the scales are float32 bits at the end of each row of integers
        scale = metadata[..., -blocks:].to(torch.int32).contiguous().view(torch.float32)
    assert scale is not None, "the check requires input_scale or metadata"
    scale = scale.bfloat16().float() if narrow_scales_to_bf16 else scale.float()
    rows = (torch.unflatten(input_e4m3.float(), -1, (-1, BLOCK)) * scale[..., None]).flatten(-2)
    if expert_region_offsets is None or expert_token_counts is None or global_expert_idx_table is None:
        return rows
    expert_tensors = (expert_region_offsets, expert_token_counts, global_expert_idx_table)
    starts, counts, table = align_mesh_dims([x.flatten(lane_axes).long() for x in expert_tensors], lane_axes)
    local_experts = table[..., :experts_per_chip]
    end = (starts.gather(-1, local_experts) + -(-counts.gather(-1, local_experts) // TILE) * TILE).amax(
        -1, keepdim=True
    )
    total = torch.Size(rows.shape[lane_axes:-1]).numel()
    in_region = torch.arange(total, device=rows.device) < end
    in_region = in_region.reshape(*in_region.shape[:-1], *rows.shape[lane_axes:-1], 1)
    return torch.where(in_region, rows, 0.0)


def _check_pack(call: Call) -> None:
    columns = (("latent", DataType.FP8_E4M3, LATENT), ("scales", DataType.FLOAT32, LATENT // BLOCK))
    for (name, dtype, last), spec in zip((*columns, ("rope", DataType.BFLOAT16, ROPE)), call.specs, strict=True):
        require_layout(spec, Layout.ROW_MAJOR, f"{name} must be ROW_MAJOR")
        require(
            spec.memory_config == DRAM_MEMORY_CONFIG,
            f"{name} must be DRAM interleaved",
            "DRAM_MEMORY_CONFIG",
            "Move it with ttnn.to_memory_config.",
        )
        require(spec.dtype is dtype, f"{name} has the wrong dtype", str(dtype), "Convert it with ttnn.typecast.")
        wrong = f"{name} last dim must be {last}, got {spec.shape[-1]}"
        require(spec.shape[-1] == last, wrong, str(last), "Reshape it to that length.")
    arch, memory_config = call.mesh.arch(), call["memory_config"]
    require(
        arch is Arch.BLACKHOLE,
        "pack_scaled_fp8_kv_cache requires Blackhole",
        "a Blackhole system",
        "Choose a Blackhole system with TTMESH_SYSTEM or --system.",
    )
    wrong = "pack_scaled_fp8_kv_cache: output must be DRAM interleaved"
    require(
        memory_config is None or memory_config == DRAM_MEMORY_CONFIG,
        wrong,
        "DRAM_MEMORY_CONFIG",
        "Move it with ttnn.to_memory_config.",
    )
    shapes = [tuple(spec.shape) for spec in call.specs]
    wrong = "all inputs must have the same rank"
    require(len({len(shape) for shape in shapes}) == 1, wrong, "equal ranks", "Reshape one with ttnn.reshape.")
    require(
        len({shape[:-1] for shape in shapes}) == 1,
        "all inputs must have identical leading shapes",
        "equal rows",
        "Give all inputs the same dims before the last.",
    )


def _pack_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    memory_config = call["memory_config"] or DRAM_MEMORY_CONFIG
    return [TensorSpec(inferred[0][0], DataType.FP8_E4M3, Layout.ROW_MAJOR, memory_config=memory_config)]


@op(f"{PREFILL}.pack_scaled_fp8_kv_cache", check=_check_pack, out=_pack_spec)
def pack_scaled_fp8_kv_cache(latent: Lanes, scales: Lanes, rope: Lanes, lane_axes: int) -> Lanes:
    """Cache rows of 656 bytes: the latent in fp8, its four scales, and the rotary columns in bfloat16."""
    rows = align_mesh_dims([latent, scales, rope], lane_axes)
    return torch.cat([x.contiguous().view(torch.uint8) for x in rows], -1).view(torch.float8_e4m3fn)
