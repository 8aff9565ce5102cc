"""Tiles, rows and pages in bytes, and how much of a tensor one core works on."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import ELEMENT_BYTES, Arch, BufferType, DataType, Layout
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
SQUARE = Tile((TILE, TILE))
BFLOAT16, FLOAT32 = (tile_bytes(dtype, SQUARE) for dtype in (DataType.BFLOAT16, DataType.FLOAT32))
L1_ALIGNMENT = 16
HALF_L1 = 643_904  # bytes: half of a core's L1 less what lies below the circular buffers


def page(dtype: DataType) -> int:
    """Bytes of a tile of 32 x 32."""
    return tile_bytes(dtype, SQUARE)


def page_of(spec: TensorSpec) -> int:
    """Bytes of one of its tiles; of rows, of the tile that they would be."""
    return tile_bytes(spec.dtype, spec.tile if spec.layout is Layout.TILE else SQUARE)


def columns(spec: TensorSpec) -> int:
    """Tiles across."""
    return max(-(-(spec.padded_shape[-1] if spec.shape else 1) // TILE), 1)


def rows(spec: TensorSpec) -> int:
    """Rows of tiles of one matrix."""
    return max(-(-(spec.padded_shape[-2] if len(spec.shape) > 1 else 1) // TILE), 1)


def matrices(spec: TensorSpec) -> int:
    """Matrices of the last two dims."""
    return prod(spec.padded_shape[:-2]) if len(spec.shape) > 2 else 1


def in_l1_shards(spec: TensorSpec) -> bool:
    """Whether a core's part of it is in the core's own L1."""
    return spec.memory_config.is_sharded() and spec.memory_config.is_l1()


def element_bytes(spec: TensorSpec) -> int:
    """Bytes of a number in a row; block floats have no rows and count as bfloat16."""
    return ELEMENT_BYTES.get(spec.dtype, 2)


def alignment(spec: TensorSpec, arch: Arch) -> int:
    """Where pages of its memory begin: in DRAM at multiples of 32 bytes (Blackhole: 64), in L1 of 16."""
    if spec.memory_config.buffer_type is not BufferType.DRAM:
        return L1_ALIGNMENT
    return 64 if arch is Arch.BLACKHOLE else 32


def align(size: int, step: int) -> int:
    """The next multiple."""
    return -(-size // step) * step


def row_bytes(spec: TensorSpec, arch: Arch) -> int:
    """Bytes of a row of its last dim, with what fills it up to the next page."""
    return align((spec.padded_shape[-1] if spec.shape else 1) * element_bytes(spec), alignment(spec, arch))


def has_float32_sums(program: ProgramCall, default: bool) -> bool:
    """Whether sums are kept in float32, as the compute configuration says."""
    config = program.options.get("compute_kernel_config")
    return default if config is None else bool(getattr(config, "fp32_dest_acc_en", default))


def fewest_per_core(units: int, cores: int) -> int:
    """Units of work of the cores that get fewest, where they are divided over all of them."""
    return max(units // cores, 1)


def most_per_core(units: int, cores: int) -> int:
    """Units of work of the cores that get most."""
    return max(-(-units // cores), 1)
