"""Calls of matmul, norms, images, attention, caches and pieces of models."""

from __future__ import annotations

from calls import Call, Draw, Operand, operation

GRID = "ttnn.CoreCoord({}, {})"


def grid(draw: Draw) -> str:
    """All cores of the chip."""
    return GRID.format(*draw.grid)


@operation(
    "matmul",
    "linear",
    "addmm",
    "matmul_batched_weights",
    "experimental.minimal_matmul",
    "experimental.minimal_matmul_split",
    "experimental.attn_matmul",
    "experimental.attn_matmul_from_cache",
    "experimental.group_attn_matmul",
    "experimental.matmul_decode",
    "experimental.dit_minimal_matmul_addcmul_fused",
    "sparse_matmul",
)
def matmuls(draw: Draw) -> Call:
    name = draw.name
    m, n, k = draw.size(32, 33, 64, 128, 256), draw.size(32, 50, 64, 96, 256), draw.size(32, 40, 64, 96, 512)
    batch = draw.pick((), (), (1, 1), (2,), (2, 3), (1, 3))
    dtype, other = draw.dtype("bf16", "bf16", "bf16", "f32", "bf8"), draw.dtype("bf16", "bf16", "bf16", "bf8", "f32")
    placed = draw.placed(0.2)
    if name in ("matmul", "linear"):
        x = draw.operand((*batch, m, k), dtype if draw.chance(0.95) else "i32", rows=0.03)
        w = draw.operand(draw.pick((k, n), (k, n), (*batch, k, n)), other, rows=0.02, sharded=0.05)
        operands, keywords = {"x": x, "w": w}, dict(placed)
        if draw.chance(0.15):
            w.shape, keywords["transpose_b"] = (*w.shape[:-2], n, k), "True"
        if draw.chance(0.08):
            x.shape, keywords["transpose_a"] = (*x.shape[:-2], k, m), "True"
        if name == "linear" and draw.chance(0.6):
            operands["b"], keywords["bias"] = draw.plain(draw.pick((1, n), (n,), (1, 1, 1, n)), memory="DRAM"), "b"
        if draw.chance(0.25):
            keywords["activation"] = str(draw.pick("'relu'", "'gelu'", "'silu'"))
        if draw.chance(0.2):
            keywords["dtype"] = str(draw.pick("ttnn.bfloat16", "ttnn.bfloat8_b", "ttnn.float32"))
        if draw.chance(0.15):
            keywords["core_grid"] = str(draw.pick("ttnn.CoreGrid(y=4, x=4)", "ttnn.CoreGrid(y=1, x=8)"))
        return draw.call(operands, "x", "w", **keywords)
    if name == "addmm":
        operands = {"i": draw.plain((m, n), dtype), "x": draw.plain((m, k), dtype), "w": draw.plain((k, n), dtype)}
        return draw.call(operands, "i", "x", "w", alpha=draw.pick(None, 0.5), beta=draw.pick(None, 2.0, 0.0), **placed)
    if name == "matmul_batched_weights":
        return draw.call({"x": draw.plain((m, k), dtype), "w": draw.plain((k, n), other)}, "x", "[w, w]", **placed)
    if name.startswith("experimental.minimal"):
        split = name.endswith("split")
        n = draw.size(96, 192) if split else draw.size(64, 96, 192)
        operands = {"x": draw.plain((*draw.pick((), (2,), (1, 1)), m, k), dtype), "w": draw.plain((k, n), other)}
        keywords = dict(placed)
        if draw.chance(0.4):
            operands["b"], keywords["bias_tensor"] = draw.plain((1, n), dtype, "DRAM"), "b"
        return draw.call(operands, "x", "w", **keywords)
    if name in ("experimental.attn_matmul", "experimental.group_attn_matmul"):
        heads, kv = draw.size(4, 8), draw.size(1, 2) if "group" in name else 1
        operands = {"x": draw.plain((1, heads, 32, 64), dtype), "y": draw.plain((32, kv, 64, draw.size(64, 96)), dtype)}
        return draw.call(operands, "x", "y", compute_with_storage_grid_size=grid(draw), **placed)
    if name == "experimental.attn_matmul_from_cache":
        tokens, transposed = draw.size(32, 50, 64), draw.pick("True", "False")
        operands = {
            "x": draw.plain((1, 7, 32, 64 if transposed == "True" else -(-tokens // 32) * 32), dtype),
            "y": draw.plain((32, 1, 128, 64), dtype),
        }
        return draw.call(
            operands,
            "x",
            "y",
            num_tokens=tokens,
            transpose_hw=transposed,
            compute_with_storage_grid_size=grid(draw),
            **placed,
        )
    if name == "experimental.matmul_decode":
        k, n, cores = draw.size(128, 256), draw.size(256, 512), draw.size(2, 4)
        operands = {
            "x": Operand((32, k), dtype, "TILE", f"shards('w', (32, {k // 2}), 2, 1)"),
            "w": Operand((k, n), dtype, "TILE", f"shards('w', ({k}, {n // cores}), {cores}, 1)"),
        }
        return draw.call(operands, "x", "w")
    if name == "sparse_matmul":
        first, flags, sparse = draw.pick(((2, 3, 32, 64), (2, 3, 1, 4), None), ((1, 4, 32, 64), (1, 1, 1, 4), "True"))
        n = draw.size(64, 96)
        config = (
            "ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig("
            f"compute_with_storage_grid_size=ttnn.CoreCoord({n // 32}, 1), in0_block_w=1, out_subblock_h=1, "
            "out_subblock_w=1, per_core_M=1, per_core_N=1, fuse_batch=False, mcast_in0=True)"
        )
        operands = {
            "x": draw.plain(first, dtype),
            "w": draw.plain((1, 4, 64, n), other),
            "s": Operand(flags, "bf16", "RM"),
        }
        return draw.call(
            operands, "x", "w", sparsity="s", program_config=config, is_input_a_sparse=sparse, nnz=draw.pick(None, 4)
        )
    operands = {
        "x": draw.plain((1, 1, m, k), dtype),
        "w": draw.plain((k, n), dtype),
        "a": draw.plain((1, 1, m, n), dtype),
        "c": draw.plain((1, 1, 1, n), dtype),
    }
    return draw.call(operands, "x", "w", 0.5, "a", "c")


@operation(
    "softmax",
    "layer_norm",
    "rms_norm",
    "batch_norm",
    "group_norm",
    "scale_mask_softmax",
    "scale_mask_softmax_in_place",
    "scale_causal_mask_hw_dims_softmax_in_place",
    "transformer.attention_softmax",
    "transformer.attention_softmax_",
    "layer_norm_pre_all_gather",
    "rms_norm_pre_all_gather",
    "layer_norm_post_all_gather",
    "rms_norm_post_all_gather",
    "experimental.dit_layernorm_pre_allgather",
    "experimental.dit_layernorm_post_allgather",
    "experimental.wan_fused_rmsnorm_pre_allgather",
    "experimental.wan_fused_rmsnorm_post_allgather",
    "experimental.dit_rms_norm_unary_fused",
    "experimental.kda.sigmoid_gated_rms_norm",
)
def norms(draw: Draw) -> Call:
    name, placed = draw.name, draw.placed(0.2)
    x = draw.operand(
        draw.shape(2, 5, tiles=draw.chance(0.7)), draw.dtype("bf16", "bf16", "bf16", "f32", "bf8"), rows=0.05
    )
    width = x.shape[-1]
    row = draw.plain((1,) * 3 + (width,), memory="DRAM")
    if name == "softmax":
        return draw.call(
            {"x": x}, "x", dim=draw.pick(None, -1, -2, 0, 1), numeric_stable=draw.pick(None, None, "False"), **placed
        )
    if name in ("layer_norm", "rms_norm", "experimental.dit_rms_norm_unary_fused"):
        operands, keywords = {"x": x}, {"epsilon": "1e-5", **placed}
        for key in ("weight", "bias"):
            if draw.chance(0.5):
                operands[key[0]], keywords[key] = row, key[0]
        if draw.chance(0.2):
            operands["r"], keywords["residual_input_tensor"] = Operand(x.shape, x.dtype, x.layout, x.memory), "r"
        if "dit" in name and draw.chance(0.5):
            keywords["activation"] = "'silu'"
        return draw.call(operands, "x", **keywords)
    if name == "batch_norm":
        x = draw.operand(draw.shape(4, 4), draw.dtype("bf16", "bf16", "f32", "bf8"), rows=0.05, sharded=0.1)
        operands = {"x": x, "c": Operand((1, x.shape[1], 1, 1), x.dtype, "TILE")}
        keywords = {
            "running_mean": "c",
            "running_var": "c",
            **({"weight": "c", "bias": "c"} if draw.chance(0.6) else {}),
        }
        return draw.call(operands, "x", training=draw.pick(None, None, "True"), **keywords, **placed)
    if name == "group_norm":
        operands = {
            "x": draw.operand((1, 1, draw.size(64, 128, 1024), draw.size(64, 320)), "bf16", rows=0.6, sharded=0)
        }
        return draw.call(
            operands,
            "x",
            num_groups=draw.pick(4, 8, 32),
            core_grid=f"ttnn.CoreGrid(y={draw.size(1, 2, 4)}, x={draw.size(1, 2, 4)})",
            inplace=draw.pick(None, "False"),
        )
    if name in (
        "scale_mask_softmax",
        "scale_mask_softmax_in_place",
        "transformer.attention_softmax",
        "transformer.attention_softmax_",
    ):
        batch, rows, width = draw.size(1, 2), draw.size(32, 64), draw.size(64, 128)
        x = draw.operand(
            (batch, draw.size(1, 2), rows, width), draw.dtype("bf16", "bf16", "f32", "bf8"), rows=0.03, sharded=0.1
        )
        operands = {"x": x, "m": draw.plain((batch, 1, draw.size(1, rows), width), draw.dtype("bf16", "bf16", "bf8"))}
        if name.startswith("transformer"):
            return draw.call(
                operands, "x", head_size=64, attention_mask="m", **(placed if not name.endswith("_") else {})
            )
        return draw.call(operands, "x", 0.5, "m", **(placed if not name.endswith("place") else {}))
    if name.startswith("scale_causal"):
        batch, width = draw.size(2, 4, 6), draw.size(64, 96)
        x = Operand((batch, 1, 32, width), "bf16", "TILE", f"shards('h', (32, {width}), {batch}, 1)")
        config = (
            "ttnn.SoftmaxShardedMultiCoreProgramConfig("
            f"compute_with_storage_grid_size=ttnn.CoreCoord({batch}, 1), subblock_w=1, block_h=1, block_w={width // 32})"
        )
        return draw.call(
            {"x": x, "m": draw.plain((1, 1, 32, width), "bf16", "DRAM")}, "x", 0.5, "m", program_config=config
        )
    dtype = draw.dtype("bf16", "bf16", "bf16", "f32", "bf8")
    rows, width = draw.size(32, 64), draw.size(64, 96, 128)
    x = draw.plain((1, 1, rows, width), dtype)
    if name in ("layer_norm_pre_all_gather", "rms_norm_pre_all_gather", "experimental.wan_fused_rmsnorm_pre_allgather"):
        return draw.call({"x": x}, "x", dtype=draw.pick(None, "ttnn.bfloat16", "ttnn.float32"))
    if name == "experimental.dit_layernorm_pre_allgather":
        return draw.call({"x": x, "r": draw.plain((1, 1, 1, width), "f32", "L1")}, "x", "r")
    tiles = 2 if "layer" in name else 1
    stats = draw.plain((1, 1, rows, 32 * tiles * draw.size(1, 2, 4)), draw.dtype("bf16", "bf16", "f32"))
    if name in ("layer_norm_post_all_gather", "rms_norm_post_all_gather"):
        return draw.call(
            {"x": x, "t": stats, "g": draw.plain((1, 1, 1, width), "bf16")},
            "x",
            "t",
            weight=draw.pick("g", None),
            dtype=draw.pick(None, "ttnn.bfloat8_b"),
        )
    if name == "experimental.dit_layernorm_post_allgather":
        return draw.call(
            {"x": x, "t": stats, "w": draw.plain((1, width), dtype)}, "x", "t", weight=draw.pick(None, "w")
        )
    if name == "experimental.wan_fused_rmsnorm_post_allgather":
        return draw.call(
            {"x": x, "t": stats, "w": draw.plain((1, width), dtype)},
            "x",
            "t",
            num_heads_per_device=draw.pick(1, 2),
            weight=draw.pick(None, "w"),
        )
    heads, batch = draw.size(2, 3), draw.size(1, 2)
    operands = {
        "x": draw.plain((batch * heads, 32, 64), dtype),
        "g": draw.plain((batch, 32, 64 * heads), dtype),
        "w": draw.plain((64,), dtype, "DRAM"),
    }
    return draw.call(operands, "x", "g", "w", num_heads=heads)


@operation(
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool2d",
    "global_avg_pool2d",
    "upsample",
    "grid_sample",
    "rotate",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "experimental.conv3d",
    "experimental.rgb_to_yuv",
    "experimental.multi_scale_deformable_attn",
)
def images(draw: Draw) -> Call:
    name = draw.name
    batch, high, wide, channels = (
        draw.size(1, 1, 2),
        draw.size(8, 9, 16),
        draw.size(7, 8, 16),
        draw.size(16, 32, 64, 96),
    )
    flat = (1, 1, batch * high * wide, channels)
    x = draw.operand(flat, draw.dtype("bf16", "bf16", "bf16", "bf16", "bf8", "bf16", "f32"), rows=0.7, sharded=0.05)
    if name in ("max_pool2d", "avg_pool2d"):
        kernel, stride = draw.pick([2, 2], [3, 3], [3, 2]), draw.pick([1, 1], [2, 2])
        pads = draw.pick([0, 0], [1, 1])
        dilation = [[1, 1]] if name == "max_pool2d" else []
        return draw.call(
            {"x": x},
            "x",
            batch,
            high,
            wide,
            channels,
            kernel,
            stride,
            pads,
            *dilation,
            ceil_mode=draw.pick(None, None, "True"),
            **draw.placed(0.15),
        )
    if name.startswith("adaptive"):
        return draw.call(
            {"x": x}, "x", batch, high, wide, channels, draw.pick([1, 1], [2, 2], [3, 4], [4, 4]), **draw.placed(0.1)
        )
    picture = draw.operand(
        (batch, high, wide, channels), draw.dtype("bf16", "bf16", "bf16", "f32"), rows=0.85, sharded=0.03
    )
    if name == "global_avg_pool2d":
        return draw.call({"x": picture}, "x", **draw.placed(0.15))
    if name == "upsample":
        return draw.call(
            {"x": picture}, "x", draw.pick(2, 3, [2, 3], [1.5, 2.5]), mode=draw.pick(None, "'nearest'", "'bilinear'")
        )
    if name == "rotate":
        return draw.call({"x": picture}, "x", draw.pick(30.0, 45.0), interpolation_mode=draw.pick(None, "'bilinear'"))
    if name == "grid_sample":
        return draw.call(
            {"x": picture, "g": draw.rows((batch, draw.size(5, 8), 4, 2), draw.dtype("bf16", "f32"))},
            "x",
            "g",
            align_corners=draw.pick(None, "True"),
        )
    if name == "experimental.rgb_to_yuv":
        return draw.call({"x": draw.rows((draw.size(1, 3), draw.size(6, 8), 16, draw.size(5, 32)))}, "x")
    if name == "experimental.multi_scale_deformable_attn":
        points, queries = 4, draw.size(5, 8)
        operands = {
            "v": draw.rows((3, high, wide, 32)),
            "g": draw.rows((3, queries * points, 1, 2)),
            "a": draw.rows((3, queries, points)),
        }
        return draw.call(operands, "v", "g", "a")
    out, kernel = draw.size(32, 64, 96), draw.size(1, 3)
    if name == "experimental.conv3d":
        c = draw.size(32, 64)
        operands = {
            "x": draw.rows((draw.size(1, 2), 4, 6, 5, c), draw.dtype("bf16", "bf16", "f32")),
            "k": Operand((out, c, 3, 3, 3), layout="host"),
            "b": draw.plain((1, out), "bf16", "DRAM"),
        }
        return draw.call(
            operands,
            input_tensor="x",
            weight_tensor="k",
            device="dev",
            bias_tensor=draw.pick(None, "b"),
            dtype="ttnn.bfloat16",
            output_channels=out,
            kernel_size=(3, 3, 3),
            padding=draw.pick(None, (0, 1, 1)),
        )
    stride, pad, groups = (
        draw.size(1, 1, 2),
        draw.size(0, 1),
        draw.pick(1, 1, 1, 2) if name != "conv_transpose2d" else 1,
    )
    keywords: dict[str, object] = {"device": "dev", "in_channels": channels, "out_channels": out, "batch_size": batch}
    bias = {"bias_tensor": "b"} if draw.chance(0.4) else {}
    operands = {"x": x, "b": Operand((1, 1, 1, out), layout="host")}
    if name == "conv1d":
        length = draw.size(64, 128)
        x.shape = (batch, length, channels)
        operands["k"] = Operand((out, channels // groups, kernel), layout="host")
        keywords |= {"input_length": length, "kernel_size": kernel, "stride": stride, "padding": pad, "groups": groups}
    else:
        weight = (channels, out) if name == "conv_transpose2d" else (out, channels // groups)
        operands["k"] = Operand((*weight, kernel, kernel), layout="host")
        keywords |= {
            "input_height": high,
            "input_width": wide,
            "kernel_size": (kernel, kernel),
            "stride": (stride, stride),
            "padding": (pad, pad),
            "groups": groups,
        }
    if draw.chance(0.15):
        keywords["dtype"] = draw.pick("ttnn.bfloat8_b", "ttnn.bfloat16")
    return draw.call(operands, input_tensor="x", weight_tensor="k", **keywords, **bias)
