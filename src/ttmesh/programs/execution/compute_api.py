"""The calls of compute kernels: unpack tiles from circular buffers into registers, compute, and pack them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, FLOATS, Arch, DataType, Layout, MathFidelity
from ttmesh.base.errors import MeshError, one_of
from ttmesh.chip.formats import packing
from ttmesh.chip.formats.storage import finish
from ttmesh.chip.formats.tiles import TILE_HEIGHT, TILE_WIDTH, tile_bytes
from ttmesh.chip.formats.tilize import tilize, untilize
from ttmesh.chip.numerics.exact_matmul import multiply_onto
from ttmesh.chip.numerics.fpu_config import PHASES, FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import add_elements, multiply_elements
from ttmesh.chip.numerics.packer import pack, to_bfloat16
from ttmesh.chip.numerics.unpacker import unpack
from ttmesh.programs.circular_buffers import CircularBufferError
from ttmesh.programs.execution.contents import touch
from ttmesh.programs.execution.kernel_core import KernelCore
from ttmesh.programs.execution.ordering import Site
from ttmesh.programs.execution.rings import PageRing
from ttmesh.programs.program import ComputeConfig

ELEMENTS = TILE_HEIGHT * TILE_WIDTH
TILE = (TILE_HEIGHT, TILE_WIDTH)

# The torch dtype of elements in L1, for formats that are plain arrays there.
_PLAIN = {
    DataType.BFLOAT16: torch.bfloat16,
    DataType.FLOAT32: torch.float32,
    DataType.INT32: torch.int32,
    DataType.UINT32: torch.int32,
    DataType.UINT16: torch.int16,
    DataType.UINT8: torch.uint8,
    DataType.INT8: torch.int8,
}
_MASKS = {DataType.UINT32: 0xFFFFFFFF, DataType.UINT16: 0xFFFF}

# <name>_tile(idst) of TT-Metal's vector unit, as torch computes it.
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs,
    "exp": torch.exp,
    "gelu": torch.nn.functional.gelu,
    "log": torch.log,
    "negative": torch.neg,
    "recip": torch.reciprocal,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}


class Compute(KernelCore):
    """The FPU and SFPU of a core. Registers hold tiles in tile order: [*lanes, tiles, 1024].

    `tiles=n` on an operation works on n tiles at once, from the given index on: what a loop over them would do.
    """

    packs = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self._kernel.config
        assert isinstance(config, ComputeConfig), "only compute kernels get these units"
        self._is_fp32 = config.fp32_dest_acc_en
        # Half of the destination registers at a time: 8 tiles of 16 bit, 4 of 32 (tt-metal, double-buffered dest).
        self._capacity = 4 if self._is_fp32 else 8
        self._state = "released"
        self._acquire_site: Site | None = None  # where
        self._registers: dict[int, torch.Tensor] = {}
        self._block: tuple[int, int, torch.Tensor] | None = None
        self._chip: FpuConfig | None = None  # how the FPU computes; None: float32, rounded once

    def follow_chip(self, arch: Arch) -> None:
        """Compute with the chip's arithmetic, bit for bit."""
        config = self._kernel.config
        assert isinstance(config, ComputeConfig), "only compute kernels get these units"
        fidelity = config.math_fidelity if config.math_fidelity in PHASES else MathFidelity.HiFi4
        self._chip = FpuConfig(arch, fidelity, self._is_fp32)

    # ---- registers

    def tile_regs_acquire(self) -> None:
        """Begin: registers are empty and the math unit may use them."""
        self._change_state("released", "acquired")
        self._acquire_site = self.actor.site()
        self._registers.clear()
        self._block = None

    def tile_regs_commit(self) -> None:
        """Pass the registers to the packer."""
        self._change_state("acquired", "committed")

    def tile_regs_wait(self) -> None:
        """Wait until the packer may use the registers."""
        self._change_state("committed", "packing")

    def tile_regs_release(self) -> None:
        """End: registers are free again."""
        self._change_state("packing", "released")

    # ---- arithmetic

    def copy_tile(self, cb_id: int, tile: int, dst: int, *, tiles: int = 1) -> None:
        """Registers from a circular buffer."""
        self._put(dst, self._unpack_tiles(cb_id, tile, tiles).clone())

    def add_tiles(self, cb_a: int, cb_b: int, tile_a: int, tile_b: int, dst: int, *, tiles: int = 1) -> None:
        """a + b."""
        chip = self._chip
        add = torch.add if chip is None else functools.partial(add_elements, config=chip)
        self._binary(add, cb_a, cb_b, tile_a, tile_b, dst, tiles)

    def sub_tiles(self, cb_a: int, cb_b: int, tile_a: int, tile_b: int, dst: int, *, tiles: int = 1) -> None:
        """a - b."""
        chip = self._chip
        subtract = torch.sub if chip is None else functools.partial(add_elements, config=chip, negate=True)
        self._binary(subtract, cb_a, cb_b, tile_a, tile_b, dst, tiles)

    def mul_tiles(self, cb_a: int, cb_b: int, tile_a: int, tile_b: int, dst: int, *, tiles: int = 1) -> None:
        """a * b."""
        chip = self._chip
        multiply = torch.mul if chip is None else functools.partial(multiply_elements, config=chip)
        self._binary(multiply, cb_a, cb_b, tile_a, tile_b, dst, tiles)

    def add_binary_tile(self, dst_a: int, dst_b: int, dst: int) -> None:
        """The sum of two registers."""
        self._put(dst, torch.add(self._get(dst_a, 1), self._get(dst_b, 1)))

    def mul_binary_tile(self, dst_a: int, dst_b: int, dst: int) -> None:
        """Two registers multiplied element by element."""
        self._put(dst, torch.mul(self._get(dst_a, 1), self._get(dst_b, 1)))

    def matmul_tiles(self, cb_a: int, cb_b: int, tile_a: int, tile_b: int, dst: int) -> None:
        """Add the matmul of two tiles to a register (to zero if it is empty)."""
        a, b = (
            untilize(self._unpack_tiles(cb, at, 1).float().contiguous(), TILE)
            for cb, at in ((cb_a, tile_a), (cb_b, tile_b))
        )
        held = self._registers.get(dst)
        if self._chip is not None:
            before = None if held is None else untilize(held.unsqueeze(-2).float().contiguous(), TILE)
            total = tilize(multiply_onto(a, b, before, self._chip))
            self._put(dst, total if self._is_fp32 else total.bfloat16())
            return
        matmul = tilize(torch.matmul(a, b))
        total = matmul if held is None else held.unsqueeze(-2).float() + matmul
        self._put(dst, total if self._is_fp32 else total.bfloat16())

    def sfpu(self, name: str, dst: int, *, tiles: int = 1) -> None:
        """A function of the vector unit on registers; `exp_tile(dst)` is `sfpu("exp", dst)`."""
        if name not in UNARY:
            raise MeshError(
                f"no {name}_tile",
                expected=one_of(UNARY),
                fix="Use a function of this list, or compute it from several.",
            )
        held = self._get(dst, tiles)
        self._put(dst, UNARY[name](held.float()).to(held.dtype))

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.endswith("_tile") and not name.startswith("_"):
            return lambda dst, *, tiles=1: self.sfpu(name.removesuffix("_tile"), dst, tiles=tiles)
        raise AttributeError(f"compute kernels have no {name}; docs/programs.md lists what they have")

    # ---- out

    def pack_tile(self, dst: int, cb_id: int, tile: int | None = None, *, tiles: int = 1) -> None:
        """Registers into reserved pages of a circular buffer: one after the other, or `tile` pages after the pointer."""
        if self._state != "packing":
            raise self._make_order_error("pack_tile", "tile_regs_commit and tile_regs_wait")
        ring, values, lanes = self._find_tile_ring(cb_id), self._get(dst, tiles), self._chips.lanes
        dtype = ring.placement.dtype
        first = ring.advance_packer(tiles) if tile is None else tile
        page, start = ring.placement.page_bytes, ring.span(first, tiles, self.actor, to_write=True) - self._l1.start
        touch(self._l1, start, tiles * page, self._chips, self.actor, writes=True)
        raw = self._l1.bytes.narrow(-1, start, tiles * page)
        if dtype in _PLAIN:
            out = raw.view(_PLAIN[dtype]).view(*lanes, tiles, ELEMENTS)
            if self._chip is not None and dtype is DataType.BFLOAT16:
                values = to_bfloat16(values.float())
            out.copy_(values if dtype in (DataType.BFLOAT16, DataType.FLOAT32) else finish(values, dtype))
            return
        tiled = untilize(values.float().contiguous(), TILE)
        rounded = finish(tiled, dtype) if self._chip is None else pack(tiled, dtype)
        raw.copy_(packing.pack(rounded, dtype, Layout.TILE).flatten(-2))

    def finish(self) -> None:
        """Refuse a kernel that ends without releasing the registers."""
        super().finish()
        if self._state != "released":
            assert self._acquire_site is not None, "registers were acquired"
            raise self._make_order_error(f"{self._acquire_site}: the end of the kernel", "tile_regs_release")

    # ---- inside

    def _binary(
        self,
        function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        cb_a: int,
        cb_b: int,
        tile_a: int,
        tile_b: int,
        dst: int,
        tiles: int,
    ) -> None:
        a, b = self._unpack_tiles(cb_a, tile_a, tiles), self._unpack_tiles(cb_b, tile_b, tiles)
        if self._chip is not None and a.is_floating_point() and b.is_floating_point():
            result = function(a.float(), b.float())
            self._put(dst, result if self._is_fp32 else result.bfloat16())
            return
        self._put(dst, function(a, b))

    def _unpack_tiles(self, cb_id: int, first: int, tiles: int) -> torch.Tensor:
        """Tiles of a circular buffer as values; they share its memory where the format allows."""
        ring, lanes = self._find_tile_ring(cb_id), self._chips.lanes
        dtype, page = ring.placement.dtype, ring.placement.page_bytes
        start = ring.span(first, tiles, self.actor, to_write=False) - self._l1.start
        touch(self._l1, start, tiles * page, self._chips, self.actor, writes=False)
        raw = self._l1.bytes.narrow(-1, start, tiles * page)
        if dtype in _PLAIN:
            values = raw.view(_PLAIN[dtype]).view(*lanes, tiles, ELEMENTS)
            if dtype in _MASKS:
                values = values.to(torch.int64) & _MASKS[dtype]
        else:
            pages = raw.view(*lanes, tiles, page).contiguous()
            values = tilize(packing.unpack(pages, TILE, dtype, Layout.TILE).float())
        if dtype in FLOATS:
            if self._chip is not None and dtype is DataType.FLOAT32:
                values = unpack(values, dtype, fp32_dest=self._is_fp32)
            return values.float() if self._is_fp32 else values.bfloat16()
        return values

    def _find_tile_ring(self, cb_id: int) -> PageRing:
        ring = self._ring(cb_id)
        placement = ring.placement
        if placement.page_bytes != tile_bytes(placement.dtype):
            raise CircularBufferError(
                f"cb {cb_id} has pages of {placement.page_bytes} B, a {placement.dtype.name} tile has "
                f"{tile_bytes(placement.dtype)}",
                expected="pages of one tile",
                fix="Leave the page size of a compute kernel's buffers out.",
            )
        return ring

    def _put(self, dst: int, values: torch.Tensor) -> None:
        tiles = values.shape[-2]
        if self._state != "acquired":
            raise self._make_order_error("arithmetic", "tile_regs_acquire")
        if dst < 0 or dst + tiles > self._capacity:
            raise MeshError(
                f"registers {dst} to {dst + tiles - 1} of {self._capacity}",
                expected=f"at most {self._capacity} tiles {'with fp32_dest_acc_en' if self._is_fp32 else 'of 16 bit'}",
                fix="Pack earlier or work on fewer tiles.",
            )
        for i in range(tiles):
            self._registers[dst + i] = values.select(-2, i)
        self._block = (dst, tiles, values)

    def _get(self, dst: int, tiles: int) -> torch.Tensor:
        if self._block is not None and self._block[:2] == (dst, tiles):
            return self._block[2]
        missing = [i for i in range(dst, dst + tiles) if i not in self._registers]
        if missing:
            raise MeshError(
                f"register {missing[0]} is empty",
                expected="a register that holds a tile",
                fix="Call copy_tile or an arithmetic call for it first.",
            )
        return torch.stack([self._registers[i] for i in range(dst, dst + tiles)], -2)

    def _change_state(self, before: str, after: str) -> None:
        if self._state != before:
            raise self._make_order_error(f"tile_regs ({after})", before)
        self._state = after

    def _make_order_error(self, what: str, expected: str) -> MeshError:
        return MeshError(
            f"{what} while the registers are {self._state}",
            expected=f"{expected} before it",
            fix="Call in this order: acquire, arithmetic, commit, wait, pack, release.",
        )


assert _PLAIN.keys().isdisjoint(BLOCK_FLOATS), "block floats are packed tile by tile"
