"""A call of the list, its tensors and memories, and the device that they are on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ttnn

FORMATS = {
    "b16": ttnn.bfloat16, "f32": ttnn.float32, "b8": ttnn.bfloat8_b, "b4": ttnn.bfloat4_b,
    "u32": ttnn.uint32, "i32": ttnn.int32, "u16": ttnn.uint16, "u8": ttnn.uint8,
}  # fmt: skip
LAYOUTS = {"T": ttnn.TILE_LAYOUT, "R": ttnn.ROW_MAJOR_LAYOUT}
SQUARE, MIDDLE, LARGE, ODD = (1, 1, 32, 32), (1, 1, 128, 512), (1, 1, 1024, 2048), (1, 3, 50, 70)
BATCH, WIDE, TALL = (2, 4, 96, 256), (1, 1, 32, 8192), (1, 1, 4096, 64)
CHIPS = int(os.environ.get("CHIPS", "1"))  # of the row of chips that the calls run on
SHAPES = (SQUARE, MIDDLE, LARGE, ODD, BATCH, WIDE, TALL)


@functools.cache
def device() -> Any:
    """The device of all calls."""
    if CHIPS > 1:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    return ttnn.open_mesh_device(ttnn.MeshShape(1, CHIPS))


def close() -> None:
    """Close it."""
    ttnn.close_mesh_device(device())


@dataclass(frozen=True)
class T:
    """A tensor: shape, format, layout and memory (dram, l1, height, width, block or rows x columns of cores)."""

    shape: tuple[int, ...]
    dtype: str = "b16"
    layout: str = "T"
    memory: str = "dram"

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))}:{self.dtype}:{self.layout}:{self.memory}"

    def make(self) -> Any:
        """Allocate it."""
        config = memory(self.memory, self.shape)
        dtype, layout = FORMATS[self.dtype], LAYOUTS[self.layout]
        return ttnn.empty(self.shape, dtype=dtype, layout=layout, device=device(), memory_config=config)


def memory(kind: str, shape: Sequence[int]) -> Any:
    """A memory configuration by its name, for a shape."""
    if kind in ("dram", "l1"):
        return {"dram": ttnn.DRAM_MEMORY_CONFIG, "l1": ttnn.L1_MEMORY_CONFIG}[kind]
    name, _, cores = kind.partition("@")
    rows, columns = 1, -(-shape[-1] // 32)
    for size in shape[:-2]:
        rows *= size
    rows *= -(-shape[-2] // 32)
    if cores:
        y, x = map(int, cores.split("x"))
    elif name == "height":
        y, x = 1, next(n for n in (8, 4, 3, 2, 1) if rows % n == 0)
    elif name == "width":
        y, x = 1, next(n for n in (8, 4, 3, 2, 1) if columns % n == 0)
    else:
        y, x = (next(n for n in (4, 2, 1) if size % n == 0) for size in (rows, columns))
    strategy = getattr(ttnn.ShardStrategy, name.upper())
    return ttnn.create_sharded_memory_config(tuple(shape), core_grid=ttnn.CoreGrid(y=y, x=x), strategy=strategy)


@dataclass(frozen=True)
class Call:
    """One call of the list."""

    family: str
    text: str
    tensors: tuple[T | list[T], ...]
    run: Callable[..., Any]

    def prepare(self) -> list[Any]:
        """Make its tensors."""
        return [[one.make() for one in t] if isinstance(t, list) else t.make() for t in self.tensors]


def call(
    family: str, name: str, *tensors: Any, note: str = "", run: Callable[..., Any] | None = None, **options: Any
) -> Call:
    """A call of an operation by name; `run` where it is not simply called with the tensors."""
    function = run or (lambda *given: find(name)(*given, **options))
    shown = ", ".join([*("+".join(map(str, t)) if isinstance(t, list) else str(t) for t in tensors), note])
    plain = {key: value for key, value in options.items() if type(value) in (bool, int, float, str, tuple, list)}
    return Call(family, f"{name}({shown}{plain or ''})", tensors, function)


def find(name: str) -> Any:
    """An operation by its name below ttnn."""
    found: Any = ttnn
    for part in name.split("."):
        found = getattr(found, part)
    return found


def compute(wide_sums: bool, l1_sums: bool = False) -> Any:
    """A compute configuration with sums in float32 or not."""
    return ttnn.init_device_compute_kernel_config(
        device().arch(), math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=wide_sums, packer_l1_acc=l1_sums
    )
