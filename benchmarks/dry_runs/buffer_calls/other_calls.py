"""Convolutions, pools, moreh and experimental operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import ttnn

from buffer_calls.listed_call import (
    BATCH,
    FORMATS,
    MIDDLE,
    ODD,
    Call,
    T,
    call,
    device,
    find,
)


def convolutions() -> Iterator[Call]:
    for size, channels, filters, kernel, stride in (
        (32, 32, 64, 3, 1),
        (56, 64, 64, 3, 1),
        (56, 64, 128, 1, 2),
        (28, 128, 128, 3, 2),
        (14, 256, 256, 3, 1),
        (64, 16, 32, 3, 1),
    ):
        for dtype in ("b16", "b8"):
            options = {
                "in_channels": channels,
                "out_channels": filters,
                "batch_size": 1,
                "input_height": size,
                "input_width": size,
                "kernel_size": (kernel, kernel),
                "stride": (stride, stride),
                "padding": (kernel // 2, kernel // 2),
            }

            def run(
                a: Any,
                channels: int = channels,
                filters: int = filters,
                kernel: int = kernel,
                dtype: str = dtype,
                options: Any = options,
            ) -> Any:
                weight = ttnn.from_torch(
                    torch.zeros(filters, channels, kernel, kernel),
                    dtype=ttnn.float32 if dtype == "b8" else ttnn.bfloat16,
                )
                config = ttnn.Conv2dConfig(weights_dtype=FORMATS[dtype])
                return ttnn.conv2d(input_tensor=a, weight_tensor=weight, device=device(), conv_config=config, **options)

            yield call(
                "conv",
                "conv2d",
                T((1, 1, size * size, channels), "b16", "R"),
                note=f"{filters} {kernel} {stride} {dtype}",
                run=run,
            )


def pools() -> Iterator[Call]:
    for size, channels in ((32, 32), (64, 64), (112, 64), (28, 256)):
        for kernel, stride in ((2, 2), (3, 2)):
            options = {
                "batch_size": 1,
                "input_h": size,
                "input_w": size,
                "channels": channels,
                "kernel_size": [kernel, kernel],
                "stride": [stride, stride],
                "padding": [kernel // 2, kernel // 2],
            }
            yield call(
                "pool",
                "max_pool2d",
                T((1, 1, size * size, channels), "b16", "R"),
                note=f"{kernel} {stride}",
                run=lambda a, options=options: ttnn.max_pool2d(a, dilation=[1, 1], **options),
            )
            yield call(
                "pool",
                "avg_pool2d",
                T((1, 1, size * size, channels), "b16", "R"),
                note=f"{kernel} {stride}",
                run=lambda a, options=options: ttnn.avg_pool2d(a, **options),
            )
        yield call("pool", "upsample", T((1, size, size, channels), "b16", "R"), run=lambda a: ttnn.upsample(a, 2))
        yield call("pool", "global_avg_pool2d", T((1, size, size, channels)))


def moreh() -> Iterator[Call]:
    for dim in (0, 1, 2, 3):
        for dtype in ("b16",):
            yield call("moreh", "moreh_sum", T(BATCH, dtype), dim=dim, note=f"{dim}")
            yield call("moreh", "moreh_mean", T(BATCH, dtype), dim=dim, note=f"{dim}")
            yield call(
                "moreh",
                "moreh_softmax",
                T(BATCH, dtype),
                note=f"{dim}",
                run=lambda a, dim=dim: ttnn.moreh_softmax(a, dim),
            )
            yield call(
                "moreh",
                "moreh_norm",
                T(BATCH, dtype),
                note=f"{dim}",
                run=lambda a, dim=dim: ttnn.moreh_norm(a, 2.0, dim),
            )
            yield call(
                "moreh",
                "moreh_cumsum",
                T(BATCH, dtype),
                note=f"{dim}",
                run=lambda a, dim=dim: ttnn.moreh_cumsum(a, dim),
            )
    for shape in (MIDDLE, ODD, BATCH):
        for dims in (1, 2, 3):
            yield call(
                "moreh",
                "moreh_layer_norm",
                T(shape),
                note=f"{dims}",
                run=lambda a, dims=dims: ttnn.moreh_layer_norm(a, dims, 1e-5),
            )
    yield call("moreh", "moreh_matmul", T((1, 1, 128, 256)), T((1, 1, 256, 64)))
    yield call("moreh", "moreh_dot", T((1, 1, 1, 512)), T((1, 1, 1, 512)))
    yield call("moreh", "moreh_full_like", T(MIDDLE), note="3", run=lambda a: ttnn.moreh_full_like(a, 3.0))
    yield call("moreh", "moreh_arange", note="0 64", run=lambda: ttnn.moreh_arange(0, 64, 1, device()))


def experimental() -> Iterator[Call]:
    for name, value in (("full_like", 3.0), ("ones_like", None), ("zeros_like", None)):
        for dtype, layout in (("b16", "T"), ("f32", "T"), ("b16", "R")):
            yield call(
                "experimental",
                name,
                T(MIDDLE, dtype, layout),
                run=lambda a, name=name, value=value: find(name)(a, *([] if value is None else [value])),
            )
    yield call("experimental", "plus_one", T((32,), "i32", "R"))
    yield call(
        "experimental", "fill_implicit_tile_padding", T(ODD), run=lambda a: ttnn.fill_implicit_tile_padding(a, 0.0)
    )
    yield call("experimental", "tril", T(MIDDLE))
    yield call(
        "experimental",
        "experimental.dropout",
        T(MIDDLE),
        note="0.1",
        run=lambda a: ttnn.experimental.dropout(a, probability=0.1, scale=1.1, seed=1),
    )
    yield call("experimental", "rand", note="128x512", run=lambda: ttnn.rand((1, 1, 128, 512), device=device()))
    yield call("experimental", "uniform", T(MIDDLE))
    yield call("experimental", "bernoulli", T(MIDDLE, "f32"))
    for m, k, n in ((512, 512, 512), (1024, 2048, 1024)):
        for da, db in (("b16", "b16"), ("b16", "b8")):
            yield call("experimental", "experimental.minimal_matmul", T((1, 1, m, k), da), T((k, n), db))
            config = ttnn.MinimalMatmulConfig(
                M_block_size=4,
                K_block_size=4,
                N_block_size=4,
                subblock_h=1,
                subblock_w=1,
                compute_with_storage_grid_size=ttnn.CoreCoord(8, 8),
            )
            yield call(
                "experimental",
                "experimental.minimal_matmul",
                T((1, 1, m, k), da),
                T((k, n), db),
                note="config",
                run=lambda a, b, config=config: ttnn.experimental.minimal_matmul(a, b, config=config),
            )
    yield call("experimental", "experimental.gelu_bw", T(MIDDLE), T(MIDDLE))
    yield call("experimental", "glu", T(MIDDLE), run=lambda a: ttnn.glu(a, -1))
    yield call("experimental", "swiglu", T(MIDDLE), run=lambda a: ttnn.swiglu(a, -1))
    yield call("experimental", "mse_loss", T(MIDDLE), T(MIDDLE))
    yield call("experimental", "roll", T(MIDDLE), run=lambda a: ttnn.roll(a, 1, 0))
    yield call(
        "experimental",
        "bcast",
        T(MIDDLE),
        T((1, 1, 1, 512)),
        run=lambda a, b: ttnn.bcast(a, b, ttnn.BcastOpMath.ADD, ttnn.BcastOpDim.H),
    )
