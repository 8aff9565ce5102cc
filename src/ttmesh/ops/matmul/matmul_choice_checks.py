"""What TT-NN requires of operands and result under a matmul's program config, given or chosen."""

from __future__ import annotations

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreProgramConfig,
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseMultiCastProgramConfig,
    MatmulMultiCoreReuseProgramConfig,
    Multicast,
    corner,
)
from ttmesh.ops.matmul.matmul_blocks import TILE, MatmulCase
from ttmesh.ops.matmul.matmul_choice import (
    BLOCK_SHARDED,
    FIX,
    HEIGHT_SHARDED,
    INTERLEAVED,
    WIDTH_SHARDED,
    Chosen,
    Sides,
    sides_of,
)
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.shard_config import div_up


def check_grid(config: Chosen, case: MatmulCase) -> None:
    """Refuse blocks of the result, or its shards, that do not fit the cores of the program."""
    if isinstance(config, MatmulMultiCoreProgramConfig):
        return
    s, name = sides_of(case), type(config).__name__
    grid = corner(config.compute_with_storage_grid_size)
    if isinstance(config, MatmulMultiCoreReuseProgramConfig):
        for memory in (case.a.memory_config, case.b.memory_config):
            if memory.shard_spec is not None and memory.is_l1():
                blocks = s.batch_a * s.m // TILE // config.per_core_M * (s.n // TILE // config.per_core_N)
                cores = memory.shard_spec.num_cores()
                wrong = (
                    f"{name}: num_output_blocks ({blocks}) must be evenly divisible by the number of cores in the input "
                    f"shard grid ({cores})"
                )
                require(blocks % cores == 0, wrong, "a block per core", FIX)
                break
        sharded = any(m.is_sharded() for m in (case.a.memory_config, case.b.memory_config, case.out))
        _check_extent(name, case.out, case.device_grid if sharded else grid)
        return
    rows = (s.batch_a if config.fuse_batch else 1) * s.m // TILE
    blocks_y, blocks_x = div_up(rows, config.per_core_M), div_up(s.n // TILE, config.per_core_N)
    if isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig):
        cores = grid.x * grid.y
        wrong = f"{name}: Hop cores are not supported for any mode besides gather_in0."
        require(not config.hop_cores.ranges(), wrong, "no hop_cores", FIX)
        wrong = f"{name}: Number of blocks exceeds number of cores: {blocks_y * blocks_x} blocks > {cores} cores"
        require(blocks_y * blocks_x <= cores, wrong, f"at most {cores} blocks", FIX)
        if config.mcast_in0:
            wrong = (
                f"{name}: mcast_in0 requires M ({rows}) to fit within a single per_core_M block ({config.per_core_M}), got "
                f"num_blocks_y={blocks_y}"
            )
            require(blocks_y == 1, wrong, "one row of blocks", FIX)
        else:
            wrong = (
                f"{name}: mcast_in1 requires N ({s.n // TILE}) to fit within a single per_core_N block "
                f"({config.per_core_N}), got num_blocks_x={blocks_x}"
            )
            require(blocks_x == 1, wrong, "one column of blocks", FIX)
            _check_tails(config, rows, s.n // TILE, blocks_y, name)
    else:
        if config.transpose_mcast:
            blocks_x, blocks_y = blocks_y, blocks_x
        for axis, blocks, cores, line in (("x", blocks_x, grid.x, "columns"), ("y", blocks_y, grid.y, "rows")):
            wrong = (
                f"{name}: Num output blocks along {axis} ({blocks}) must be smaller than or equal to the number of {line} "
                f"in compute grid ({cores})!"
            )
            require(blocks <= cores, wrong, f"at most {cores} blocks", FIX)
    _check_extent(name, case.out, grid)


def _check_tails(
    config: MatmulMultiCoreReuseMultiCast1DProgramConfig, rows: int, columns: int, blocks_y: int, name: str
) -> None:
    """Refuse weights or rows that leave whole inner blocks of a core empty."""
    wide, high = config.out_block_w or config.per_core_N, config.out_block_h or config.per_core_M
    filled, held = div_up(columns, wide), config.per_core_N // wide
    wrong = (
        f"{name}: mcast_in1 requires the logical N tail to be in the final internal W block; got N={columns}, "
        f"per_core_N={config.per_core_N}, out_block_w={wide} (logical blocks={filled}, physical blocks={held})."
    )
    require(filled == held, wrong, "a smaller per_core_N", FIX)
    if blocks_y > 1:
        return
    filled, held = div_up(rows, high), config.per_core_M // high
    wrong = (
        f"{name}: a single-Y mcast_in1 sender requires the logical M tail to be in the final internal H block; got "
        f"M={rows}, per_core_M={config.per_core_M}, out_block_h={high} (logical blocks={filled}, physical blocks={held})."
    )
    require(filled == held, wrong, "a smaller per_core_M", FIX)


def _check_extent(name: str, out: MemoryConfig, extent: CoreCoord) -> None:
    if not out.is_l1() or out.shard_spec is None:
        return
    box = out.shard_spec.grid.bounding_box()
    wrong = f"{name}: output shard grid {out.shard_spec.grid} must lie within extent {extent.x}-{extent.y}"
    require(box.end.x < extent.x and box.end.y < extent.y, wrong, "shards on the cores that compute", FIX)


def check_operands(config: Chosen, case: MatmulCase) -> None:
    """Refuse memory of operands and result that the chosen program does not take."""
    s, name = sides_of(case), type(config).__name__
    if isinstance(config, Multicast):
        _check_fused_batch(config, case, s, name)
    if isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig):
        _check_line(config, case, s, name)
    elif isinstance(config, MatmulMultiCoreReuseMultiCastProgramConfig):
        _check_multicast(config, case, s, name)
    elif isinstance(config, MatmulMultiCoreReuseProgramConfig):
        _check_reuse(config, case, s, name)
    else:
        for operand, memory in (
            ("Input A", case.a.memory_config),
            ("Input B", case.b.memory_config),
            ("Output", case.out),
        ):
            layout = memory.memory_layout
            wrong = f"{name}: {operand} memory layout must be INTERLEAVED, got: TensorMemoryLayout::{layout.name}"
            require(layout is INTERLEAVED, wrong, "interleaved memory", FIX)


