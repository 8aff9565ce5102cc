"""Calls of element-wise operations, their gradients, complex numbers and creation."""

from __future__ import annotations

from calls import Call, Draw, Operand, names, operation

UNARY = names(
    """abs acos acosh asin asinh atan atanh bitwise_not cbrt ceil cos cosh deg2rad digamma eqz erfc erfinv exp2 expm1
    floor frac gez gtz hardmish hardsigmoid hardswish i0 i1 identity isfinite isinf isnan isneginf isposinf lez
    lgamma log log10 log1p log2 log_sigmoid logical_not ltz neg nez rad2deg reciprocal relu relu6 sign signbit silu
    sin sinh softsign square swish tan tanhshrink trunc alt_complex_rotate90"""
)
FAST = names("erf exp gelu mish rsqrt sqrt tanh sigmoid_accurate")
WITH_KEYWORDS = {
    "celu": {"alpha": "0.5"}, "elu": {"alpha": "0.5"}, "hardshrink": {"lambd": "0.3"}, "softshrink": {"lambd": "0.3"},
    "hardtanh": {"min_val": "-2.0", "max_val": "2.0"}, "selu": {"scale": "1.1"}, "softplus": {"beta": "2.0"},
    "round": {"decimals": "2"}, "logit": {"eps": "0.1"}, "xielu": {"alpha_p": "0.7"}, "sigmoid": {"vector_mode": "4"},
}  # fmt: skip
WITH_NUMBER = {
    "heaviside": 0.5, "leaky_relu": 0.1, "relu_max": 2.0, "relu_min": 0.5, "rpow": 2.0, "softcap": 5.0, "fill": 2.0,
    "rdiv": 2.0, "bernoulli": 5, "polygamma": 2,
}  # fmt: skip
PLAIN = names("normalize_global normalize_hw var_hw std_hw multigammaln move clone composite_example")


def output(draw: Draw, like: Operand, operands: dict[str, Operand], key: str = "output_tensor") -> dict[str, str]:
    """A tensor for the result, now and then of another format."""
    if not draw.chance(0.15):
        return {}
    dtype = like.dtype if draw.chance(0.8) else draw.dtype()
    operands["o"] = Operand(like.shape, dtype, like.layout if dtype not in ("bf8", "bf4") else "TILE", like.memory)
    return {key: "o"}


@operation(*UNARY, *FAST, *WITH_KEYWORDS)
def unary(draw: Draw) -> Call:
    operands = {"x": draw.operand()}
    options = WITH_KEYWORDS.get(draw.name, {})
    keywords = {key: value for key, value in options.items() if draw.chance(0.5)}
    if draw.name in FAST and draw.chance(0.25):
        keywords["fast_and_approximate_mode"] = "True"
    out = output(draw, operands["x"], operands)
    return draw.call(operands, "x", **keywords, **draw.placed(0.25), **out)


@operation(*WITH_NUMBER)
def unary_number(draw: Draw) -> Call:
    return draw.call({"x": draw.operand()}, "x", WITH_NUMBER[draw.name], **draw.placed(0.25))


@operation(*PLAIN)
def unary_plain(draw: Draw) -> Call:
    keywords = {} if draw.name == "composite_example" else draw.placed(0.2)
    return draw.call({"x": draw.operand()}, "x", **keywords)


