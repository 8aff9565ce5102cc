"""Element-wise calls of one, two and three operands."""

from __future__ import annotations

from collections.abc import Iterator

import ttnn

from buffer_calls.listed_call import (
    BATCH,
    FORMATS,
    LARGE,
    MIDDLE,
    ODD,
    SHAPES,
    SQUARE,
    Call,
    T,
    call,
    find,
    memory,
)


def unary() -> Iterator[Call]:
    for name in ("relu", "exp", "gelu", "sigmoid", "tanh", "silu", "sqrt", "logit", "mish", "neg"):
        for shape in (SQUARE, ODD, LARGE):
            yield call("unary", name, T(shape))
    for name in ("relu", "abs"):
        for dtype in ("f32", "b8", "b4", "i32"):
            for kind in ("dram", "height", "block"):
                yield call("unary", name, T(MIDDLE, dtype, "T", kind))
        for shape in SHAPES:
            yield call("unary", name, T(shape, "b16", "R"))
            yield call("unary", name, T(shape, "f32", "R", "l1"))
    for name in (
        "hardshrink",
        "tanhshrink",
        "cosh",
        "identity",
        "clamp",
        "leaky_relu",
        "elu",
        "heaviside",
        "pow",
        "erfinv",
        "hardswish",
    ):
        parameters = {"clamp": (-1.0, 1.0), "leaky_relu": (0.1,), "elu": (1.0,), "heaviside": (0.5,), "pow": (2,)}.get(
            name, ()
        )
        for dtype in ("b16", "f32"):
            yield call(
                "unary",
                name,
                T(MIDDLE, dtype),
                run=lambda a, name=name, parameters=parameters: find(name)(a, *parameters),
            )
    for kind in ("height", "width", "block"):
        yield call("unary", "gelu", T(LARGE, "b16", "T", kind))
        yield call("unary", "gelu", T(MIDDLE, "b16", "T", kind), note="to dram", memory_config=ttnn.DRAM_MEMORY_CONFIG)
        yield call(
            "unary", "gelu", T(MIDDLE, "b16", "T", "dram"), note=f"to {kind}", memory_config=memory(kind, MIDDLE)
        )


def binary() -> Iterator[Call]:
    for name in (
        "add",
        "multiply",
        "subtract",
        "divide",
        "maximum",
        "pow",
        "eq",
        "logical_and",
        "squared_difference",
        "atan2",
    ):
        for a, b in (("b16", "b16"), ("f32", "f32"), ("b8", "b8"), ("b16", "b8"), ("f32", "b16"), ("i32", "i32")):
            yield call("binary", name, T(MIDDLE, a), T(MIDDLE, b))
    for name in ("add", "multiply", "gt", "pow"):
        for dtype in ("b16", "f32", "b8", "i32"):
            yield call("binary", name, T(MIDDLE, dtype), note="2", run=lambda a, name=name: find(name)(a, 2))
            for shape in ((1, 1, 1, 512), (1, 1, 128, 1), (1, 1, 1, 1)):
                yield call("binary", name, T(MIDDLE, dtype), T(shape, dtype))
    for a, b in (
        ((1, 1, 1, 512), (1, 1, 128, 1)),
        ((1, 1, 128, 1), (1, 1, 1, 512)),
        ((2, 1, 96, 256), (1, 4, 96, 256)),
        ((1, 1, 1, 1), BATCH),
    ):
        for dtype in ("b16", "b8"):
            yield call("binary", "add", T(a, dtype), T(b, dtype))
    for shape in SHAPES:
        for kind in ("l1", "height", "width", "block"):
            if kind != "width" or shape != ODD:
                yield call("binary", "add", T(shape, "b16", "T", kind), T(shape, "b16", "T", kind))
        yield call("binary", "add", T(shape, "b16", "R"), T(shape, "b16", "R"))
    for kind in ("height", "width", "block"):
        yield call("binary", "multiply", T(MIDDLE, "b16", "T", kind), T(MIDDLE))
        yield call("binary", "multiply", T(MIDDLE), T(MIDDLE, "b16", "T", kind))
        yield call("binary", "multiply", T(MIDDLE), T(MIDDLE), note=f"to {kind}", memory_config=memory(kind, MIDDLE))
        yield call(
            "binary",
            "multiply",
            T(MIDDLE, "b16", "T", kind),
            T(MIDDLE, "b16", "T", kind),
            note="to dram",
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )
        yield call("binary", "add", T(MIDDLE, "b16", "T", kind), T((1, 1, 1, 512)))
    for activation in ("silu", "relu", "gelu"):
        yield call(
            "binary",
            "multiply",
            T(MIDDLE),
            T(MIDDLE),
            input_tensor_a_activations=[getattr(ttnn.UnaryOpType, activation.upper())],
            note=f"a {activation}",
        )
        yield call(
            "binary",
            "add",
            T(MIDDLE),
            T(MIDDLE),
            activations=[getattr(ttnn.UnaryOpType, activation.upper())],
            note=activation,
        )
    yield call(
        "binary",
        "multiply",
        T(MIDDLE, "b8"),
        T(MIDDLE, "b8"),
        input_tensor_a_activations=[ttnn.UnaryOpType.SILU],
        dtype=ttnn.bfloat8_b,
        note="a silu",
    )
    for name in (
        "bitwise_and",
        "bitwise_or",
        "remainder",
        "fmod",
        "logaddexp",
        "hypot",
        "rsub",
        "xlogy",
        "minimum",
        "ldexp",
        "gcd",
    ):
        yield call(
            "binary",
            name,
            T(MIDDLE, "i32" if "bit" in name or name == "gcd" else "b16"),
            T(MIDDLE, "i32" if "bit" in name or name == "gcd" else "b16"),
        )


