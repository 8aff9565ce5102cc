"""Calls that move values."""

from __future__ import annotations

from collections.abc import Iterator

import ttnn

from buffer_calls.listed_call import (
    BATCH,
    LARGE,
    MIDDLE,
    ODD,
    Call,
    T,
    call,
    memory,
)


def transposes() -> Iterator[Call]:
    for shape in (MIDDLE, BATCH, ODD, LARGE):
        for order in ((0, 1, 3, 2), (0, 2, 1, 3), (1, 0, 2, 3), (2, 0, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0), (0, 2, 3, 1)):
            for dtype, layout in (("b16", "T"), ("f32", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R")):
                yield call("transpose", "permute", T(shape, dtype, layout), dims=order)
    for shape, order in (
        ((2, 3, 4, 32, 64), (0, 2, 1, 3, 4)),
        ((2, 3, 4, 32, 64), (0, 1, 2, 4, 3)),
        ((1, 2, 2, 2, 32, 64), (0, 1, 3, 2, 4, 5)),
        ((1, 2, 2, 2, 32, 64), (0, 4, 1, 3, 2, 5)),
        ((64, 96), (1, 0)),
        ((4, 64, 96), (1, 0, 2)),
        ((4, 64, 96), (2, 0, 1)),
    ):
        for dtype, layout in (("b16", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R")):
            yield call("transpose", "permute", T(shape, dtype, layout), dims=order)
    for shape in (MIDDLE, BATCH, ODD):
        for first, second in ((-1, -2), (1, 2), (0, 1), (0, 2), (1, 3)):
            for dtype, layout in (("b16", "T"), ("f32", "T"), ("b16", "R")):
                yield call(
                    "transpose",
                    "transpose",
                    T(shape, dtype, layout),
                    dim1=first,
                    dim2=second,
                    note=f"{first} {second}",
                    run=lambda a, first=first, second=second: ttnn.transpose(a, first, second),
                )
    for kind in ("height", "block"):
        yield call("transpose", "transpose", T(BATCH, "b16", "T", kind), run=lambda a: ttnn.transpose(a, -1, -2))


def slices() -> Iterator[Call]:
    for shape in (MIDDLE, BATCH, LARGE, ODD):
        for dtype, layout in (("b16", "T"), ("f32", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R"), ("u32", "R")):
            halves = [max(size // 2 // 32 * 32, 1) if i > 1 else size for i, size in enumerate(shape)]
            yield call(
                "slice",
                "slice",
                T(shape, dtype, layout),
                starts=[0] * 4,
                ends=halves,
                note=f"{halves}",
                run=lambda a, halves=halves: ttnn.slice(a, [0] * 4, halves),
            )
            yield call(
                "slice",
                "slice",
                T(shape, dtype, layout),
                note="first rows",
                run=lambda a, shape=shape: ttnn.slice(a, [0] * 4, [*shape[:2], 32, shape[3]]),
            )
            yield call(
                "slice",
                "slice",
                T(shape, dtype, layout),
                note="odd",
                run=lambda a, shape=shape: ttnn.slice(a, [0] * 4, [*shape[:2], 20, 24]),
            )
            yield call(
                "slice",
                "slice",
                T(shape, dtype, layout),
                note="step 2",
                run=lambda a, shape=shape: ttnn.slice(a, [0] * 4, shape, [1, 1, 2, 1]),
            )
        yield call(
            "slice", "split", T(shape), run=lambda a, shape=shape: ttnn.split(a, max(shape[-1] // 2 // 32 * 32, 32), -1)
        )
        yield call("slice", "chunk", T(shape, "b16", "R"), run=lambda a: ttnn.chunk(a, 2, 2))


def joins() -> Iterator[Call]:
    for shape in (MIDDLE, BATCH, ODD):
        for dim in (0, 1, 2, 3):
            for dtype, layout in (("b16", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R")):
                yield call("concat", "concat", [T(shape, dtype, layout)] * 2, dim=dim)
        yield call("concat", "concat", [T(shape)] * 5, dim=-2 if shape != ODD else 1)
    for kind in ("height", "width", "block"):
        for layout in "TR":
            for dim in (2, 3):
                yield call(
                    "concat",
                    "concat",
                    [T(MIDDLE, "b16", layout, kind)] * 2,
                    dim=dim,
                    note="to dram",
                    memory_config=ttnn.DRAM_MEMORY_CONFIG,
                )
    yield call(
        "concat",
        "concat",
        [T(MIDDLE, "b16", "R", "height")] * 2,
        dim=3,
        note="to height",
        memory_config=memory("height", (1, 1, 128, 1024)),
    )
    for repeats in ((1, 1, 1, 2), (1, 1, 2, 1), (2, 1, 1, 1), (1, 4, 1, 1)):
        for dtype, layout in (("b16", "T"), ("b16", "R"), ("b8", "T")):
            yield call(
                "concat",
                "repeat",
                T(MIDDLE, dtype, layout),
                note=f"{repeats}",
                run=lambda a, repeats=repeats: ttnn.repeat(a, repeats),
            )
    for dim in (0, 1, 2, 3):
        yield call(
            "concat",
            "repeat_interleave",
            T(MIDDLE),
            note=f"{dim}",
            run=lambda a, dim=dim: ttnn.repeat_interleave(a, 2, dim),
        )
    yield call("concat", "stack", [T(MIDDLE)] * 2, dim=0)
    yield call("concat", "expand", T((1, 1, 1, 512)), run=lambda a: ttnn.expand(a, (1, 1, 128, 512)))


def pads() -> Iterator[Call]:
    for shape in (MIDDLE, BATCH, ODD, LARGE):
        for dtype, layout in (("b16", "T"), ("f32", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R"), ("u32", "R")):
            for padding in (
                ((0, 0), (0, 0), (0, 32), (0, 64)),
                ((0, 1), (0, 1), (0, 0), (0, 0)),
                ((0, 0), (0, 0), (0, 5), (0, 7)),
                ((0, 0), (0, 0), (0, 10), (0, 0)),
            ):
                yield call(
                    "pad",
                    "pad",
                    T(shape, dtype, layout),
                    note=f"{padding}",
                    run=lambda a, padding=padding: ttnn.pad(a, padding, 0.0),
                )
    yield call(
        "pad",
        "pad",
        T((1, 1, 128, 64), "b16", "R", "height"),
        note="height",
        run=lambda a: ttnn.pad(a, ((0, 0), (0, 0), (0, 128), (0, 0)), 0.0),
    )


def reshapes() -> Iterator[Call]:
    for shape, targets in (
        (
            MIDDLE,
            ((1, 1, 512, 128), (1, 4, 32, 512), (1, 1, 1, 65536), (128, 8, 64), (1, 128, 1, 512), (1, 1, 256, 256)),
        ),
        (BATCH, ((1, 8, 96, 256), (2, 96, 4, 256), (1, 1, 768, 256), (2, 4, 48, 512), (2, 1024, 96))),
        (ODD, ((1, 1, 150, 70), (3, 3500), (1, 3, 70, 50), (1, 1, 50, 210))),
    ):
        for target in targets:
            for dtype, layout in (("b16", "T"), ("f32", "T"), ("b8", "T"), ("b16", "R"), ("f32", "R"), ("u32", "T")):
                yield call(
                    "reshape",
                    "reshape",
                    T(shape, dtype, layout),
                    note=f"{target}",
                    run=lambda a, target=target: ttnn.reshape(a, target),
                )
