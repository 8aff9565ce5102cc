"""Calls of moreh's operations."""

from __future__ import annotations

from calls import Call, Draw, Operand, operation


@operation(
    "moreh_sum",
    "moreh_mean",
    "moreh_norm",
    "moreh_cumsum",
    "moreh_cumsum_backward",
    "moreh_abs_pow",
    "moreh_softmax",
    "moreh_softmin",
    "moreh_logsoftmax",
    "moreh_sum_backward",
    "moreh_mean_backward",
    "moreh_norm_backward",
    "moreh_softmax_backward",
    "moreh_softmin_backward",
    "moreh_logsoftmax_backward",
    "moreh_clip_grad_norm",
)
def reduced(draw: Draw) -> Call:
    name = draw.name
    x = draw.operand(draw.shape(2, 5), draw.dtype("bf16", "bf16", "bf16", "f32", "i32"), rows=0.03, sharded=0.05)
    rank, placed = len(x.shape), draw.placed(0.15)
    dim = draw.random.randrange(rank)
    kept = tuple(1 if i == dim else n for i, n in enumerate(x.shape))
    like = Operand(x.shape, x.dtype, x.layout, x.memory)
    small = Operand(kept, x.dtype, x.layout)
    keep = str(draw.chance(0.7))
    grad = small if keep == "True" else Operand(x.shape[:dim] + x.shape[dim + 1 :], x.dtype, x.layout)
    if name in ("moreh_sum", "moreh_mean", "moreh_norm"):
        order = [2.0] if name == "moreh_norm" else []
        which = draw.pick(dim, dim, [0, 1], None)
        return draw.call({"x": x}, "x", *order, dim=which, keepdim=draw.pick(None, "True"), **placed)
    if name.startswith("moreh_cumsum"):
        return draw.call({"x": x}, "x", draw.pick(dim, 0, 1), **placed)
    if name == "moreh_abs_pow":
        return draw.call({"x": x}, "x", 2.5, **placed)
    if name == "moreh_clip_grad_norm":
        return draw.call({"x": x, "y": Operand((64, 32), x.dtype)}, "[x, y]", 1.0)
    if name == "moreh_sum_backward":
        return draw.call({"g": grad, "x": x}, "g", input="x", dim=dim, keepdim=keep, **placed)
    if name == "moreh_mean_backward":
        return draw.call({"g": grad}, "g", dim=dim, keepdim=keep, input_grad_shape=list(x.shape), **placed)
    if name == "moreh_norm_backward":
        return draw.call({"x": x, "o": grad, "g": grad}, "x", "o", "g", 2.0, dim=dim, keepdim=keep, **placed)
    if name.endswith("backward"):
        return draw.call({"y": x, "g": like}, "y", "g", dim, **placed)
    return draw.call({"x": x}, "x", dim, **placed)


@operation(
    "moreh_bmm",
    "moreh_bmm_backward",
    "moreh_matmul",
    "moreh_matmul_backward",
    "moreh_dot",
    "moreh_dot_backward",
    "moreh_linear",
    "moreh_linear_backward",
)
def products(draw: Draw) -> Call:
    name, dtype = draw.name, draw.dtype("bf16", "bf16", "bf16", "f32")
    batch, m, k, n = draw.size(1, 2, 3), draw.size(32, 33, 64), draw.size(32, 40, 64), draw.size(32, 50, 64)

    def made(*shape: int) -> Operand:
        return draw.plain(shape, dtype)

    if name == "moreh_bmm":
        return draw.call({"x": made(batch, m, k), "y": made(batch, k, n)}, "x", "y", **draw.placed(0.1))
    if name == "moreh_bmm_backward":
        operands = {"g": made(batch, m, n), "x": made(batch, m, k), "y": made(batch, k, n)}
        given = {"input_grad": "a", "mat2_grad": "b"} if draw.chance(0.4) else {}
        return draw.call(
            operands | ({"a": made(batch, m, k), "b": made(batch, k, n)} if given else {}), "g", "x", "y", **given
        )
    if name == "moreh_matmul":
        operands, keywords = {"x": made(batch, m, k), "y": made(k, n)}, {}
        if draw.chance(0.3):
            operands["b"], keywords["bias"] = made(1, n), "b"
        if draw.chance(0.3):
            operands["y"], keywords["transpose_other"] = made(n, k), "True"
        return draw.call(operands, "x", "y", **keywords, **draw.placed(0.1))
    if name == "moreh_matmul_backward":
        operands = {"g": made(batch, 3, m, n), "x": made(batch, 1, m, k), "y": made(3, k, n)}
        given = {"input_a_grad": "a", "input_b_grad": "b"} if draw.chance(0.7) else {}
        return draw.call(
            operands | ({"a": made(batch, 1, m, k), "b": made(3, k, n)} if given else {}), "g", "x", "y", **given
        )
    if name == "moreh_dot":
        return draw.call({"x": made(1, 1, 1, k), "y": made(1, 1, 1, k)}, "x", "y", **draw.placed(0.1))
    if name == "moreh_dot_backward":
        given = {"input_grad": "a", "other_grad": "a"} if draw.chance(0.5) else {}
        operands = {"g": made(1, 1, 1, 1), "x": made(1, 1, 1, k)} | ({"a": made(1, 1, 1, k)} if given else {})
        return draw.call(operands, "g", "x", "x", **given)
    operands = {"x": made(batch, m, k), "w": made(n, k)}
    if name == "moreh_linear":
        keywords = {}
        if draw.chance(0.5):
            operands["b"], keywords["bias"] = made(1, n), "b"
        return draw.call(operands, "x", "w", **keywords, **draw.placed(0.1))
    operands = {
        "g": made(batch, m, n),
        **operands,
        "b": made(1, n),
        "xg": made(batch, m, k),
        "wg": made(n, k),
        "bg": made(1, n),
    }
    given = draw.pick(
        {"bias": "b", "input_grad": "xg", "weight_grad": "wg", "bias_grad": "bg"},
        {"are_required_outputs": "(True, False, False)"},
        {"bias": "b"},
    )
    return draw.call(operands, "g", "x", "w", **given)