@operation(
    "clamp",
    "clip",
    "threshold",
    "prelu",
    "polyval",
    "unary_chain",
    "typecast",
    "experimental.typecast",
    "bitcast",
    "experimental.dropout",
    "uniform",
    "mac",
    "glu",
    "reglu",
    "geglu",
    "swiglu",
    "tril",
    "triu",
    "to_dtype",
)
def unary_arguments(draw: Draw) -> Call:
    name, operands = draw.name, {"x": draw.operand()}
    keywords = draw.placed(0.2) if name not in ("to_dtype",) else {}
    if name in ("clamp", "clip"):
        if draw.chance(0.25):
            shape = operands["x"].shape if draw.chance(0.7) else (1,) * len(operands["x"].shape)
            operands["y"] = Operand(shape, operands["x"].dtype, operands["x"].layout)
            return draw.call(operands, "x", "y", "y", **keywords)
        limits = draw.pick(("-1.0", "1.0"), ("None", "2.0"), ("0.5",), ("min=-1.0",), ("max=0.5",), ("-1", "1"))
        return draw.call(operands, "x", *limits, **keywords)
    if name in ("glu", "reglu", "geglu", "swiglu"):
        if draw.chance(0.8):
            operands["x"].shape = (*draw.shape(3, 3)[:1], *draw.shape(3, 3)[:2], draw.size(64, 128, 128, 192, 34))
        return draw.call(operands, "x", draw.pick("-1", "-1", "-1", "3", "2"), **keywords)
    if name in ("tril", "triu"):
        return draw.call(operands, "x", diagonal=draw.pick(None, 1, -2), **keywords)
    if name == "mac":
        operands["y"] = Operand(operands["x"].shape, operands["x"].dtype, operands["x"].layout)
        return draw.call(operands, "x", *draw.pick(("y", "y"), ("2.0", "y"), ("y", "0.5"), ("2.0", "0.5")), **keywords)
    if name == "to_dtype":
        return draw.call({"x": Operand(operands["x"].shape, layout="host")}, "x", _format(draw))
    formats = (_format(draw),)
    chain = "[ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU), ttnn.UnaryWithParam(ttnn.UnaryOpType.EXP)]"
    arguments = {
        "threshold": (0.5, 1.0), "prelu": (0.25,), "polyval": ("[1.0, 2.0, 3.0]",), "unary_chain": (chain,),
        "typecast": formats, "experimental.typecast": formats, "bitcast": formats,
        "experimental.dropout": (0.2, 1.25, 7), "uniform": (-1.0, 1.0),
    }[name]  # fmt: skip
    if name == "experimental.dropout":
        keywords.pop("memory_config", None)
    return draw.call(operands, "x", *arguments, **keywords)


def _format(draw: Draw) -> str:
    return f"DT[{draw.dtype('bf16', 'f32', 'bf8', 'bf4', 'u32', 'i32', 'u16', 'u8')!r}]"


BINARY = names(
    """add subtract multiply eq ne lt le gt ge logical_and logical_or logical_xor maximum minimum squared_difference
    ldexp logaddexp logaddexp2 xlogy rsub bias_gelu gcd lcm hypot"""
)
IN_PLACE = names(
    """add_ subtract_ multiply_ divide_ eq_ ne_ lt_ le_ gt_ ge_ logical_and_ logical_or_ logical_xor_
    squared_difference_ ldexp_ logaddexp_ logaddexp2_ rsub_ bias_gelu_"""
)
BITS = names(
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift logical_left_shift logical_right_shift"
)
DIVISIONS = names("div divide div_no_nan floor_div fmod remainder pow atan2 nextafter isclose outer")


def second(draw: Draw, first: Operand) -> Operand:
    """A tensor that mostly broadcasts with the first."""
    shape = list(first.shape)
    kind = draw.random.random()
    if kind > 0.6:
        for i in range(len(shape)):
            if draw.chance(0.4):
                shape[i] = 1
    elif kind > 0.55:
        shape = shape[1:] or shape
    dtype = first.dtype if draw.chance(0.75) else draw.dtype()
    layout = first.layout if draw.chance(0.85) and dtype not in ("bf8", "bf4") else draw.layout(dtype, 0.05)
    memory = first.memory if draw.chance(0.5) and tuple(shape) == first.shape else draw.memory(0.15)
    return Operand(tuple(shape), dtype, layout, memory)


@operation(*BINARY, *BITS, *DIVISIONS)
def binary(draw: Draw) -> Call:
    name = draw.name
    operands = {"x": draw.operand(dtype=draw.dtype("i32", "i32", "u32", "u16", "bf16") if name in BITS else None)}
    if name == "outer":
        operands = {"x": draw.plain((1, 1, 1, draw.size(32, 64, 96))), "y": draw.plain((1, 1, 1, draw.size(32, 64)))}
        if draw.chance(0.8):
            operands["y"].dtype = operands["x"].dtype
        return draw.call(operands, "x", "y", **draw.placed(0.2))
    if draw.chance(0.3) and name not in ("hypot", "gcd", "lcm", "atan2", "nextafter", "isclose", "xlogy", "ldexp"):
        other = draw.pick("2", "0.5", "-1.0") if name not in BITS else "3"
    else:
        operands["y"], other = second(draw, operands["x"]), "y"
    keywords = dict(draw.placed(0.2))
    if name in ("div", "divide") and draw.chance(0.3):
        keywords["rounding_mode"] = str(draw.pick("'trunc'", "'floor'"))
    if name in BINARY and draw.chance(0.15) and name not in ("gcd", "lcm"):
        keywords["dtype"] = _format(draw)
    if name in BINARY and other == "y" and operands["y"].shape == operands["x"].shape:
        keywords.update(output(draw, operands["x"], operands))
    if name in ("add", "multiply", "subtract") and draw.chance(0.1):
        keywords["activations"] = "[ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)]"
    return draw.call(operands, "x", other, **keywords)


