"""Matmuls: ranks, transposes, bias, activations, formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Case, On

from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, bfloat8_b, bfloat16, float32
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam
from ttmesh.ops.configs.matmul_program_configs import MatmulMultiCoreReuseMultiCast1DProgramConfig
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG

FLOATS = (bfloat16, float32, bfloat8_b)


def several_weights(g: torch.Generator) -> Any:
    weights = [torch.randn(64, 64, generator=g) for _ in range(3)]
    return [torch.randn(32, 64, generator=g), weights], {"memory_config": DRAM_MEMORY_CONFIG, "program_config": COLUMNS}


def operands(a: tuple[int, ...], b: tuple[int, ...], bias: tuple[int, ...] | None = None, **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        named = dict(options)
        if bias is not None:
            named["bias"] = torch.randn(bias, generator=g)
        return [torch.randn(a, generator=g), torch.randn(b, generator=g)], named

    return make


def three(c: tuple[int, ...], a: tuple[int, ...], b: tuple[int, ...], **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        return [torch.randn(shape, generator=g) for shape in (c, a, b)], options

    return make


SHAPES = {
    "matrices": ((33, 40), (40, 50)),
    "shared weights": ((2, 3, 33, 40), (40, 50)),
    "shared weights with ones": ((2, 3, 33, 40), (1, 1, 40, 50)),
    "batches": ((2, 3, 33, 40), (2, 3, 40, 50)),
    "one batch of the first": ((1, 1, 33, 40), (2, 3, 40, 50)),
    "leading ones": ((33, 40), (1, 1, 40, 50)),
    "vector first": ((40,), (40, 50)),
    "vector second": ((33, 40), (40,)),
    "vectors": ((40,), (40,)),
}

HALF = (bfloat16,)  # blocks of float32 are larger than L1
COLUMNS = MatmulMultiCoreReuseMultiCast1DProgramConfig(
    compute_with_storage_grid_size=(8, 1),
    in0_block_w=2,
    out_subblock_h=1,
    out_subblock_w=1,
    per_core_M=1,
    per_core_N=1,
    fuse_batch=True,
    fused_activation=UnaryWithParam(UnaryOpType.RELU),
    mcast_in0=True,
)


def experts(a: tuple[int, ...], flags: tuple[int, ...], **options: Any) -> Callable:
    def make(g: torch.Generator) -> Any:
        weights = torch.randn(1, 4, 64, 96, generator=g)
        sparsity = On((torch.rand(flags, generator=g) > 0.4).float(), bfloat16, ROW_MAJOR_LAYOUT)
        named = {"sparsity": sparsity, "program_config": SPARSE, **options}
        return [torch.randn(a, generator=g), weights], named

    return make


GRID = {"compute_with_storage_grid_size": (8, 8)}
SPARSE = MatmulMultiCoreReuseMultiCast1DProgramConfig(
    compute_with_storage_grid_size=(3, 1),
    in0_block_w=1,
    out_subblock_h=1,
    out_subblock_w=1,
    per_core_M=1,
    per_core_N=1,
    fuse_batch=False,
    mcast_in0=True,
)

CASES = [
    *(
        Case(f"ttnn.matmul/{name}", operands(a, b), FLOATS, pcc=0.0 if name == "vectors" else 0.999)
        for name, (a, b) in SHAPES.items()
    ),
    Case("ttnn.matmul/transposed first", operands((2, 40, 33), (40, 50), transpose_a=True)),
    Case("ttnn.matmul/transposed second", operands((2, 33, 40), (50, 40), transpose_b=True)),
    Case("ttnn.matmul/activation", operands((33, 40), (40, 50), activation="silu")),
    Case("ttnn.matmul/program config", operands((32, 64), (64, 256), program_config=COLUMNS)),
    Case("ttnn.matmul/large", operands((2, 64, 512), (512, 128))),
    Case("ttnn.linear/plain", operands((2, 33, 40), (40, 50)), FLOATS, pcc=0.999),
    Case("ttnn.linear/bias", operands((2, 33, 40), (40, 50), (50,)), FLOATS, pcc=0.999),
    Case(
        "ttnn.matmul_batched_weights",
        several_weights,
        golden=lambda a, weights, **_: [torch.relu(a @ b) for b in weights],
    ),
    Case("ttnn.linear/bias of more dims", operands((33, 40), (40, 50), (1, 1, 50))),
    Case("ttnn.linear/bias of rank 4", operands((2, 1, 33, 40), (40, 50), (1, 1, 1, 50))),
    Case("ttnn.linear/bias and activation", operands((2, 33, 40), (40, 50), (1, 50), activation="gelu")),
    Case("ttnn.linear/transposed", operands((2, 33, 40), (50, 40), (50,), transpose_b=True)),
    Case("ttnn.addmm/plain", three((33, 50), (33, 40), (40, 50)), FLOATS, pcc=0.999),
    Case("ttnn.addmm/scaled", three((33, 50), (33, 40), (40, 50), alpha=0.5, beta=2.0)),
    Case("ttnn.addmm/product only", three((33, 50), (33, 40), (40, 50), alpha=2.0, beta=0.0)),
    Case("ttnn.sparse_matmul/experts", experts((2, 3, 32, 64), (2, 3, 1, 4))),
    Case("ttnn.sparse_matmul/both", experts((1, 4, 32, 64), (1, 1, 1, 4), is_input_a_sparse=True)),
    Case("ttnn.experimental.minimal_matmul/plain", operands((2, 33, 40), (40, 50)), HALF),
    Case("ttnn.experimental.minimal_matmul/gated", operands((33, 40), (40, 192), fuse_swiglu=True), HALF),
    Case("ttnn.experimental.minimal_matmul_split", operands((33, 40), (40, 96)), HALF),
    Case("ttnn.experimental.attn_matmul", operands((1, 8, 32, 64), (32, 1, 64, 96), **GRID)),
    Case("ttnn.experimental.group_attn_matmul", operands((1, 8, 32, 64), (32, 2, 64, 96), **GRID)),
]  # fmt: skip
