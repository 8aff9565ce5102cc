"""Fused pieces of models: routers, deformable attention, delta rules, norms around a gather, decode matmuls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

import ttmesh.ccl.experts.expert_sums  # noqa: F401  (it enters deepseek_moe_fast_reduce_nc)
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    BufferType,
    TensorMemoryLayout,
    bfloat8_b,
    bfloat16,
    float32,
    fp8_e4m3,
    int32,
    uint16,
    uint32,
)
from ttmesh.ops.models.kimi import QkvCausalConv1dSiluProgramConfig
from ttmesh.ops.pool.color_conversion import YUVCoefficients
from ttmesh.tensor.spec.memory_config import L1_MEMORY_CONFIG, MemoryConfig, NdShardSpec, ShardSpec

HALF = (bfloat16,)
ROWS = (ROW_MAJOR_LAYOUT,)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(*shapes: tuple[int, ...], **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, *shape) for shape in shapes], options)


def membership(**options: Any) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        numbers = [torch.randint(0, 40, shape, generator=g, dtype=torch.int32) for shape in ((3, 20, 7), (2, 8))]
        return numbers, options

    return make


def image(**options: Any) -> Callable[[torch.Generator], Arguments]:
    # Multiples of 1/8 and coefficients with few bits: no sum lies so near a half that its rounding is left to chance.
    return lambda g: ([torch.randint(-8, 9, (3, 6, 10, 5), generator=g) / 8], options)


PLAIN = YUVCoefficients(y=(32.75, 64.25, 12.5, 125.5), cb=(-19.0, -37.0, 56.0, 128.0), cr=(56.0, -47.0, -9.0, 128.0))


def sampled(g: torch.Generator) -> Arguments:
    grid = torch.rand(3, 5 * 4, 1, 2, generator=g) * 2.2 - 1.1
    return [normal(g, 3, 9, 7, 32), grid, torch.softmax(normal(g, 3, 5, 4), -1)], {}


def router(g: torch.Generator) -> Arguments:
    bias = torch.randperm(128, generator=g).float().expand(32, 128) / 8  # apart enough that no rounding swaps experts
    return [normal(g, 32, 64) * 0.001], {"weight_tensor": normal(g, 64, 128) * 0.01, "bias_tensor": bias.clone()}


def conv(g: torch.Generator) -> Arguments:
    taps = [On(normal(g, 1, 1, 160), layout=TILE_LAYOUT) for _ in range(4)]
    config = QkvCausalConv1dSiluProgramConfig(channel_chunk_size=32)
    return [normal(g, 1, 64, 160), normal(g, 1, 3, 160), *taps, 64, 64, 32], {"program_config": config}


def rule(q: tuple[int, ...], v: tuple[int, ...], state: bool = False, **options: Any) -> Callable[..., Arguments]:
    heads = v[2] if len(v) == 4 else 4

    def make(g: torch.Generator) -> Arguments:
        unit = torch.nn.functional.normalize
        keys = [unit(normal(g, *q), dim=-1) for _ in range(2)]
        gates = [-torch.rand(*q[:2], heads, generator=g) / 4, torch.rand(*q[:2], heads, generator=g)]
        more = {"initial_state": normal(g, q[0], heads, 32, v[-1])} if state else {}
        return [*keys, normal(g, *v), *gates], {**more, **options}

    return make


def scan(g: torch.Generator) -> Arguments:
    lower = torch.eye(128) + (normal(g, 2, 2, 128, 128) * 0.02).tril(-1)
    blocks = [torch.linalg.inv(lower[..., i : i + 32, i : i + 32]) for i in range(0, 128, 32)]
    square = [normal(g, 2, 2, 128, 128) * 0.1 for _ in range(5)]
    values, keys, scores, asked, kept = square
    return [lower, values, keys, scores, asked, kept, torch.rand(2, 2, 1, 1, generator=g), torch.cat(blocks, -2)], {
        "initial_state": normal(g, 2, 128, 128)
    }


def gathered(devices: int, tiles: int, width: int) -> Callable[[torch.Generator], torch.Tensor]:
    """Statistics as the operation before the gather makes them."""

    def make(g: torch.Generator) -> torch.Tensor:
        stats = torch.zeros(1, 1, 64, devices * tiles * 32)
        stats[..., ::32] = torch.rand(1, 1, 64, devices * tiles, generator=g) + 0.5
        return stats if tiles == 2 else stats * width

    return make


def layer(**terms: tuple[int, ...]) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        tensors = [normal(g, 1, 1, 64, 96), gathered(4, 2, 96)(g)]
        return tensors, {name: normal(g, *shape) for name, shape in terms.items()}

    return make


def heads(rotated: bool) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        swap = torch.zeros(1, 1, 32, 32)
        even = torch.arange(0, 32, 2)
        swap[..., even, even + 1], swap[..., even + 1, even] = 1, -1
        angles = [normal(g, 1, 1, 64, 32).repeat_interleave(2, -1) for _ in range(2)]
        rope = {"transformation_mat": swap, "rope_cos": angles[0], "rope_sin": angles[1]} if rotated else {}
        tensors = [normal(g, 1, 1, 64, 128), gathered(4, 1, 128)(g)]
        return tensors, {"num_heads_per_device": 2, "weight": normal(g, 1, 128), **rope}

    return make


def cached(width: int, **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, 1, 7, 32, width), normal(g, 32, 1, 128, 64)], {**options, **GRID})


GRID = {"compute_with_storage_grid_size": CoreCoord(8, 8)}


def width_sharded(cores: int, height: int, width: int) -> MemoryConfig:
    grid = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(cores - 1, 0))])
    return MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1, ShardSpec(grid, (height, width)))


def decoded(a: tuple[int, ...], b: tuple[int, ...], **options: Any) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        rows = a[0] * a[1] * a[2] if len(a) == 4 else a[0]
        left = On(normal(g, *a), memory_config=width_sharded(2, rows, a[-1] // 2))
        return [left, On(normal(g, *b), memory_config=width_sharded(4, b[-2], b[-1] // 4))], options

    return make


def blocks(g: torch.Generator) -> Arguments:
    chosen = torch.stack([torch.randperm(4, generator=g) for _ in range(2 * 8)]).reshape(1, 2, 8, 4)
    chosen[..., 3] = 0xFFFFFFFF
    chosen = torch.nn.functional.pad(chosen, (0, 12), value=0xFFFFFFFF)  # rows of 64 bytes
    tensors = [On(normal(g, 1, 32, 8, 64), layout=ROW_MAJOR_LAYOUT), normal(g, 1, 2, 128, 64), normal(g, 1, 2, 128, 32)]
    return [*tensors, On(chosen, uint32, ROW_MAJOR_LAYOUT)], {"block_size": 32}


def causal_blocks(g: torch.Generator) -> Arguments:
    tensors, options = blocks(g)
    tensors[3].values[..., 0] = 0  # every row sees something
    return tensors, {**options, "chunk_start_idx": 70}


def spaced(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Scores far enough apart that no rounding swaps two of them."""
    rows = torch.Size(shape[:-1]).numel()
    drawn = torch.stack([torch.randperm(shape[-1], generator=g) for _ in range(rows)])
    return (drawn.float() / 64 - 2).reshape(shape)


