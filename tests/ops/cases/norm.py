"""Normalisation and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from harness import Arguments, Case, On

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import ROW_MAJOR_LAYOUT, BufferType, TensorMemoryLayout, bfloat8_b, bfloat16, float32
from ttmesh.ops.configs.program_configs import SoftmaxShardedMultiCoreProgramConfig
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec

FLOATS = (bfloat16, float32, bfloat8_b)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=g)


def args(*shapes: tuple[int, ...], **options: Any) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, *shape) for shape in shapes], options)


def norm(
    shape: tuple[int, ...], *, residual: bool = False, bias: bool = True
) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        width = shape[-1]
        options: dict[str, Any] = {"epsilon": 1e-5, "weight": normal(g, 1, 1, 1, width)}
        if bias:
            options["bias"] = normal(g, 1, 1, 1, width)
        if residual:
            options["residual_input_tensor"] = normal(g, *shape)
        return [normal(g, *shape)], options

    return make


def rows_of_32(g: torch.Generator) -> Arguments:
    weight = On(normal(g, 1, 1, 2, 32), bfloat16, ROW_MAJOR_LAYOUT)
    return [normal(g, 2, 1, 33, 64)], {"epsilon": 1e-5, "weight": weight}


def post(tiles: int) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        x = normal(g, 1, 1, 40, 64)
        stats = torch.zeros(1, 1, 40, 4 * tiles * 32)
        stats[..., :: 32 * tiles] = 60 + normal(g, 1, 1, 40, 4).abs()
        if tiles == 2:
            stats[..., 32::64] = normal(g, 1, 1, 40, 4)
        return [x, stats], {"epsilon": 1e-5, "weight": normal(g, 1, 1, 1, 64)}

    return make


def batch(training: bool) -> Callable[[torch.Generator], Arguments]:
    def make(g: torch.Generator) -> Arguments:
        channels = [normal(g, 1, 6, 1, 1) for _ in range(3)] + [normal(g, 1, 6, 1, 1).abs() + 0.5]
        names = ("weight", "bias", "running_mean", "running_var")
        return [normal(g, 2, 6, 33, 40)], {**dict(zip(names, channels, strict=True)), "training": training}

    return make


def masked(*mask: int) -> Callable[[torch.Generator], Arguments]:
    return lambda g: ([normal(g, 2, 3, 34, 64), 0.3, normal(g, *mask)], {})


def masked_rows(g: torch.Generator) -> Arguments:
    cores = CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(5, 0))])
    shards = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, ShardSpec(cores, (32, 64)))
    config = SoftmaxShardedMultiCoreProgramConfig(
        compute_with_storage_grid_size=(6, 1), subblock_w=1, block_h=1, block_w=2
    )
    return [On(normal(g, 2, 3, 32, 64), memory_config=shards), 0.3, normal(g, 1, 1, 32, 64)], {"program_config": config}


CASES = [
    Case("ttnn.layer_norm", norm((2, 3, 33, 64)), FLOATS),
    Case("ttnn.layer_norm/residual", norm((1, 1, 33, 50), residual=True)),
    Case("ttnn.layer_norm/plain", args((40, 64), epsilon=1e-5)),
    Case("ttnn.layer_norm/rows", rows_of_32),
    Case("ttnn.rms_norm", norm((2, 3, 33, 64), bias=False), FLOATS),
    Case("ttnn.rms_norm/bias", norm((2, 3, 33, 64), residual=True)),
    Case("ttnn.layer_norm_pre_all_gather", args((1, 2, 33, 64)), (bfloat16,)),
    Case("ttnn.rms_norm_pre_all_gather", args((1, 2, 33, 64)), (bfloat16,)),
    Case("ttnn.layer_norm_post_all_gather", post(2)),
    Case("ttnn.rms_norm_post_all_gather", post(1)),
    Case("ttnn.batch_norm", batch(False)),
    Case("ttnn.batch_norm/training", batch(True)),
    Case("ttnn.softmax", args((2, 3, 33, 40), dim=-1), FLOATS),
    Case("ttnn.softmax/first dim", args((2, 3, 33, 40), dim=1)),
    Case("ttnn.softmax_in_place", args((2, 3, 33, 40))),
    Case("ttnn.scale_mask_softmax", masked(2, 1, 1, 64)),
    Case("ttnn.scale_mask_softmax_in_place", masked(2, 1, 1, 64)),
    Case("ttnn.scale_causal_mask_hw_dims_softmax_in_place", masked_rows, placements=False),
    Case(
        "ttnn.transformer.attention_softmax",
        lambda g: ([normal(g, 2, 3, 32, 64)], {"head_size": 64, "attention_mask": normal(g, 2, 1, 1, 64)}),
    ),
    Case(
        "ttnn.transformer.attention_softmax_",
        lambda g: ([normal(g, 2, 3, 32, 64)], {"head_size": 64, "attention_mask": normal(g, 2, 1, 1, 64)}),
    ),
]
