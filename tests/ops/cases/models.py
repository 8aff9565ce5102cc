"""Operations that single model families brought: state spaces, diffusion transformers, mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, BufferType, TensorMemoryLayout, bfloat16
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec

HALF = (bfloat16,)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(*shapes: tuple[int, ...], **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, *shape) for shape in shapes], options)


def matmul_operands(g: torch.Generator) -> Arguments:
    x, weight = normal(g, 1, 1, 40, 64), normal(g, 64, 96) / 8
    base, gate = normal(g, 1, 1, 40, 96), normal(g, 1, 1, 1, 96)
    return [x, weight, 0.5, base, gate], {"bias_tensor": normal(g, 1, 96)}


def distinct(g: torch.Generator) -> Arguments:
    rows = torch.stack([torch.randperm(256, generator=g) for _ in range(6)]).reshape(2, 3, 256).float() - 128
    rows[0, 0, 10:250] = float("-inf")
    return [On(rows, layout=ROW_MAJOR_LAYOUT)], {"k": 32, "valid_length": 200}


def scanned(g: torch.Generator) -> Arguments:
    cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(1, 0))])

    def shards(rows: int) -> MemoryConfig:
        return MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1, ShardSpec(cores, (rows, 32)))

    rows = [On(normal(g, 1, 1, 32, 64), memory_config=shards(32)) for _ in range(2)]
    return [*rows, On(normal(g, 1, 1, 1, 64), layout=ROW_MAJOR_LAYOUT, memory_config=shards(1))], {}


NORM = "ttnn.experimental.dit_rms_norm_unary_fused"
CASES = [
    Case("ttnn.experimental.repeat_and_interleave_eltwise_mul", args((1, 1, 32, 32), (1, 1, 32, 5120))),
    Case("ttnn.experimental.repeat_and_interleave_eltwise_mul/own", args((1, 1, 32, 163840), (1, 1, 32, 5120))),
    Case("ttnn.experimental.hc_sum_reduce", args((1, 1, 32, 1024))),
    Case("ttnn.experimental.prefix_scan", scanned, (bfloat16,), pcc=0.999, placements=False),
    Case(NORM, lambda g: ([normal(g, 2, 3, 33, 64)], {"weight": normal(g, 1, 1, 1, 64), "activation": "silu"})),
    Case(
        f"{NORM}/residual",
        lambda g: (
            [normal(g, 1, 1, 33, 64), 1e-6],
            {"residual_input_tensor": normal(g, 1, 1, 33, 64), "activation": UnaryWithParam(UnaryOpType.GELU)},
        ),
    ),
    Case("ttnn.experimental.dit_minimal_matmul_addcmul_fused", matmul_operands, HALF, pcc=0.999),
    Case("ttnn.experimental.topk_large_indices", distinct, HALF, (ROW_MAJOR_LAYOUT,), system="p150x8"),
]