def gate(experts: int, padded: bool = False, **options: Any) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        padding = On(torch.tensor([[5, 1]]), uint32, ROW_MAJOR_LAYOUT)
        tensors = [spaced(g, 1, 1, 9, experts), torch.zeros(1, 1, 9, experts)]
        return tensors, {**options, **({"padding_config": padding} if padded else {})}

    return make


def hashed(g: torch.Generator) -> Arguments:
    ids = On(torch.randint(0, 50, (2, 32), generator=g), uint32, ROW_MAJOR_LAYOUT)
    table = On(torch.stack([torch.randperm(64, generator=g)[:8] for _ in range(50)]), uint16, ROW_MAJOR_LAYOUT)
    return [normal(g, 1, 1, 40, 64), ids, table], {"n_activated_experts": 6, "route_scale": 1.5}


def counted(g: torch.Generator) -> Arguments:
    chosen = On(torch.randint(0, 17, (64, 8), generator=g), uint16, TILE_LAYOUT)
    return [chosen, On(torch.randint(-1, 3, (1, 17), generator=g).int(), int32, ROW_MAJOR_LAYOUT), 16, 6], {}


def numbered(*values: int) -> On:
    return On(torch.tensor([values]), uint32, ROW_MAJOR_LAYOUT)


REGIONS = (numbered(0, 32, 96), numbered(20, 40, 31), numbered(2, 0, 1))