@operation(*IN_PLACE)
def in_place(draw: Draw) -> Call:
    operands = {"x": draw.operand()}
    if draw.chance(0.3) and draw.name != "ldexp_":
        return draw.call(operands, "x", 2.0)
    operands["y"] = second(draw, operands["x"])
    return draw.call(operands, "x", "y")


@operation("logical_not_", "softmax_in_place", "plus_one")
def in_place_unary(draw: Draw) -> Call:
    if draw.name == "plus_one":
        operand = Operand(draw.shape(1, 4), draw.dtype("i32", "u32"), "RM")
    else:
        operand = draw.operand()
    return draw.call({"x": operand}, "x")


@operation(
    "addalpha", "subalpha", "addcmul", "addcdiv", "lerp", "where", "situ_glu", "clamped_silu_glu", "snake_beta", "bcast"
)
def several(draw: Draw) -> Call:
    name, x = draw.name, draw.operand()
    operands = {"x": x, "y": second(draw, x)}
    keywords = draw.placed(0.2)
    if name in ("addalpha", "subalpha"):
        return draw.call(operands, "x", "y", 0.5, **keywords)
    if name == "situ_glu":
        return draw.call(operands, "x", "y", 1.0, 2.0, **keywords)
    if name == "clamped_silu_glu":
        return draw.call(operands, "x", "y", 7.0, **keywords)
    if name == "bcast":
        dim, ends = draw.pick(("H", (1, x.shape[-1])), ("W", (x.shape[-2:-1] or (1,)) + (1,)), ("HW", (1, 1)))
        operands["y"] = Operand(x.shape[:-2] + tuple(ends), x.dtype, "TILE")
        math = draw.pick("ADD", "SUB", "MUL")
        return draw.call(operands, "x", "y", f"ttnn.BcastOpMath.{math}", f"ttnn.BcastOpDim.{dim}", **keywords)
    if name == "snake_beta":
        rank = len(x.shape)
        parameter = Operand((1,) * (rank - 1) + x.shape[-1:], x.dtype, x.layout)
        return draw.call({"x": x, "a": parameter, "b": parameter}, "x", "a", "b", **keywords)
    operands["z"] = second(draw, x)
    if name == "where":
        choice = draw.pick(("y", "z"), ("y", "z"), ("y", "0.5"), ("2.0", "z"), ("1.0", "0.0"))
        return draw.call(operands, "x", *choice, **keywords)
    if name == "lerp":
        return draw.call(operands, "x", "y", draw.pick("z", "0.25"), **keywords)
    return draw.call(operands, "x", "y", "z", value=draw.pick(None, 0.5), **keywords)


@operation("quantize", "dequantize", "requantize")
def quantised(draw: Draw) -> Call:
    whole = draw.name != "quantize"
    x = draw.operand(
        dtype=draw.dtype(*(("i32",) * 6 + ("bf16",) if whole else ("f32",) * 4 + ("bf16",) * 3 + ("bf8",)))
    )
    operands = {"x": x}
    if draw.chance(0.25) and draw.name != "requantize":
        operands["s"] = draw.plain((x.shape[-1],), "f32", "DRAM")
        return draw.call(operands, "x", "s", 0, axis=-1)
    arguments = (0.25, 3, 0.5, -2) if draw.name == "requantize" else (0.02, 3)
    return draw.call(operands, "x", *arguments, **draw.placed(0.2))