def _check_fused_batch(config: Multicast, case: MatmulCase, s: Sides, name: str) -> None:
    wrong = (
        f"{name}: Matmul with fused batch requires input tensors of shapes BCMK*11KN=BCMN or equivalent. Please change the "
        "second input tensor or adjust the program config."
    )
    require(not config.fuse_batch or s.batch_b == 1, wrong, "one matrix of weights", FIX)
    rows = s.m // TILE
    wrong = (
        f"{name}: transpose_a with fuse_batch is not supported when batch dimensions exist and M_per_batch > 1 "
        f"(batch_size={s.batch_a}, M_per_batch={rows})"
    )
    fused = config.fuse_batch and case.transpose_a
    require(not fused or s.batch_a == 1 or rows == 1, wrong, "fuse_batch=False", FIX)


def _require_alike(name: str, a: MemoryConfig, out: MemoryConfig) -> None:
    for kind, own, other in (
        ("buffer types", a.buffer_type, out.buffer_type),
        ("memory layouts", a.memory_layout, out.memory_layout),
    ):
        shown = type(own).__name__
        wrong = (
            f"{name}: input A and output {kind} must match, got input: {shown}::{own.name} vs output: "
            f"{shown}::{other.name}"
        )
        require(own is other, wrong, f"{own.name}, as A has", FIX)


def _require_equal(name: str, first: str, a: int, second: str, b: int) -> None:
    require(a == b, f"{name}: {first} ({a}) must equal {second} ({b})", f"{first} of {b}", FIX)


def _check_subblocks(
    config: MatmulMultiCoreReuseMultiCast1DProgramConfig | MatmulMultiCoreReuseMultiCastProgramConfig, name: str
) -> None:
    n = config.per_core_N
    for part, wide, high in (
        ("out_subblock", config.out_subblock_w, config.out_subblock_h),
        ("out_block", config.out_block_w, config.out_block_h),
    ):
        wrong = f"{name}: {part}_w ({wide}) must equal per_core_N ({n}) or {part}_h ({high}) must be 1"
        require(wide == n or high == 1, wrong, "whole rows of a core's block", FIX)


