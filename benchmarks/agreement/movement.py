"""Calls of data movement, layouts, memory, indices, reductions, sorting and scans."""

from __future__ import annotations

from math import prod

from calls import Call, Draw, Operand, Shape, fits, operation


@operation(
    "reshape",
    "view",
    "experimental.view",
    "reshape_on_device",
    "squeeze",
    "unsqueeze",
    "unsqueeze_to_4D",
    "expand",
    "experimental.broadcast_to",
)
def shapes(draw: Draw) -> Call:
    x, name = draw.operand(rows=0.35), draw.name
    shape = x.shape
    total = prod(shape)
    if name in ("reshape", "view", "experimental.view"):
        wanted: Shape = draw.pick(
            (total,),
            (1, total),
            (shape[0], -1),
            (-1, shape[-1]),
            (1, 1, -1, shape[-1]),
            (1, *shape),
            (total // shape[-1], shape[-1]),
            (shape[-1], -1),
            tuple(reversed(shape)),
        )
        if name != "reshape":
            known = prod(n for n in wanted if n != -1)
            wanted = tuple(total // known if n == -1 else n for n in wanted)
        return draw.call({"x": x}, "x", wanted, **(draw.placed(0.1) if name == "reshape" else {}))
    if name == "reshape_on_device":
        x.shape = draw.shape(4, 4, tiles=draw.chance(0.7))
        a, b, c, d = x.shape
        return draw.call(
            {"x": x}, "x", *draw.pick((1, a * b, c, d), (b, a, c, d), (1, 1, a * b * c, -1), (a, b, c * d, 1))
        )
    if name == "squeeze":
        x.shape = tuple(1 if draw.chance(0.4) else n for n in shape)
        return draw.call({"x": x}, "x", *draw.pick((0,), (), (-1,), (len(shape) - 2,), ("[0, 1]",)))
    if name == "unsqueeze":
        return draw.call({"x": x}, "x", draw.size(0, 1, -1, -2, len(shape)))
    if name == "unsqueeze_to_4D":
        return draw.call({"x": x}, "x")
    x.shape = tuple(1 if draw.chance(0.5) else n for n in shape)
    wanted = tuple(draw.size(1, 2, 3, 32) if n == 1 else n for n in x.shape)
    if draw.chance(0.3):
        wanted = (draw.size(1, 2), *wanted)
    return draw.call({"x": x}, "x", wanted, **draw.placed(0.15))


@operation(
    "permute",
    "transpose",
    "roll",
    "slice",
    "narrow",
    "pad",
    "getitem",
    "split",
    "chunk",
    "repeat",
    "repeat_interleave",
    "concat",
    "stack",
    "tilize",
    "untilize",
    "tilize_with_zero_padding",
    "tilize_with_val_padding",
    "untilize_with_unpadding",
    "to_layout",
    "fill_implicit_tile_padding",
)
def moved(draw: Draw) -> Call:
    name = draw.name
    x = draw.operand(
        rows={"tilize": 0.9, "tilize_with_zero_padding": 0.9, "tilize_with_val_padding": 0.9}.get(name, 0.3)
    )
    return draw_move(draw, name, x)


def draw_move(draw: Draw, name: str, x: Operand) -> Call:
    """A movement of this tensor."""
    shape, rank = x.shape, len(x.shape)
    operands, placed = {"x": x}, draw.placed(0.15)
    dim = draw.random.randrange(-rank, rank)
    if name == "permute":
        order = list(range(rank))
        draw.random.shuffle(order)
        return draw.call(operands, "x", tuple(order), **placed)
    if name == "transpose":
        return draw.call(operands, "x", dim, draw.random.randrange(rank), **placed)
    if name == "roll":
        return draw.call(operands, "x", *draw.pick((1, dim), (3, dim), (-2, dim), (5,), ([1, 2], [0, rank - 1])))
    if name == "slice":
        start = [draw.random.randrange(max(n // 2, 1)) if draw.chance(0.5) else 0 for n in shape]
        if draw.chance(0.5):
            start = [n // 32 * 32 if i >= rank - 2 else n for i, n in enumerate(start)]
        end = [
            n if draw.chance(0.5) else max(s + 1, n - draw.random.randrange(max(n // 2, 1)))
            for s, n in zip(start, shape, strict=True)
        ]
        step = ([[draw.size(1, 1, 2, 3) for _ in shape]] if draw.chance(0.2) else [])  # fmt: skip
        return draw.call(operands, "x", start, end, *step, **placed)
    if name == "narrow":
        start = draw.random.randrange(max(shape[dim] // 2, 1))
        if draw.chance(0.5):
            start = start // 32 * 32
        return draw.call(operands, "x", dim, start, max(1, (shape[dim] - start) // draw.size(1, 2)))
    if name == "pad":
        front = draw.chance(0.2)
        pads = [(draw.size(0, 1) if front else 0, draw.size(0, 0, 1, 3, 32)) for _ in shape]
        return draw.call(operands, "x", pads, 0.0, **placed)
    if name == "getitem":
        at = draw.pick(f"..., :{max(shape[-1] // 2, 1)}", "0", "-1:", f"..., {shape[-1] - 1}", f"{shape[0] // 2}:, ...")
        return Call("getitem", operands, form=f"x[{at}]")
    if name == "split":
        size = draw.pick(
            max(shape[dim] // 2, 1), max(shape[dim] // 3, 1), [shape[dim] - shape[dim] // 3, shape[dim] // 3]
        )
        if isinstance(size, list) and 0 in size:
            size = shape[dim]
        return draw.call(operands, "x", size, dim, **placed)
    if name == "chunk":
        return draw.call(operands, "x", draw.size(1, 2, 3), dim)
    if name == "repeat":
        return draw.call(operands, "x", tuple(draw.size(1, 1, 2, 3) for _ in shape), **placed)
    if name == "repeat_interleave":
        return draw.call(operands, "x", draw.size(1, 2, 3), dim, **placed)
    if name in ("concat", "stack"):
        other = list(shape)
        if name == "concat" and draw.chance(0.4):
            other[dim] = draw.size(1, 32, 64)
        operands["y"] = Operand(tuple(other), x.dtype, x.layout, x.memory)
        joined = draw.pick("[x, y]", "[x, y]", "[y, x, x]") if name == "concat" else "[x, x]"
        return draw.call(operands, joined, dim if draw.chance(0.9) else 0, **(placed if name == "concat" else {}))
    if name == "tilize_with_val_padding":
        padded = [-(-n // 32) * 32 if i >= rank - 2 else n for i, n in enumerate(shape)]
        return draw.call(operands, "x", padded, 1.0, **placed)
    if name == "untilize_with_unpadding":
        end = [n - 1 - (draw.size(0, 0, 2) if n > 4 else 0) for n in shape]
        return draw.call(operands, "x", end, **placed)
    if name == "to_layout":
        return draw.call(
            operands, "x", draw.pick("TILE", "RM"), dtype=draw.pick(None, None, None, "DT['bf16']", "DT['bf8']")
        )
    if name == "fill_implicit_tile_padding":
        return draw.call(operands, "x", 3.0, **placed)
    return draw.call(operands, "x", **placed)


@operation(
    "to_memory_config",
    "interleaved_to_sharded",
    "sharded_to_interleaved",
    "reshard",
    "to_device",
    "from_device",
    "reallocate",
    "copy",
    "assign",
    "interleaved_to_sharded_partial",
    "sharded_to_interleaved_partial",
)
def memories(draw: Draw) -> Call:
    name, shape = draw.name, draw.shape(2, 5, tiles=draw.chance(0.75))
    x = draw.operand(shape, rows=0.25)
    wanted = f"shard({draw.pick('h', 'w', 'b')!r}, {shape})" if fits(shape) else "L1"
    if name == "to_memory_config":
        return draw.call(
            {"x": x}, "x", draw.pick(wanted, wanted, "L1", "DRAM"), dtype=draw.pick(None, None, "DT['bf8']")
        )
    if name == "interleaved_to_sharded":
        x.memory = str(draw.pick("DRAM", "DRAM", "L1", "h"))
        return draw.call({"x": x}, "x", wanted, *draw.pick((), (), ("DT['bf16']",), ("DT['f32']",)))
    if name == "sharded_to_interleaved":
        x.memory = str(draw.pick("h", "w", "b", "h", "L1"))
        return draw.call({"x": x}, "x", *draw.pick((), ("DRAM",), ("L1",), ("DRAM", "DT['bf16']")))
    if name == "reshard":
        x.memory = str(draw.pick("h", "w", "b", "h", "DRAM"))
        return draw.call({"x": x}, "x", wanted)
    if name.endswith("partial"):
        rows, columns = draw.size(64, 128, 256), draw.size(64, 96)
        x = draw.plain((1, 1, rows, columns))
        grid = "ttnn.CoreCoord(1, 1)"
        if name.startswith("inter"):
            scheme = "ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.ShardOrientation.ROW_MAJOR"
            return draw.call({"x": x}, "x", grid, [rows // 2, columns], 2, draw.size(0, 1), scheme)
        part = Operand((1, 1, rows // 2, columns), x.dtype, "TILE", "h")
        return draw.call({"x": part, "y": x}, "x", "y", 2, draw.size(0, 1), memory_config=x.memory)
    if name == "to_device":
        return draw.call({"x": Operand(shape, layout="host")}, "x", "dev", draw.pick("DRAM", "L1", wanted))
    if name in ("copy", "assign"):
        operands = {"x": x, "y": Operand(shape, x.dtype if draw.chance(0.7) else draw.dtype(), x.layout, draw.memory())}
        if operands["y"].dtype in ("bf8", "bf4"):
            operands["y"].layout = "TILE"
        if name == "assign" and draw.chance(0.4):
            return draw.call({"x": x}, "x", memory_config=draw.pick("DRAM", "L1"))
        return draw.call(operands, "x", "y", form="[{}, y]" if name == "copy" else "{}")
    return draw.call({"x": x}, "x", **(draw.placed(0.3) if name == "reallocate" else {}))


@operation(
    "gather",
    "scatter",
    "scatter_add",
    "tosa_gather",
    "tosa_scatter",
    "index_fill",
    "indexed_fill",
    "nonzero",
    "embedding",
    "experimental.isin",
    "fold",
    "fill_rm",
    "fill_ones_rm",
    "experimental.slice_write",
    "experimental.padded_slice",
    "experimental.convert_to_chw",
    "experimental.convert_to_hwc",
)
def indices(draw: Draw) -> Call:
    name, placed = draw.name, draw.placed(0.2)
    if name in ("gather", "scatter", "scatter_add"):
        x = draw.operand(draw.shape(1, 4), draw.dtype("bf16", "bf16", "f32", "i32"), rows=0.4, sharded=0.1)
        dim = draw.random.randrange(-len(x.shape), len(x.shape))
        at = tuple(n if draw.chance(0.7) else max(n // 2, 1) for n in x.shape)
        operands = {"x": x, "i": Operand(at, draw.dtype("u32", "u32", "u16", "i32"), x.layout)}
        if name == "gather":
            return draw.call(operands, "x", dim, index="i", **placed)
        operands["v"] = Operand(at, x.dtype, x.layout)
        keywords = {"reduce": draw.pick(None, None, "'add'", "'multiply'")} if name == "scatter" else {}
        return draw.call(operands, "x", dim, "i", "v", **keywords, **placed)
    if name in ("tosa_gather", "tosa_scatter"):
        n, k, c, w = draw.size(1, 2, 3), draw.size(9, 32, 50), draw.size(7, 32, 64), draw.size(4, 10, 32)
        x = draw.operand((n, k, c), draw.dtype("bf16", "bf16", "f32"), rows=0.5, sharded=0)
        operands = {"x": x, "i": Operand((n, w), draw.dtype("u32", "u32", "u16"), x.layout)}
        if name == "tosa_gather":
            return draw.call(operands, "x", "i", **placed)
        operands["v"] = Operand((n, w, c), x.dtype, x.layout)
        return draw.call(operands, "x", "i", "v", **placed)
    if name == "index_fill":
        x = draw.operand(draw.shape(2, 4), draw.dtype("bf16", "f32", "i32"), rows=0.85, sharded=0.05)
        index = Operand((draw.size(1, 3, 4),), draw.dtype("u32", "u32", "i32"), "RM")
        value = "2" if x.dtype == "i32" and draw.chance(0.8) else "2.5"
        return draw.call({"x": x, "i": index}, "x", draw.random.randrange(len(x.shape)), "i", value, **placed)
    if name == "indexed_fill":
        batch, rows, width = draw.size(4, 6, 8), draw.size(5, 32, 40), draw.size(32, 40, 96)
        x = draw.operand((batch, 1, rows, width), draw.dtype("bf16", "bf16", "f32"), rows=0.5, sharded=0.1)
        operands = {
            "b": Operand((1, 1, 1, 2), "u32", "RM"),
            "x": x,
            "y": Operand((2, 1, rows, width), x.dtype, x.layout, x.memory),
        }
        return draw.call(operands, "b", "x", "y", **placed)
    if name == "nonzero":
        return draw.call(
            {"x": Operand((1, 1, 1, draw.size(32, 64, 100)), draw.dtype("bf16", "u32", "f32"), "RM")}, "x", **placed
        )
    if name == "embedding":
        ids = draw.rows(
            draw.pick((draw.size(1, 2, 3), draw.size(9, 32, 64)), (draw.size(9, 32),)), draw.dtype("u32", "u32", "i32")
        )
        operands = {
            "i": ids,
            "w": draw.operand(
                (draw.size(50, 128), draw.size(32, 40, 64, 96)),
                draw.dtype("bf16", "bf16", "bf16", "f32", "bf8"),
                rows=0.7,
                sharded=0,
            ),
        }
        return draw.call(
            operands,
            "i",
            "w",
            layout=draw.pick(None, "TILE", "RM"),
            dtype=draw.pick(None, None, "ttnn.bfloat16"),
            **placed,
        )
    if name == "experimental.isin":
        dtype = draw.dtype("i32", "u32", "u16")
        return draw.call(
            {"x": draw.operand(None, dtype, rows=0.5, sharded=0), "y": draw.rows((draw.size(8, 16),), dtype)},
            "x",
            "y",
            invert=draw.pick(None, True),
        )
    if name == "fold":
        x = draw.operand(
            (draw.size(1, 2), 4, draw.size(6, 8), draw.size(8, 16)),
            draw.dtype("bf16", "bf16", "f32"),
            rows=0.8,
            sharded=0,
        )
        return draw.call({"x": x}, "x", 2, 2, padding=draw.pick(None, "(1, 1)"), collapse_output=draw.pick(None, True))
    if name in ("fill_rm", "fill_ones_rm"):
        x = Operand((1, 1, 32, 64), draw.dtype("bf16", "bf16", "f32"), str(draw.pick("RM", "RM", "TILE")))
        values = [2.0, 0.0] if name == "fill_rm" else []
        return draw.call(
            {"x": x}, draw.size(1, 2), 1, draw.size(32, 64), draw.size(32, 64), 31, 20, "x", *values, **placed
        )
    if name == "experimental.slice_write":
        rows, extra, width = draw.size(4, 32), draw.size(2, 32), draw.size(8, 32, 64)
        x = draw.operand((2, rows, width), draw.dtype("bf16", "bf16", "f32"), rows=0.8, sharded=0)
        operands = {"x": x, "y": Operand((2, rows + extra, width), x.dtype, x.layout)}
        start = draw.size(0, 1) if x.layout == "RM" else 0
        return draw.call(operands, "x", "y", [0, start, 0], [2, start + rows, width], [1, 1, 1])
    if name == "experimental.padded_slice":
        x = draw.operand(
            (2, draw.size(2, 3), 8, draw.size(32, 64)), draw.dtype("bf16", "bf16", "f32"), rows=0.8, sharded=0
        )
        return draw.call(
            {"x": x},
            "x",
            [0, 0, 0, 0],
            [draw.size(1, 2), 2, 8, x.shape[-1]],
            memory_config=draw.pick("DRAM", "DRAM", "L1"),
        )
    pixels, channels = draw.size(128, 256, 512), draw.size(3, 16, 32)
    if name == "experimental.convert_to_chw":
        cores = draw.size(2, 4)
        return draw.call(
            {
                "x": Operand(
                    (1, 1, pixels, channels), "bf16", "TILE", f"shards('h', ({pixels // cores}, 32), {cores}, 1)"
                )
            },
            "x",
        )
    cores = draw.size(2, 4)
    spread = Operand(
        (1, 1, channels, pixels), "bf16", "RM", f"shards('w', ({channels}, {pixels // cores}), {cores}, 1)"
    )
    return draw.call(
        {"x": spread},
        "x",
        memory_config=draw.pick(None, f"shards('h', ({pixels // cores}, {-(-channels // 8) * 8}), {cores}, 1)"),
    )


@operation(
    "sum",
    "mean",
    "max",
    "min",
    "std",
    "var",
    "prod",
    "argmax",
    "topk",
    "sort",
    "cumsum",
    "cumprod",
    "ema",
    "experimental.fast_reduce_nc",
    "experimental.intimg",
    "mse_loss",
    "l1_loss",
    "sampling",
    "experimental.topk_large_indices",
)
def reductions(draw: Draw) -> Call:
    name = draw.name
    x = draw.operand(rows=0.25 if name != "argmax" else 0.6)
    rank, placed = len(x.shape), draw.placed(0.15)
    dim = draw.random.randrange(-rank, rank)
    if name in ("sum", "mean", "max", "min", "std", "var"):
        several = sorted(draw.random.sample(range(rank), draw.random.randrange(1, rank + 1)))
        which = draw.pick(None, dim, dim, -1, several)
        keep = draw.pick(None, "True", "False")
        scalar = 0.5 if name in ("sum", "mean", "max") and draw.chance(0.1) else None
        return draw.call({"x": x}, "x", dim=which, keepdim=keep, scalar=scalar, **placed)
    if name == "prod":
        return draw.call({"x": x}, "x", dim=draw.pick(None, dim, dim), keepdim=draw.pick(None, "True"), **placed)
    if name == "argmax":
        return draw.call({"x": x}, "x", dim=draw.pick(None, -1, -1, dim), keepdim=draw.pick(None, "True"), **placed)
    if name == "topk":
        x.shape = (*x.shape[:-1], draw.size(64, 128, 256, 96))
        return draw.call(
            {"x": x},
            "x",
            draw.size(4, 32, 50),
            dim=draw.pick(-1, -1, -1, dim),
            largest=draw.pick(None, "False"),
            **placed,
        )
    if name == "sort":
        return draw.call({"x": x}, "x", dim=draw.pick(-1, -1, dim), descending=draw.pick(None, "True"), **placed)
    if name in ("cumsum", "cumprod"):
        return draw.call(
            {"x": x},
            "x",
            dim,
            dtype=draw.pick(None, None, None, "DT['f32']"),
            reverse_order=draw.pick(None, None, "True"),
            **placed,
        )
    if name == "ema":
        x = draw.operand(
            (1, draw.size(1, 2), draw.size(3, 32), draw.size(32, 40, 128)),
            draw.dtype("bf16", "bf16", "bf16", "f32"),
            rows=0.1,
            sharded=0,
        )
        return draw.call({"x": x}, "x", 0.3, **placed)
    if name == "experimental.fast_reduce_nc":
        return draw.call({"x": draw.plain(draw.shape(4, 4))}, "x", dims=draw.pick([0, 1], [1], [0]), **draw.placed(0.1))
    if name == "experimental.intimg":
        return draw.call({"x": draw.plain((1, draw.size(32, 40), draw.size(32, 64), draw.size(32, 64)))}, "x")
    if name in ("mse_loss", "l1_loss"):
        operands = {"x": x, "y": Operand(x.shape, x.dtype, x.layout, x.memory)}
        return draw.call(
            operands,
            "x",
            "y",
            reduction=draw.pick(None, "ttnn.LossReductionMode.MEAN", "ttnn.LossReductionMode.SUM"),
            **placed,
        )
    if name == "experimental.topk_large_indices":
        return draw.call({"x": draw.rows((2, 3, draw.size(256, 512)))}, "x", k=draw.size(32, 64))
    width = draw.size(64, 128, 256)
    operands = {
        "v": draw.plain((1, 1, 32, width), "bf16", "DRAM"),
        "i": Operand((1, 1, 32, width), draw.dtype("u32", "i32", "u16"), "RM"),
    }
    operands |= {"k": Operand((32,), "u32", "RM"), "p": Operand((32,), "bf16", "RM"), "t": Operand((32,), "bf16", "RM")}
    return draw.call(operands, "v", "i", "k", "p", "t", seed=draw.pick(None, 7))
