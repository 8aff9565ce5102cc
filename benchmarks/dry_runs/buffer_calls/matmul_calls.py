"""Matmuls, with and without program configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ttnn

from buffer_calls.listed_call import (
    FORMATS,
    Call,
    T,
    call,
    compute,
    device,
    memory,
)


def matmuls() -> Iterator[Call]:
    for a, b in (
        ((1, 1, 32, 32), (32, 32)),
        ((1, 1, 128, 512), (512, 512)),
        ((1, 1, 1024, 1024), (1024, 2048)),
        ((1, 1, 32, 4096), (4096, 1024)),
        ((1, 1, 32, 2048), (2048, 8192)),
        ((1, 1, 4096, 64), (64, 128)),
        ((2, 4, 96, 256), (256, 128)),
        ((1, 1, 40, 70), (70, 50)),
        ((1, 1, 2048, 4096), (4096, 512)),
    ):
        for da, db in (("b16", "b16"), ("b8", "b8"), ("b16", "b8"), ("f32", "f32"), ("b16", "b4")):
            yield call("matmul", "matmul", T(a, da), T(b, db))
        for more in (
            {"dtype": ttnn.bfloat8_b},
            {"memory_config": ttnn.L1_MEMORY_CONFIG},
            {"activation": "gelu"},
            {"core_grid": ttnn.CoreGrid(y=4, x=8)},
            {"transpose_b": True},
        ):
            second = T(b[::-1]) if "transpose_b" in more else T(b)
            yield call("matmul", "matmul", T(a), second, note=f"{more}", **more)
        yield call("matmul", "linear", T(a), T(b), T((1, b[1])), run=lambda a, b, c: ttnn.linear(a, b, bias=c))
        yield call("matmul", "matmul", T(a), T(b), note="float32 sums", compute_kernel_config=compute(True))
        yield call("matmul", "matmul", T(a), T(b), note="L1 sums", compute_kernel_config=compute(False, True))
    for a, b in (
        ((2, 4, 96, 256), (2, 4, 256, 96)),
        ((1, 8, 128, 64), (1, 8, 64, 128)),
        ((1, 32, 32, 128), (1, 32, 128, 1024)),
        ((4, 1, 64, 64), (4, 1, 64, 64)),
    ):
        for dtype in ("b16", "b8", "f32"):
            yield call("matmul", "matmul", T(a, dtype), T(b, dtype))
    for kind in ("height", "width", "block"):
        for a, b in (((1, 1, 512, 512), (512, 512)), ((1, 1, 256, 1024), (1024, 512))):
            yield call("matmul", "matmul", T(a, "b16", "T", kind), T(b))
            yield call(
                "matmul",
                "matmul",
                T(a, "b16", "T", kind),
                T(b),
                note=f"to {kind}",
                memory_config=memory(kind, (*a[:-1], b[1])),
            )


def configured_matmuls() -> Iterator[Call]:
    for m, k, n, grid in ((512, 512, 512, (8, 8)), (1024, 1024, 2048, (8, 8)), (256, 2048, 1024, (8, 4))):
        rows, columns = m // 32 // grid[1], n // 32 // grid[0]
        for width in (1, 2, 4):
            for da, db in (("b16", "b16"), ("b8", "b8"), ("b16", "b8"), ("f32", "f32")):
                for wide_sums, l1_sums in ((False, False), (True, True), (False, True)):
                    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
                        compute_with_storage_grid_size=grid,
                        in0_block_w=width,
                        out_subblock_h=1,
                        out_subblock_w=1,
                        per_core_M=rows,
                        per_core_N=columns,
                        transpose_mcast=False,
                        fused_activation=None,
                    )
                    yield call(
                        "matmul config",
                        "matmul",
                        T((1, 1, m, k), da),
                        T((k, n), db),
                        note=f"2D {grid} {width} {wide_sums} {l1_sums}",
                        program_config=config,
                        compute_kernel_config=compute(wide_sums, l1_sums),
                    )
        config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
            compute_with_storage_grid_size=grid,
            in0_block_w=2,
            out_subblock_h=1,
            out_subblock_w=1,
            per_core_M=rows,
            per_core_N=columns,
            transpose_mcast=False,
            fused_activation=None,
        )
        yield call(
            "matmul config",
            "linear",
            T((1, 1, m, k)),
            T((k, n)),
            T((1, n)),
            note=f"2D bias {grid}",
            run=lambda a, b, c, config=config: ttnn.linear(a, b, bias=c, program_config=config),
        )
        yield call(
            "matmul config",
            "matmul",
            T((1, 1, m, k), "b16", "T", f"block@{grid[1]}x{grid[0]}"),
            T((k, n)),
            note=f"2D block {grid}",
            program_config=config,
        )
        yield call(
            "matmul config",
            "matmul",
            T((1, 1, m, k), "b16", "T", f"block@{grid[1]}x{grid[0]}"),
            T((k, n)),
            note=f"2D block to block {grid}",
            program_config=config,
            memory_config=memory(f"block@{grid[1]}x{grid[0]}", (1, 1, m, n)),
        )
    for m, k, n, cores in ((32, 2048, 4096, 64), (32, 1024, 1024, 32), (64, 2048, 2048, 64)):
        grid = (8, cores // 8)
        for width in (1, 2, 4):
            for da, db in (("b16", "b16"), ("b8", "b8"), ("b16", "b4")):
                for wide_sums, l1_sums in ((False, False), (True, True)):
                    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
                        compute_with_storage_grid_size=grid,
                        in0_block_w=width,
                        out_subblock_h=1,
                        out_subblock_w=1,
                        per_core_M=m // 32,
                        per_core_N=n // 32 // cores,
                        fuse_batch=True,
                        fused_activation=None,
                        mcast_in0=True,
                    )
                    yield call(
                        "matmul config",
                        "matmul",
                        T((1, 1, m, k), da),
                        T((k, n), db),
                        note=f"1D {grid} {width} {wide_sums} {l1_sums}",
                        program_config=config,
                        compute_kernel_config=compute(wide_sums, l1_sums),
                    )
        config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
            compute_with_storage_grid_size=grid,
            in0_block_w=1,
            out_subblock_h=1,
            out_subblock_w=1,
            per_core_M=m // 32,
            per_core_N=n // 32 // cores,
            fuse_batch=True,
            fused_activation=None,
            mcast_in0=True,
        )
        for target in ("dram", "width"):
            to = memory(f"width@{grid[1]}x{grid[0]}" if target == "width" else "dram", (1, 1, m, n))
            yield call(
                "matmul config",
                "matmul",
                T((1, 1, m, k), "b16", "T", f"width@{grid[1]}x{grid[0]}"),
                T((k, n)),
                note=f"1D width to {target}",
                program_config=config,
                memory_config=to,
            )
    for m, k, n in ((2048, 256, 128), (4096, 64, 64)):
        config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
            compute_with_storage_grid_size=(8, 8),
            in0_block_w=2,
            out_subblock_h=1,
            out_subblock_w=1,
            per_core_M=m // 32 // 64,
            per_core_N=n // 32,
            fuse_batch=True,
            fused_activation=None,
            mcast_in0=False,
        )
        for kind in ("dram", "height@8x8"):
            for target in ("dram", "height@8x8"):
                for dtype in ("b16", "b8"):
                    yield call(
                        "matmul config",
                        "matmul",
                        T((1, 1, m, k), dtype, "T", kind),
                        T((k, n), dtype),
                        note=f"1D tall to {target}",
                        program_config=config,
                        memory_config=memory(target, (1, 1, m, n)),
                    )
    for batch, m, k, n in ((8, 128, 64, 128), (32, 32, 128, 256)):
        config = ttnn.MatmulMultiCoreReuseProgramConfig(
            compute_with_storage_grid_size=(8, 8),
            in0_block_w=2,
            out_subblock_h=1,
            out_subblock_w=1,
            per_core_M=m // 32,
            per_core_N=n // 32,
        )
        for dtype in ("b16", "b8", "f32"):
            yield call(
                "matmul config",
                "matmul",
                T((1, batch, m, k), dtype),
                T((1, batch, k, n), dtype),
                note="reuse",
                program_config=config,
            )
    for k, n, cores in ((2048, 4096, 8), (4096, 1024, 32)):
        for da, db in (("b16", "b16"), ("b16", "b8"), ("b8", "b4")):
            for wide_sums, l1_sums in ((False, False), (True, True), (False, True)):
                config = ttnn.MatmulMultiCoreReuseMultiCastDRAMShardedProgramConfig(
                    in0_block_w=k // 32 // cores // 2, per_core_M=1, per_core_N=n // 32 // cores, fused_activation=None
                )
                grid = f"width@{cores // 8}x8"

                def run(
                    a: Any,
                    config: Any = config,
                    k: int = k,
                    n: int = n,
                    db: str = db,
                    grid: str = grid,
                    wide_sums: bool = wide_sums,
                    l1_sums: bool = l1_sums,
                ) -> Any:
                    banks = device().dram_grid_size().x
                    shard = ttnn.ShardSpec(
                        ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(banks - 1, 0))}),
                        (k, -(-n // (32 * banks)) * 32),
                        ttnn.ShardOrientation.ROW_MAJOR,
                    )
                    place = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, shard)
                    b = ttnn.empty(
                        (1, 1, k, n), dtype=FORMATS[db], layout=ttnn.TILE_LAYOUT, device=device(), memory_config=place
                    )
                    return ttnn.matmul(
                        a,
                        b,
                        program_config=config,
                        memory_config=ttnn.L1_WIDTH_SHARDED_MEMORY_CONFIG,
                        compute_kernel_config=compute(wide_sums, l1_sums),
                    )

                yield call(
                    "matmul config",
                    "matmul",
                    T((1, 1, 32, k), da, "T", grid),
                    note=f"DRAM-sharded {k} {n} {db} {wide_sums} {l1_sums}",
                    run=run,
                )