def _check_line(config: MatmulMultiCoreReuseMultiCast1DProgramConfig, case: MatmulCase, s: Sides, name: str) -> None:
    shards, other, out = case.a.memory_config.shard_spec, case.b.memory_config, case.out
    rows, k, n = (s.batch_a if config.fuse_batch else 1) * s.m // TILE, s.k // TILE, s.n // TILE
    layout, wanted = case.a.memory_config.memory_layout, WIDTH_SHARDED if config.mcast_in0 else HEIGHT_SHARDED
    if shards is not None:
        require(config.fuse_batch, f"{name}: fuse_batch must be enabled when input A is sharded", "fuse_batch", FIX)
        suffix = " when mcast_in0 or gather_in0 is set" if config.mcast_in0 else ""
        wrong = f"{name}: input A must be {wanted.name}{suffix}, got: TensorMemoryLayout::{layout.name}"
        require(layout is wanted, wrong, f"{wanted.name} A", FIX)
        if out.is_sharded():
            _require_alike(name, case.a.memory_config, out)
        own = shards.orientation
        wrong = f"{name}: input A shard orientation must be ROW_MAJOR, got: ShardOrientation::{own.name}"
        require(own is ShardOrientation.ROW_MAJOR, wrong, "ROW_MAJOR", FIX)
        high, wide = shards.shape[0] // TILE, shards.shape[1] // TILE
        if config.mcast_in0:
            _require_equal(name, "M", rows, "per_core_M", config.per_core_M)
        else:
            blocks, cores = div_up(rows, config.per_core_M), shards.num_cores()
            many = f"number of M blocks ceil(M/per_core_M)={blocks}"
            wrong = f"{name}: {many} must not exceed input A shard grid cores ({cores})"
            require(blocks <= cores, wrong, "a core per block", FIX)
        wrong = (
            f"{name}: per_core_M ({config.per_core_M}) must equal shard_shape[0] ({shards.shape[0]}) / in0_tile height "
            f"({TILE})"
        )
        require(config.per_core_M == high, wrong, "A's shards", FIX)
        if config.mcast_in0:
            depth = config.in0_block_w
            wrong = (
                f"{name}: shard_shape[1] ({shards.shape[1]}) / in0_tile width ({TILE}) must be divisible by in0_block_w "
                f"({depth})"
            )
            require(wide % depth == 0, wrong, "a divisor", FIX)
        else:
            wrong = f"{name}: K ({k}) must equal shard_shape[1] ({shards.shape[1]}) / in0_tile width ({TILE})"
            require(k == wide, wrong, "whole rows in a shard", FIX)
    if out.is_sharded():
        wide_line = _is_line(out, rows=config.mcast_in0)
        line = "row" if config.mcast_in0 else "column"
        wrong = (
            f"{name}: output memory layout must be {wanted.name} or BLOCK_SHARDED on a 1-{line} grid, got: "
            f"TensorMemoryLayout::{out.memory_layout.name}"
        )
        require(out.memory_layout is wanted or wide_line, wrong, f"a {wanted.name} result", FIX)
        if config.mcast_in0:
            _require_equal(name, "M", rows, "per_core_M", config.per_core_M)
        else:
            _require_equal(name, "N", n, "per_core_N", config.per_core_N)
        _check_subblocks(config, name)
    layout_b = f"TensorMemoryLayout::{other.memory_layout.name}"
    if not config.mcast_in0:
        wrong = f"{name}: input B must be INTERLEAVED, got: {layout_b}"
        require(other.memory_layout is INTERLEAVED, wrong, "interleaved weights", FIX)
    elif other.shard_spec is not None and other.is_l1():
        wrong = f"{name}: input B in L1 must be WIDTH_SHARDED, got: {layout_b}"
        require(other.memory_layout is WIDTH_SHARDED, wrong, "weights in width shards", FIX)
        wide = other.shard_spec.shape[1] // TILE
        wrong = f"{name}: input B shard width in tiles ({wide}) must equal per_core_N ({config.per_core_N})"
        require(wide == config.per_core_N, wrong, f"shards of {config.per_core_N} tiles", FIX)
    if config.mcast_in0 and shards is not None:
        grid = corner(config.compute_with_storage_grid_size)
        used, cores = max(shards.num_cores(), div_up(n, config.per_core_N)), grid.x * grid.y
        wrong = f"Target number of cores {used} is greater than total available cores {cores}"
        require(used <= cores, wrong, "a grid that holds A's cores", FIX)