GRADIENTS = names(
    """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor fill
    frac fill_zero hardsigmoid hardswish i0 lgamma log log10 log1p log2 log_sigmoid logit multigammaln neg rad2deg
    reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinh softsign sqrt square tan tanh tanhshrink trunc
    gelu"""
)
GRADIENT_KEYWORDS = {
    "celu": ("alpha", 0.5), "elu": ("alpha", 0.5), "hardshrink": ("lambd", 0.3), "softshrink": ("lambd", 0.3),
    "hardtanh": ("min", -2.0), "leaky_relu": ("negative_slope", 0.2), "logiteps": ("eps", 0.1), "softplus": ("beta", 2.0),
    "clamp": ("min", -1.0), "clip": ("max", 1.0),
}  # fmt: skip
GRADIENT_NUMBERS = {
    "div_no_nan": "2.0", "fmod": "2.0", "pow": "2.0", "rdiv": "2.0", "remainder": "2.0", "rpow": "2.0", "polygamma": "2",
    "threshold": "0.5, 1.0",
}  # fmt: skip
GRADIENT_PAIRS = names(
    """add sub mul div atan2 hypot ldexp logaddexp logaddexp2 max min rsub squared_difference xlogy addalpha subalpha
    assign bias_gelu concat"""
)


def gradient(draw: Draw) -> tuple[Operand, Operand]:
    """A tensor and the gradient of what comes of it."""
    x = draw.operand(rows=0.05, sharded=0.15)
    return x, Operand(x.shape, x.dtype if draw.chance(0.9) else draw.dtype("bf16", "f32"), x.layout, x.memory)


@operation(*(f"{name}_bw" for name in (*GRADIENTS, *GRADIENT_KEYWORDS, *GRADIENT_NUMBERS)))
def backward(draw: Draw) -> Call:
    x, grad = gradient(draw)
    name = draw.name.removesuffix("_bw")
    arguments = [GRADIENT_NUMBERS[name]] if name in GRADIENT_NUMBERS else []
    key, value = GRADIENT_KEYWORDS.get(name, ("", None))
    keywords = {key: value} if key and draw.chance(0.5) else {}
    if name == "gelu" and draw.chance(0.3):
        keywords["approximate"] = "'tanh'"
    return draw.call({"g": grad, "x": x}, "g", "x", *arguments, **keywords, **draw.placed(0.25))


@operation(*(f"{name}_bw" for name in GRADIENT_PAIRS))
def backward_pair(draw: Draw) -> Call:
    x, grad = gradient(draw)
    name = draw.name.removesuffix("_bw")
    operands = {"g": grad, "x": x, "y": Operand(x.shape, x.dtype, x.layout, x.memory)}
    if name == "concat":
        shape = (x.shape[0] * 2, *x.shape[1:])
        operands["g"] = Operand(shape, x.dtype, x.layout, x.memory)
        return draw.call(operands, "g", "x", "y", draw.pick(0, 0, -1), **draw.placed(0.2))
    scalar = name in ("add", "sub", "mul", "div", "rsub", "assign", "bias_gelu") and draw.chance(0.4)
    arguments = ["2.0"] if scalar and name != "assign" else [] if scalar else ["y"]
    if name in ("addalpha", "subalpha") and draw.chance(0.5):
        arguments.append("0.5")
    keywords = draw.placed(0.2)
    if name == "div" and draw.chance(0.3):
        keywords["rounding_mode"] = "'trunc'"
    return draw.call(operands, "g", "x", *arguments, **keywords)