def reduced(local: bool) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        weights = torch.rand(1, 1, 32, 4, 1, generator=g) * (torch.rand(1, 1, 32, 4, 1, generator=g) > 0.3)
        chosen = On(torch.randint(0, 9, (1, 1, 32, 4), generator=g), uint16)
        table = On(torch.randint(-1, 2, (9,), generator=g).int(), int32)
        return [normal(g, 1, 1, 32, 4, 64), weights, *([chosen, table] if local else [])], {}

    return make


def nets(g: torch.Generator) -> Arguments:
    matrices = [[normal(g, *shape) / 8 for _ in range(3)] for shape in ((64, 96), (64, 96), (96, 64))]
    return [normal(g, 128, 64), *REGIONS, *matrices, 64], {}


def eighths(g: torch.Generator) -> Arguments:
    """Whole numbers whose largest is 448 in every block: scales are 1 and eight bits are exact."""
    integers = torch.randint(-15, 16, (3, 5, 256), generator=g).float()
    integers[..., ::128] = 448.0
    return [integers], {}


def scaled(g: torch.Generator) -> Arguments:
    rows = On(torch.randint(-15, 16, (3, 5, 256), generator=g).float(), fp8_e4m3)
    return [rows, On(torch.rand(3, 5, 2, generator=g), float32)], {}