def _is_line(out: MemoryConfig, *, rows: bool) -> bool:
    if out.memory_layout is not BLOCK_SHARDED or out.shard_spec is None:
        return False
    size = out.shard_spec.grid.bounding_box().grid_size()
    return (size.y if rows else size.x) == 1


def _check_rows_of_cores(
    config: MatmulMultiCoreReuseMultiCastProgramConfig,
    memory: MemoryConfig,
    shards: ShardSpec,
    out: MemoryConfig,
    s: Sides,
    name: str,
) -> None:
    """A in shards: blocks in the order that the multicast runs in, or whole rows on one column of cores."""
    layout, wide, depth = memory.memory_layout, shards.shape[1] // TILE, config.in0_block_w
    wrong = f"{name}: Unsupported memory layout TensorMemoryLayout::{layout.name}."
    require(layout in (BLOCK_SHARDED, HEIGHT_SHARDED), wrong, "blocks or rows in shards", FIX)
    if layout is BLOCK_SHARDED:
        wanted = ShardOrientation.COL_MAJOR if config.transpose_mcast else ShardOrientation.ROW_MAJOR
        kind = "transpose" if config.transpose_mcast else "non-transpose"
        wrong = (
            f"{name}: Input tensor A must have {wanted.name} shard orientation for {kind} MCAST, got: "
            f"ShardOrientation::{shards.orientation.name}"
        )
        require(shards.orientation is wanted, wrong, wanted.name, FIX)
        if out.is_sharded():
            _require_alike(name, memory, out)
        return
    wrong = f"{name}: Transpose MCAST not supported with HEIGHT_SHARDED layout"
    require(not config.transpose_mcast, wrong, "transpose_mcast=False", FIX)
    _require_equal(name, "K", s.k // TILE, "in0_block_w", depth)
    _require_equal(name, "in0_block_w", depth, "shard_shape[1] / in0_tile.get_width()", wide)
    box = shards.grid.bounding_box()
    wrong = (
        f"{name}: HEIGHT_SHARDED input A must have a single-column shard grid (got x={box.start.x} to x={box.end.x}); use "
        "MatmulMultiCoreReuseProgramConfig for multi-column HEIGHT_SHARDED inputs"
    )
    require(box.start.x == box.end.x, wrong, "one column of cores", FIX)


def _check_multicast(config: MatmulMultiCoreReuseMultiCastProgramConfig, case: MatmulCase, s: Sides, name: str) -> None:
    shards, other, out = case.a.memory_config.shard_spec, case.b.memory_config, case.out
    if shards is not None:
        require(config.fuse_batch, f"{name}: Batch fusion is required when input A is sharded", "fuse_batch", FIX)
        _check_rows_of_cores(config, case.a.memory_config, shards, out, s, name)
        _require_equal(
            name, "per_core_M", config.per_core_M, "shard_shape[0] / in0_tile.get_height()", shards.shape[0] // TILE
        )
        wide = shards.shape[1] // TILE
        depth = config.in0_block_w
        wrong = f"{name}: shard_shape[1] / in0_tile.get_width() ({wide}) must be divisible by in0_block_w ({depth})"
        require(wide % config.in0_block_w == 0, wrong, "a divisor", FIX)
    if other.is_sharded():
        layout = other.memory_layout
        wrong = f"{name}: Transpose MCAST not supported when input B is sharded"
        require(not config.transpose_mcast, wrong, "transpose_mcast=False", FIX)
        wrong = (
            f"{name}: Input B memory layout must be WIDTH_SHARDED, HEIGHT_SHARDED, or DRAM ND_SHARDED, got: "
            f"TensorMemoryLayout::{layout.name}"
        )
        require(
            layout in (WIDTH_SHARDED, HEIGHT_SHARDED, TensorMemoryLayout.ND_SHARDED), wrong, "interleaved weights", FIX
        )
        if other.is_l1() and other.shard_spec is not None:
            wrong = f"{name}: HEIGHT_SHARDED input B is only supported in DRAM, got: BufferType::L1"
            require(layout is not HEIGHT_SHARDED, wrong, "interleaved weights", FIX)
            first = case.a.memory_config.memory_layout
            wrong = (
                f"{name}: Error - non-DRAM width sharded input B requires input A to be interleaved or height sharded, "
                f"rather than TensorMemoryLayout::{first.name}"
            )
            require(first in (HEIGHT_SHARDED, INTERLEAVED), wrong, "interleaved memory", FIX)
            _require_equal(
                name, "per_core_N", config.per_core_N, "input tensor B shard shape[1] / in1_tile.get_width()",
                other.shard_spec.shape[1] // TILE,
            )  # fmt: skip
    if out.is_sharded():
        wrong = f"{name}: Output memory layout must be BLOCK_SHARDED, got: TensorMemoryLayout::{out.memory_layout.name}"
        require(out.memory_layout is BLOCK_SHARDED, wrong, "a result in blocks", FIX)
        _check_subblocks(config, name)


def _check_reuse(config: MatmulMultiCoreReuseProgramConfig, case: MatmulCase, s: Sides, name: str) -> None:
    shards, other, out = case.a.memory_config.shard_spec, case.b.memory_config, case.out
    m, rows, n, per_core_m = s.m // TILE, s.batch_a * s.m // TILE, s.n // TILE, config.per_core_M
    if per_core_m > m:
        wrong = f"{name}: per_core_M, {per_core_m}, must be a multiple of M, {m} if per_core_M > M!"
        require(per_core_m % m == 0, wrong, "whole matrices", FIX)
        wrong = f"{name}: input a total height, {rows}, must be divisible by per_core_M, {per_core_m}!"
        require(rows % per_core_m == 0, wrong, "whole blocks", FIX)
    else:
        wrong = f"{name}: per_core_M, {per_core_m}, must divide M, {m}, if per_core_M < M!"
        require(m % per_core_m == 0, wrong, "a divisor", FIX)
    _require_equal(name, "N", n, "per_core_N", config.per_core_N)
    if shards is not None:
        layout = case.a.memory_config.memory_layout
        wrong = f"{name}: input A memory layout must not be WIDTH_SHARDED, got: TensorMemoryLayout::{layout.name}"
        require(layout is not WIDTH_SHARDED, wrong, "other shards", FIX)
        _require_equal(name, "K", s.k, "in0 shard_shape[1]", shards.shape[1])
    wrong = f"{name}: Batch broadcasting is not supported for the chosen program config"
    require(not (s.batch_a > 1 and s.batch_b == 1), wrong, "as many matrices in B", FIX)
    if s.batch_a > 1 and s.batch_b > 1:
        wrong = (
            f"{name}: out_subblock_h ({config.out_subblock_h}) needs to divide M ({m}) evenly and does not. Please update "
            "your program config."
        )
        require(m % config.out_subblock_h == 0, wrong, "a divisor", FIX)
    if other.shard_spec is not None:
        wrong = f"{name}: per_core_M ({per_core_m}) must be a multiple of M ({m}) when input B is sharded"
        require(per_core_m % m == 0, wrong, "whole matrices", FIX)
        high, wide = other.shard_spec.shape
        wrong = f"{name}: Input B shard shape[1] ({wide}) must equal padded shape[-1] ({s.n})"
        require(wide == s.n, wrong, "whole rows in a shard", FIX)
        wrong = f"{name}: Input B shard shape[0] ({high}) must be divisible by K ({s.k})"
        require(high % s.k == 0, wrong, "whole matrices in a shard", FIX)
    if out.is_sharded():
        wrong = (
            f"{name}: Output memory layout must not be WIDTH_SHARDED, got: TensorMemoryLayout::{out.memory_layout.name}"
        )
        require(out.memory_layout is not WIDTH_SHARDED, wrong, "another kind of shards", FIX)
        wide, high = config.out_subblock_w, config.out_subblock_h
        wrong = (
            f"{name}: Either out_subblock_w ({wide}) must equal per_core_N ({config.per_core_N}) or out_subblock_h ({high}) "
            "must be 1"
        )
        require(wide == config.per_core_N or high == 1, wrong, "whole rows of a core's block", FIX)
    owner = next((spec for spec in (shards, other.shard_spec, out.shard_spec) if spec is not None), None)
    blocks = rows // per_core_m * (n // config.per_core_N)
    cores = blocks if owner is None else owner.num_cores()
    wrong = f"num_output_blocks_total ({blocks}) must be >= num_cores ({cores}); some cores would have no work"
    require(blocks >= cores, wrong, "a block per core", FIX)
