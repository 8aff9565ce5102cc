"""Reductions, softmax and norms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ttnn

from buffer_calls.listed_call import (
    BATCH,
    LARGE,
    MIDDLE,
    ODD,
    SHAPES,
    SQUARE,
    TALL,
    WIDE,
    Call,
    T,
    call,
    compute,
    find,
)


def reductions() -> Iterator[Call]:
    for name in ("sum", "mean", "max", "min"):
        for dim in (-1, -2, (-2, -1), 0, 1, None):
            for shape in (MIDDLE, BATCH):
                yield call("reduction", name, T(shape), dim=dim, note=f"dim {dim}")
            yield call("reduction", name, T(MIDDLE, "f32"), dim=dim, note=f"dim {dim}")
    for name in ("sum", "max"):
        for dim in (-1, -2):
            for shape in (LARGE, ODD, WIDE, TALL):
                yield call("reduction", name, T(shape), dim=dim, note=f"dim {dim}")
            for dtype in ("b8", "i32", "u32"):
                yield call("reduction", name, T(MIDDLE, dtype), dim=dim, note=f"dim {dim}")
            for kind in ("height", "width", "block"):
                yield call("reduction", name, T(MIDDLE, "b16", "T", kind), dim=dim, note=f"dim {dim}")
            yield call("reduction", name, T(MIDDLE, "b16", "R"), dim=dim, note=f"dim {dim}")
    for name in ("std", "var", "prod"):
        for dim in (-1, -2, 0):
            yield call("reduction", name, T(MIDDLE), dim=dim, note=f"dim {dim}")
            yield call("reduction", name, T(BATCH, "f32"), dim=dim, note=f"dim {dim}")
    for name in ("cumsum", "cumprod"):
        for dim in (0, 1, -1, -2):
            for dtype in ("b16", "f32"):
                yield call("reduction", name, T(BATCH, dtype), dim=dim, note=f"dim {dim}")
    yield call("reduction", "experimental.fast_reduce_nc", T(BATCH), dims=[0], note="0")
    yield call("reduction", "experimental.fast_reduce_nc", T((1, 8, 128, 512), "b8"), dims=[1], note="1")


def softmaxes() -> Iterator[Call]:
    for shape in SHAPES:
        for dim in (-1, -2, 1):
            for dtype in ("b16", "f32", "b8"):
                if dtype == "b16" or dim != 1:
                    yield call("softmax", "softmax", T(shape, dtype), dim=dim)
    for stable in (True, False):
        for shape in (MIDDLE, WIDE, (1, 1, 32, 32768)):
            yield call("softmax", "softmax", T(shape), dim=-1, numeric_stable=stable)
    for kind in ("height", "block"):
        yield call("softmax", "softmax", T(MIDDLE, "b16", "T", kind), dim=-1)
    for shape in (MIDDLE, BATCH, LARGE):
        yield call("softmax", "softmax_in_place", T(shape))
        yield call("softmax", "scale_mask_softmax", T(shape), note="scale", scale=0.5)
        yield call(
            "softmax",
            "scale_mask_softmax_in_place",
            T(shape),
            T((shape[0], 1, 32 if shape[2] % 32 else shape[2], shape[3])),
            run=lambda a, m: ttnn.scale_mask_softmax_in_place(a, 0.5, m),
        )
        yield call(
            "softmax",
            "transformer.attention_softmax_",
            T((2, 4, 128, 128)),
            T((2, 1, 32, 128)),
            head_size=64,
            note=str(shape),
            run=lambda a, m: ttnn.transformer.attention_softmax_(a, head_size=64, attention_mask=m),
        )


def norms() -> Iterator[Call]:
    for name in ("layer_norm", "rms_norm"):
        for shape in (SQUARE, MIDDLE, LARGE, BATCH, WIDE, (1, 1, 32, 4096), (1, 1, 32, 16384), (1, 1, 256, 5120)):
            for dtype in ("b16", "f32", "b8"):
                yield call("norm", name, T(shape, dtype))
            weight = T((1, 1, shape[-1] // 32, 32), "b16", "R")
            yield call("norm", name, T(shape), weight, run=lambda a, w, name=name: find(name)(a, weight=w))
            yield call(
                "norm", name, T(shape), T((1, 1, 1, shape[-1])), run=lambda a, w, name=name: find(name)(a, weight=w)
            )
        for shape in (MIDDLE, LARGE):
            wide = T((1, 1, 1, shape[-1]))
            yield call(
                "norm", name, T(shape), wide, wide, run=lambda a, w, b, name=name: find(name)(a, weight=w, bias=b)
            )
            yield call(
                "norm",
                name,
                T(shape),
                T(shape),
                note="residual",
                run=lambda a, r, name=name: find(name)(a, residual_input_tensor=r),
            )
            yield call(
                "norm",
                name,
                T(shape),
                T(shape),
                wide,
                note="residual, weight",
                run=lambda a, r, w, name=name: find(name)(a, residual_input_tensor=r, weight=w),
            )
            for wide_sums in (True, False):
                config = compute(wide_sums)
                yield call(
                    "norm",
                    name,
                    T(shape),
                    wide,
                    note=f"float32 sums {wide_sums}",
                    run=lambda a, w, name=name, config=config: find(name)(a, weight=w, compute_kernel_config=config),
                )
        for shape in (MIDDLE, (1, 1, 32, 2048), (1, 1, 1024, 1024)):
            yield call("norm", f"{name}_pre_all_gather", T(shape))
            yield call("norm", f"{name}_pre_all_gather", T(shape, "b8"))
            statistics = T((1, 1, shape[2], 32 * (2 if name == "layer_norm" else 1) * 4))
            yield call("norm", f"{name}_post_all_gather", T(shape), statistics)
            yield call(
                "norm",
                f"{name}_post_all_gather",
                T(shape),
                statistics,
                T((1, 1, shape[-1] // 32, 32), "b16", "R"),
                run=lambda a, s, w, name=name: find(f"{name}_post_all_gather")(a, s, weight=w),
            )
    for groups, channels in ((32, 320), (8, 256)):
        shape = (1, 1, 1024, channels)
        yield call(
            "norm",
            "group_norm",
            T(shape, "b16", "R"),
            note=f"{groups} groups",
            run=lambda a, groups=groups: ttnn.group_norm(
                a, num_groups=groups, core_grid=ttnn.CoreGrid(y=4, x=4), inplace=False
            ),
        )
    for dtype in ("b16", "f32"):
        side = (1, 4, 1, 1)
        yield call(
            "norm",
            "batch_norm",
            T((2, 4, 32, 64), dtype),
            T(side, dtype),
            T(side, dtype),
            run=lambda a, m, v: ttnn.batch_norm(a, running_mean=m, running_var=v),
        )


def sharded_norms() -> Iterator[Call]:
    for name in ("layer_norm", "rms_norm"):
        for shape, kind, grid in (
            ((1, 1, 32, 2048), "width", (8, 1)),
            ((1, 1, 32, 4096), "width", (8, 4)),
            ((1, 1, 32, 2048), "width", (8, 2)),
            ((1, 1, 256, 1024), "block", (8, 8)),
            ((1, 1, 128, 512), "block", (4, 4)),
            ((1, 1, 32, 8192), "width", (8, 4)),
        ):
            rows = shape[2] // 32 // (1 if kind == "width" else grid[1])
            columns = shape[3] // 32 // (grid[0] * (grid[1] if kind == "width" else 1))
            for dtype in ("b16", "b8", "f32"):
                x = T(shape, dtype, "T", f"{kind}@{grid[1]}x{grid[0]}")
                weights = {"none": [], "row": [T((1, 1, shape[3] // 32, 32), "b16", "R")], "residual": [x]}
                for given, tensors in weights.items():
                    for wide_sums in (False, True) if given == "row" else (False,):

                        def run(
                            a: Any,
                            *rest: Any,
                            name: str = name,
                            given: str = given,
                            grid: Any = grid,
                            rows: int = rows,
                            columns: int = columns,
                            wide_sums: bool = wide_sums,
                        ) -> Any:
                            config = ttnn.LayerNormShardedMultiCoreProgramConfig(
                                compute_with_storage_grid_size=grid,
                                subblock_w=1,
                                block_h=rows,
                                block_w=columns,
                                inplace=False,
                            )
                            more = {"row": "weight", "residual": "residual_input_tensor"}.get(given)
                            return find(name)(
                                a,
                                program_config=config,
                                compute_kernel_config=compute(wide_sums),
                                memory_config=a.memory_config(),
                                **({more: rest[0]} if more else {}),
                            )

                        yield call("sharded norm", name, x, *tensors, note=f"{given} float32 sums {wide_sums}", run=run)