STRIPS = MemoryConfig(
    BufferType.L1,
    NdShardSpec((32, 64), CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(3, 0))])),
)
CASES = [
    Case("ttnn.experimental.isin", membership(), (int32,), (TILE_LAYOUT, ROW_MAJOR_LAYOUT)),
    Case("ttnn.experimental.isin/inverted", membership(invert=True), (int32,), ROWS),
    Case("ttnn.experimental.rgb_to_yuv", image(coefficients=PLAIN), HALF, ROWS),
    Case("ttnn.experimental.multi_scale_deformable_attn", sampled, HALF, ROWS),
    Case("ttnn.experimental.topk_router_gpt", router, HALF),
    Case("ttnn.experimental.kda.qkv_causal_conv1d_silu", conv, HALF, ROWS),
    Case("ttnn.experimental.kda.sigmoid_gated_rms_norm", args((6, 32, 64), (2, 32, 192), (64,), num_heads=3), HALF),
    Case("ttnn.transformer.chunk_gated_delta_rule", rule((2, 70, 2, 32), (2, 70, 4, 64), output_final_state=True)),
    Case("ttnn.transformer.chunk_gated_delta_rule/state", rule((1, 64, 2, 32), (1, 64, 2, 32), True, scale=0.5)),
    Case("ttnn.transformer.chunk_gated_delta_rule/flat",
         rule((1, 64, 64), (1, 64, 128), chunk_size=32, output_head_major=True)),
    Case("ttnn.transformer.gated_delta_attn_seq", scan, (float32,), placements=False),
    Case(
        "ttnn.experimental.dit_layernorm_pre_allgather",
        lambda g: ([normal(g, 1, 2, 64, 96), On(normal(g, 1, 1, 1, 96), memory_config=L1_MEMORY_CONFIG)], {}),
    ),
    Case("ttnn.experimental.dit_layernorm_post_allgather", layer(), HALF),
    Case("ttnn.experimental.dit_layernorm_post_allgather/affine", layer(weight=(1, 96), bias=(1, 96)), HALF),
    Case("ttnn.experimental.wan_fused_rmsnorm_pre_allgather", args((1, 1, 64, 96))),
    Case("ttnn.experimental.wan_fused_rmsnorm_post_allgather", heads(False), HALF),
    Case("ttnn.experimental.wan_fused_rmsnorm_post_allgather/turned", heads(True), HALF),
    Case("ttnn.experimental.attn_matmul_from_cache", cached(64, num_tokens=50, transpose_hw=True)),
    Case("ttnn.experimental.attn_matmul_from_cache/values", cached(64, num_tokens=50, transpose_hw=False)),
    Case("ttnn.transformer.sparse_sdpa_msa", blocks, HALF, system="p150x8"),
    Case("ttnn.transformer.sparse_sdpa_msa/causal", causal_blocks, HALF, system="p150x8"),
    Case("ttnn.experimental.deepseek_prefill.moe_grouped_topk", gate(256), pcc=None),  # its weights are nearly equal
    Case("ttnn.experimental.deepseek_prefill.moe_grouped_topk/one group",
         gate(96, True, n_groups=1, n_activated_experts=6, score_func="sqrtsoftplus", route_scale=2.5)),
    Case("ttnn.experimental.deepseek_prefill.moe_hash_gate", hashed, (float32,)),
    Case("ttnn.experimental.deepseek_prefill.masked_bincount", counted, HALF),
    Case("ttnn.experimental.deepseek_prefill.extract",
         lambda g: ([normal(g, 128, 64), *REGIONS],
                    {"local_expert_id": 2, "max_dispatched_tokens_per_expert": 96}), (bfloat16, bfloat8_b)),
    Case("ttnn.experimental.deepseek_prefill.insert",
         lambda g: ([normal(g, 128, 64), normal(g, 64, 64), *REGIONS], {"local_expert_id": 0}), (bfloat16, bfloat8_b),
         placements=False),
    Case("ttnn.experimental.deepseek_prefill.post_combine_reduce", reduced(False), HALF, ROWS),
    Case("ttnn.experimental.deepseek_prefill.post_combine_reduce/local", reduced(True), HALF, ROWS),
    Case("ttnn.experimental.deepseek_prefill.routed_expert_ffn", args((64, 64), (64, 96), (64, 96), (96, 64)), HALF),
    Case("ttnn.experimental.deepseek_prefill.unified_routed_expert_moe", nets, HALF, system="p150x8"),
    Case("ttnn.experimental.deepseek_prefill.per_token_cast_to_fp8", eighths, HALF, ROWS, system="p150x8"),
    Case("ttnn.experimental.deepseek_prefill.per_token_cast_back", scaled, HALF, ROWS, system="p150x8"),
    Case("ttnn.experimental.deepseek_moe_post_combine_tilize",
         lambda g: ([normal(g, 2, 32, 128)], {"output_memory_config": STRIPS}), HALF, ROWS),
    Case("ttnn.experimental.deepseek_moe_fast_reduce_nc",
         args((8, 1, 32, 256), dim=0, split_size=64), (bfloat16, bfloat8_b)),
    Case("ttnn.experimental.matmul_decode", decoded((32, 128), (128, 256))),
    Case("ttnn.experimental.matmul_decode/partial",
         decoded((32, 128), (64, 512), partial_width_sharded=True)),
    Case("ttnn.experimental.matmul_decode/batched", decoded((1, 4, 32, 64), (1, 1, 128, 256))),
]  # fmt: skip
