"""Layouts, lookups, orders and copies between memories."""

from __future__ import annotations

from collections.abc import Iterator

import ttnn

from buffer_calls.listed_call import (
    BATCH,
    LARGE,
    LAYOUTS,
    MIDDLE,
    ODD,
    SHAPES,
    Call,
    T,
    call,
    memory,
)


def layouts() -> Iterator[Call]:
    for shape in (*SHAPES, (1, 1, 2048, 4096), (1, 1, 64, 131072), (8, 1, 1, 4096)):
        for dtype in ("b16", "f32", "u32", "b8"):
            if dtype != "b8":
                yield call("layout", "to_layout", T(shape, dtype, "R"), layout=ttnn.TILE_LAYOUT, note="tiles")
                yield call("layout", "tilize_with_zero_padding", T(shape, dtype, "R"))
            yield call("layout", "to_layout", T(shape, dtype, "T"), layout=ttnn.ROW_MAJOR_LAYOUT, note="rows")
        if shape != ODD:
            yield call("layout", "tilize", T(shape, "b16", "R"))
            yield call("layout", "tilize", T(shape, "b16", "R"), note="to b8", dtype=ttnn.bfloat8_b)
            yield call("layout", "untilize", T(shape))
            yield call("layout", "untilize", T(shape, "b16", "T", "l1"))
            yield call("layout", "untilize", T(shape), note="one core", use_multicore=False)
    for kind in ("height", "width", "block"):
        for shape in (MIDDLE, LARGE):
            yield call("layout", "to_layout", T(shape, "b16", "R", kind), layout=ttnn.TILE_LAYOUT, note="tiles")
            yield call("layout", "tilize", T(shape, "b16", "R", kind))
            yield call("layout", "untilize", T(shape, "b16", "T", kind))
            yield call(
                "layout", "untilize", T(shape, "b16", "T", kind), note="to dram", memory_config=ttnn.DRAM_MEMORY_CONFIG
            )
            yield call("layout", "to_layout", T(shape, "b16", "T", kind), layout=ttnn.ROW_MAJOR_LAYOUT, note="rows")
    for shape, end in ((MIDDLE, (0, 0, 99, 499)), (LARGE, (0, 0, 999, 1999))):
        yield call(
            "layout",
            "untilize_with_unpadding",
            T(shape),
            note=f"{end}",
            run=lambda a, end=end: ttnn.untilize_with_unpadding(a, end),
        )
        yield call(
            "layout",
            "tilize_with_val_padding",
            T(shape, "b16", "R"),
            run=lambda a, shape=shape: ttnn.tilize_with_val_padding(a, (*shape[:2], shape[2] + 32, shape[3] + 32), 0.0),
        )


def embeddings() -> Iterator[Call]:
    for indices in ((1, 32), (1, 128), (2, 64), (1, 1024)):
        for table in ((1000, 64), (1000, 1024), (32000, 4096)):
            for layout in "TR":
                yield call(
                    "embedding",
                    "embedding",
                    T(indices, "u32", "R"),
                    T(table, "b16", "R"),
                    layout=LAYOUTS[layout],
                    note=layout,
                )
            yield call("embedding", "embedding", T(indices, "u32", "T"), T(table, "b16", "R"))
            yield call(
                "embedding",
                "embedding",
                T(indices, "u32", "R"),
                T(table, "b16", "R"),
                note="to b8",
                layout=ttnn.TILE_LAYOUT,
                dtype=ttnn.bfloat8_b,
            )


def orders() -> Iterator[Call]:
    for shape in ((1, 1, 32, 64), (1, 1, 32, 1024), (1, 1, 32, 8192), (1, 1, 64, 4096), (1, 2, 96, 256)):
        for k in (8, 32, 64):
            yield call("order", "topk", T(shape), k=k, dim=-1)
        yield call("order", "topk", T(shape, "b8"), k=32, dim=-1)
        yield call("order", "sort", T(shape), dim=-1)
        yield call("order", "sort", T(shape, "f32"), dim=-1)
        for dtype in ("b16", "f32", "i32"):
            for dim in (-1, None):
                yield call("order", "argmax", T(shape, dtype, "R"), dim=dim, note=f"{dim}")
        yield call("order", "argmax", T(shape, "b16", "T"), dim=-1)
        yield call("order", "argmax", T(shape, "b16", "R"), dim=-1, use_multicore=True)
        for dtype in ("b16", "f32"):
            yield call(
                "order",
                "gather",
                T(shape, dtype),
                T((*shape[:3], 32), "u32"),
                run=lambda a, i: ttnn.gather(a, -1, index=i),
            )
            yield call(
                "order", "gather", T(shape, dtype), T(shape, "u16"), run=lambda a, i: ttnn.gather(a, -1, index=i)
            )
            yield call(
                "order",
                "scatter",
                T(shape, dtype, "R"),
                T((*shape[:3], 32), "i32", "R"),
                T((*shape[:3], 32), dtype, "R"),
                run=lambda a, i, s: ttnn.scatter(a, -1, i, s),
            )
            yield call(
                "order",
                "scatter",
                T(shape, dtype),
                T((*shape[:3], 32), "u32"),
                T((*shape[:3], 32), dtype),
                run=lambda a, i, s: ttnn.scatter(a, -1, i, s),
            )
    yield call("order", "nonzero", T((1, 1, 1, 1024), "b16", "R"))
    yield call(
        "order",
        "sampling",
        T((1, 1, 32, 256)),
        T((1, 1, 32, 256), "i32", "R"),
        T((32,), "u32", "R"),
        T((32,), "b16", "R"),
        T((32,), "b16", "R"),
        run=lambda v, i, k, p, t: ttnn.sampling(v, i, k=k, p=p, temp=t),
    )


def copies() -> Iterator[Call]:
    kinds = ("dram", "l1", "height", "width", "block")
    for shape in (MIDDLE, LARGE, BATCH):
        for source in kinds:
            for target in kinds:
                if source != target:
                    for dtype, layout in (("b16", "T"), ("b8", "T"), ("b16", "R")):
                        yield call(
                            "copy",
                            "to_memory_config",
                            T(shape, dtype, layout, source),
                            note=f"to {target}",
                            run=lambda a, shape=shape, target=target: ttnn.to_memory_config(a, memory(target, shape)),
                        )
        for dtype, layout in (("b16", "T"), ("b8", "T"), ("b16", "R"), ("f32", "T")):
            yield call("copy", "clone", T(shape, dtype, layout))
            yield call("copy", "copy", T(shape, dtype, layout), T(shape, dtype, layout))
        yield call("copy", "clone", T(shape), note="to f32", dtype=ttnn.float32)
    for a, b in (
        ("height@1x4", "height@1x2"),
        ("height@1x4", "height@2x2"),
        ("width@1x8", "width@2x8"),
        ("block@4x4", "block@2x2"),
        ("width@1x8", "width@4x4"),
    ):
        for layout in "TR":
            yield call(
                "copy",
                "reshard",
                T(MIDDLE, "b16", layout, a),
                note=f"to {b}",
                run=lambda a, b=b: ttnn.reshard(a, memory(b, MIDDLE)),
            )