@operation(
    "moreh_layer_norm",
    "moreh_layer_norm_backward",
    "moreh_group_norm",
    "moreh_group_norm_backward",
    "moreh_nll_loss",
    "moreh_nll_loss_backward",
    "moreh_nll_loss_unreduced_backward",
    "moreh_adam",
    "moreh_adamw",
    "moreh_sgd",
    "moreh_getitem",
    "moreh_fold",
)
def learning(draw: Draw) -> Call:
    name, dtype = draw.name, draw.dtype("bf16", "bf16", "bf16", "f32")
    shape = draw.shape(2, 4)

    def made(*extent: int) -> Operand:
        return draw.plain(extent, dtype)

    if name == "moreh_layer_norm":
        dims = draw.size(*range(1, len(shape)))
        operands = {"x": made(*shape), "g": made(*shape[-dims:])}
        given = {"gamma": "g", "beta": "g"} if draw.chance(0.5) else {}
        return draw.call(operands, "x", dims, "1e-5", **given, **draw.placed(0.1))
    if name == "moreh_layer_norm_backward":
        operands = {"g": made(*shape), "x": made(*shape), "m": made(*shape[:-1])}
        given = {"gamma": "w"} if draw.chance(0.5) else {}
        operands |= {"w": made(shape[-1])} if given else {}
        if draw.chance(0.6):
            operands["xg"], given["input_grad"] = made(*shape), "xg"
        return draw.call(operands, "g", "x", "m", "m", 1, **given)
    if name.startswith("moreh_group_norm"):
        n, c, h, w, groups = draw.size(1, 2), 6, draw.size(9, 32), draw.size(8, 32), draw.size(2, 3)
        operands = {"x": made(n, c, h, w), "w": made(1, 1, 1, c)}
        wanted = draw.pick(None, "(True, True, True)")
        if name == "moreh_group_norm":
            given = {"gamma": "w", "beta": "w"} if draw.chance(0.5) else {}
            return draw.call(operands, "x", groups, **given, are_required_outputs=wanted)
        operands |= {"g": made(n, c, h, w), "m": made(1, 1, n, groups)}
        return draw.call(operands, "g", "x", "m", "m", groups, gamma=draw.pick(None, "w"), are_required_outputs=wanted)
    if name.startswith("moreh_nll"):
        n, c, w = draw.size(5, 32), draw.size(10, 32), draw.size(7, 32)
        operands = {
            "x": made(n, c, w),
            "t": Operand((n, w), "i32"),
            "w": made(c),
            "d": made(1),
            "g": made(1),
            "u": made(n, w),
        }
        weight = draw.pick(None, "w")
        if name == "moreh_nll_loss":
            reduction, divisor = draw.pick(("'sum'", None), ("'mean'", "d"), ("'none'", None))
            return draw.call(
                operands,
                "x",
                "t",
                reduction,
                weight_tensor=weight,
                divisor_tensor=divisor,
                ignore_index=draw.pick(None, 3),
            )
        if name == "moreh_nll_loss_backward":
            mean, divisor = draw.pick(("True", "d"), ("False", None))
            return draw.call(
                operands, "t", "g", mean, weight_tensor=weight, input_grad_tensor="x", divisor_tensor=divisor
            )
        return draw.call(operands, "t", "u", weight_tensor=weight, input_grad_tensor="x")
    if name in ("moreh_adam", "moreh_adamw"):
        operands = {key: made(*shape) for key in ("p", "g", "a", "q", "z")}
        given = {"amsgrad": "True", "max_exp_avg_sq_in": "z"} if draw.chance(0.4) else {}
        return draw.call(operands, "p", "g", "a", "q", lr=0.1, step=3, **given, **draw.placed(0.1))
    if name == "moreh_sgd":
        operands = {key: made(*shape) for key in ("p", "g", "m")}
        if draw.chance(0.5):
            return draw.call(
                operands, "p", "g", "m", lr=0.1, momentum=0.9, momentum_initialized=draw.pick("True", "False")
            )
        return draw.call(operands, "p", "g", lr=0.1, weight_decay=draw.pick(None, 0.2), momentum_initialized="False")
    if name == "moreh_fold":
        operands = {"x": draw.operand(draw.pick((2, 12, 9), (12, 9)), dtype, rows=0.85, sharded=0)}
        return draw.call(operands, "x", output_size=(4, 4), kernel_size=(2, 2))
    dims = draw.pick([0], [1], [2])
    x = draw.operand((4, 5, draw.size(6, 32)), draw.dtype("bf16", "bf16", "i32", "f32"), rows=0.6, sharded=0)
    return draw.call({"x": x, "i": Operand((9,), "i32", "RM")}, "x", "[i]", dims)