def ternary() -> Iterator[Call]:
    for shape in (SQUARE, MIDDLE, LARGE):
        for dtype in ("b16", "f32", "b8"):
            yield call("ternary", "where", T(shape, dtype), T(shape, dtype), T(shape, dtype))
            yield call("ternary", "addcmul", T(shape, dtype), T(shape, dtype), T(shape, dtype))
    one, row, column = (1, 1, 1, 1), (1, 1, 1, 512), (1, 1, 128, 1)
    for shapes in (
        (MIDDLE, row, MIDDLE),
        (MIDDLE, column, MIDDLE),
        (MIDDLE, MIDDLE, row),
        (column, MIDDLE, MIDDLE),
        (MIDDLE, one, MIDDLE),
        (MIDDLE, row, row),
        (MIDDLE, column, one),
        ((1, 1, 128, 512), (2, 1, 128, 512), (2, 1, 128, 512)),
    ):
        yield call("ternary", "where", *(T(shape) for shape in shapes))
        yield call("ternary", "addcmul", *(T(shape) for shape in shapes))
    for dtype in ("b16", "f32"):
        yield call(
            "ternary",
            "where",
            T(MIDDLE, dtype),
            T(MIDDLE, dtype),
            note="x, 1.0",
            run=lambda c, x: ttnn.where(c, x, 1.0),
        )
        yield call(
            "ternary",
            "where",
            T(MIDDLE, dtype),
            T(MIDDLE, dtype),
            note="1.0, x",
            run=lambda c, x: ttnn.where(c, 1.0, x),
        )
        yield call("ternary", "where", T(MIDDLE, dtype), note="1.0, 2.0", run=lambda c: ttnn.where(c, 1.0, 2.0))
        yield call(
            "ternary", "lerp", T(MIDDLE, dtype), T(MIDDLE, dtype), note="0.5", run=lambda a, b: ttnn.lerp(a, b, 0.5)
        )
        yield call("ternary", "lerp", *[T(MIDDLE, dtype)] * 3)
        yield call("ternary", "addcdiv", *[T(MIDDLE, dtype)] * 3)
        yield call("ternary", "mac", *[T(MIDDLE, dtype)] * 3)
    for kind in ("height", "block"):
        yield call("ternary", "where", *[T(MIDDLE, "b16", "T", kind)] * 3)
    yield call("ternary", "clamp", *[T(MIDDLE)] * 3)


def casts() -> Iterator[Call]:
    for shape in (MIDDLE, ODD, LARGE):
        for a, b in (
            ("b16", "f32"),
            ("b16", "b8"),
            ("f32", "b16"),
            ("b8", "b16"),
            ("b16", "u32"),
            ("u32", "b16"),
            ("i32", "f32"),
            ("b16", "b4"),
            ("u16", "u32"),
            ("f32", "i32"),
        ):
            yield call("typecast", "typecast", T(shape, a), note=b, run=lambda a, b=b: ttnn.typecast(a, FORMATS[b]))
        yield call(
            "typecast", "typecast", T(shape, "b16", "R"), note="f32", run=lambda a: ttnn.typecast(a, ttnn.float32)
        )
        yield call("typecast", "typecast", T(shape, "u32", "R"), note="i32", run=lambda a: ttnn.typecast(a, ttnn.int32))
    for kind in ("height", "width", "block"):
        yield call(
            "typecast",
            "typecast",
            T(MIDDLE, "b16", "T", kind),
            note="b8",
            run=lambda a: ttnn.typecast(a, ttnn.bfloat8_b),
        )
