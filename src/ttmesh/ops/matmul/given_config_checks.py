"""What TT-NN requires of a matmul's program config that the caller gives: its grid, blocks and subblocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ttmesh.base.errors import require
from ttmesh.ops.configs.compute_config import WormholeComputeKernelConfig
from ttmesh.ops.configs.matmul_program_configs import (
    MatmulMultiCoreProgramConfig,
    MatmulMultiCoreReuseMultiCast1DProgramConfig,
    MatmulMultiCoreReuseProgramConfig,
    Multicast,
    ProgramConfig,
    corner,
)
from ttmesh.ops.matmul.matmul_blocks import MatmulCase
from ttmesh.ops.matmul.matmul_choice import FIX, Chosen

REGISTERS = 8  # tiles of the destination that a kernel adds up; half as many in float32, twice as many in full sync

_is_off: ContextVar[bool] = ContextVar("given program configs are not checked", default=False)


@contextmanager
def without_config_checks() -> Iterator[None]:
    """While entered, program configs are taken as they are: inside a fused operation that TT-NN does not check."""
    before = _is_off.set(True)
    try:
        yield
    finally:
        _is_off.reset(before)


def is_checked(config: ProgramConfig | None) -> bool:
    """Whether TT-NN's rules for this config are known here: not for rings of cores and shards in DRAM."""
    if _is_off.get():
        return False
    if isinstance(config, MatmulMultiCoreReuseMultiCast1DProgramConfig):
        return not config.gather_in0
    return isinstance(config, Chosen)


def check_given_config(config: Chosen, case: MatmulCase, kernel: WormholeComputeKernelConfig | None) -> None:
    """Refuse a grid beyond the chip's, empty blocks, and subblocks that do not fit the destination."""
    if isinstance(config, MatmulMultiCoreProgramConfig):
        return
    name, grid = type(config).__name__, corner(config.compute_with_storage_grid_size)
    whole = case.device_grid
    wrong = f"{name}: compute_with_storage_grid_size must be non-zero, got ({grid.x}, {grid.y})"
    require(grid.x > 0 and grid.y > 0, wrong, "at least a core", FIX)
    wrong = f"{name}: compute_with_storage_grid_size ({grid.x}, {grid.y}) must fit within device grid ({whole.x}, {whole.y})"
    require(grid.x <= whole.x and grid.y <= whole.y, wrong, f"at most {whole.x} x {whole.y} cores", FIX)
    for field in ("in0_block_w", "per_core_M", "per_core_N"):
        require(getattr(config, field) != 0, f"{name}: {field} is 0, which is not valid", "at least a tile", FIX)
    _check_blocks(config, case, name)
    full, wide = kernel is not None and kernel.dst_full_sync_en, case.fp32_dest
    registers = REGISTERS * (2 if full else 1) // (2 if wide else 1)
    columns, rows = config.out_subblock_w, config.out_subblock_h
    size = f"out_subblock_w {columns} times out_subblock_h {rows}"
    wrong = f"{name}: {size} needs to be at most {registers} to fit in hardware"
    require(columns * rows <= registers, wrong, f"at most {registers} tiles", "Choose smaller subblocks.")


def _check_blocks(config: MatmulMultiCoreReuseProgramConfig | Multicast, case: MatmulCase, name: str) -> None:
    depth = case.a.padded_shape[-2 if case.transpose_a else -1] // case.a.tile.tile_shape[1]
    divides: list[tuple[str, int, str, int]] = [("Kt", depth, "in0_block_w", config.in0_block_w)]
    for field in ("out_subblock_h", "out_subblock_w"):
        require(getattr(config, field) != 0, f"{name}: {field} is 0, which is not valid", "at least a tile", FIX)
    sides = (("h", "per_core_M", config.per_core_M), ("w", "per_core_N", config.per_core_N))
    if isinstance(config, Multicast):
        blocks = {"h": config.out_block_h or 0, "w": config.out_block_w or 0}
        for side, block in blocks.items():
            require(block != 0, f"{name}: out_block_{side} is 0, which is not valid", "at least a tile", FIX)
            subblock = f"out_subblock_{side}"
            divides.append((f"out_block_{side}", block, subblock, getattr(config, subblock)))
        divides += [(total, size, f"out_block_{side}", blocks[side]) for side, total, size in sides]
    else:
        for side, total, size in sides:
            subblock = f"out_subblock_{side}"
            divides.append((total, size, subblock, getattr(config, subblock)))
    for total, size, part, divisor in divides:
        wrong = f"{name}: {total} ({size}) must be divisible by {part} ({divisor})"
        require(size % divisor == 0, wrong, f"a divisor of {size}", f"Choose {part} so that it divides {total}.")