@operation("addcmul_bw", "addcdiv_bw", "lerp_bw", "where_bw", "prod_bw", "repeat_bw", "embedding_bw")
def backward_several(draw: Draw) -> Call:
    x, grad = gradient(draw)
    like = Operand(x.shape, x.dtype, x.layout, x.memory)
    operands = {"g": grad, "x": x, "y": like, "z": like}
    name, keywords = draw.name, draw.placed(0.2)
    if name in ("addcmul_bw", "addcdiv_bw"):
        return draw.call(operands, "g", "x", "y", "z", 0.5, **keywords)
    if name == "lerp_bw":
        return draw.call(operands, "g", "x", "y", draw.pick("z", "0.25"), **keywords)
    if name == "where_bw":
        return draw.call(operands, "g", "x", "y", "z", **keywords)
    if name == "embedding_bw":
        batch, width = draw.size(1, 2), draw.size(64, 96, 128)
        tensors = {
            "i": draw.rows((batch, 64), "u32"),
            "w": draw.plain((64, width)),
            "g": draw.plain((1, 1, batch * 64, width)),
        }
        return draw.call(tensors, "i", "w", "g", **keywords)
    shape = draw.shape(4, 4)
    if name == "prod_bw":
        dim = draw.pick(None, 0, 1, 2, 3, -1)
        reduced = (1, 1, 1, 1) if dim is None else tuple(1 if i == dim % 4 else n for i, n in enumerate(shape))
        return draw.call({"g": draw.plain(reduced), "x": draw.plain(shape)}, "g", "x", dim=dim, **keywords)
    repeats = (draw.size(1, 2), 1, 1, 1) if draw.chance(0.7) else (1, 2, 1, 1)
    shape = (1, *shape[1:])
    repeated = tuple(a * b for a, b in zip(shape, repeats, strict=True))
    dtype = draw.dtype("bf16", "bf16", "f32")
    return draw.call({"g": draw.plain(repeated, dtype), "x": draw.plain(shape, dtype)}, "g", "x", repeats, **keywords)


@operation(
    "complex_tensor",
    "real",
    "imag",
    "angle",
    "conj",
    "is_real",
    "is_imag",
    "polar",
    "real_bw",
    "imag_bw",
    "angle_bw",
    "conj_bw",
    "polar_bw",
)
def complex_numbers(draw: Draw) -> Call:
    x = draw.operand(draw.shape(4, 4), draw.dtype("bf16", "bf16", "f32"), rows=0.05, sharded=0.1)
    operands = {"x": x, "y": Operand(x.shape, x.dtype, x.layout, x.memory)}
    if draw.name == "complex_tensor":
        return draw.call(operands, "x", "y")
    before = "z=ttnn.complex_tensor(x, y)"
    memory = str(draw.pick("DRAM", "L1"))
    if draw.name in ("real_bw", "imag_bw", "angle_bw"):
        operands["g"] = Operand(x.shape, x.dtype, x.layout, x.memory)
        call = draw.call(operands, "g", "z", memory_config=memory)
    elif draw.name.endswith("_bw"):
        call = draw.call(operands, "z", "z", memory_config=memory)
    else:
        call = draw.call(operands, "z", memory_config=memory)
    call.before = before
    return call


@operation(
    "full",
    "zeros",
    "ones",
    "empty",
    "rand",
    "randn",
    "arange",
    "moreh_full",
    "moreh_arange",
    "manual_seed",
    "allocate_tensor_on_device",
)
def creation(draw: Draw) -> Call:
    shape, name = draw.shape(), draw.name
    dtype = f"DT[{draw.dtype('bf16', 'bf16', 'f32', 'bf8', 'i32', 'u32', 'u16')!r}]"
    layout = draw.pick("TILE", "TILE", "RM")
    if name == "manual_seed":
        return draw.call({}, draw.size(1, 7), device="dev")
    if name == "arange":
        start = draw.size(0, 3)
        return draw.call(
            {}, start, start + draw.size(20, 64, 100), draw.size(1, 2), dtype=dtype, device="dev", **draw.placed()
        )
    if name == "moreh_arange":
        return draw.call({}, draw.size(0, 3), draw.size(20, 64, 100), draw.size(1, 2), "dev", dtype=dtype)
    if name == "allocate_tensor_on_device":
        return draw.call({}, f"ttnn.Shape({list(shape)})", dtype, layout, "dev", draw.pick("DRAM", "L1"))
    if name == "moreh_full":
        return draw.call({}, shape, 2.5, "dev", dtype=dtype, layout=layout)
    arguments = [shape, 1.5] if name == "full" else [shape]
    if name in ("rand", "randn"):
        return draw.call({}, *arguments, "dev", dtype=dtype, layout=layout, **draw.placed())
    return draw.call({}, *arguments, dtype=dtype, layout=layout, device="dev", **draw.placed())


@operation("full_like", "zeros_like", "ones_like", "empty_like", "moreh_full_like")
def creation_like(draw: Draw) -> Call:
    arguments = [1.5] if "full" in draw.name else []
    dtype = _format(draw) if draw.chance(0.3) else None
    return draw.call({"x": draw.operand()}, "x", *arguments, dtype=dtype, **draw.placed(0.3))
