"""Number formats, layouts and other small choices, named and numbered as TT-NN numbers them."""

from __future__ import annotations

from enum import Enum, IntEnum


class PrintedEnum(IntEnum):
    """An enum that prints as TT-NN's do, `DataType.BFLOAT16`, in reprs and f-strings too."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return str(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __bool__(self) -> bool:
        return True  # a choice, not a number: `dtype or default` must keep BFLOAT16, which is 0


class DataType(PrintedEnum):
    """The format of an element (tt-metal tensor_types.hpp gives the numbers)."""

    BFLOAT16 = 0
    FLOAT32 = 1
    UINT32 = 2
    BFLOAT8_B = 3
    BFLOAT4_B = 4
    UINT8 = 5
    UINT16 = 6
    INT32 = 7
    FP8_E4M3 = 8
    INT8 = 9
    INVALID = 10


bfloat16 = DataType.BFLOAT16
float32 = DataType.FLOAT32
uint32 = DataType.UINT32
bfloat8_b = DataType.BFLOAT8_B
bfloat4_b = DataType.BFLOAT4_B
uint8 = DataType.UINT8
uint16 = DataType.UINT16
int32 = DataType.INT32
fp8_e4m3 = DataType.FP8_E4M3
int8 = DataType.INT8

BLOCK_FLOATS = frozenset({bfloat8_b, bfloat4_b})
FLOATS = frozenset({float32, bfloat16, bfloat8_b, bfloat4_b, fp8_e4m3})
INTEGERS = frozenset({uint32, uint16, uint8, int32, int8})

# Bytes per element of the formats that have a whole number of them; block floats are sized per tile.
ELEMENT_BYTES = {bfloat16: 2, float32: 4, uint32: 4, uint8: 1, uint16: 2, int32: 4, fp8_e4m3: 1, int8: 1}


class Layout(PrintedEnum):
    """How elements are ordered in memory."""

    ROW_MAJOR = 0
    TILE = 1
    INVALID = 2


ROW_MAJOR_LAYOUT = Layout.ROW_MAJOR
TILE_LAYOUT = Layout.TILE


class BufferType(PrintedEnum):
    """Which memory of a chip (facts/monitor.md gives the numbers)."""

    DRAM = 0
    L1 = 1
    SYSTEM_MEMORY = 2
    L1_SMALL = 3
    TRACE = 4


class TensorMemoryLayout(PrintedEnum):
    """How a tensor's pages are spread over banks."""

    INTERLEAVED = 0
    HEIGHT_SHARDED = 2
    WIDTH_SHARDED = 3
    BLOCK_SHARDED = 4
    ND_SHARDED = 5


class ShardOrientation(PrintedEnum):
    """Whether shards are dealt over the core grid row by row or column by column."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class ShardStrategy(Enum):
    """Which dimensions of a tensor are split over cores."""

    HEIGHT = 1
    WIDTH = 2
    BLOCK = 3


class StorageType(PrintedEnum):
    """Where a tensor's values are."""

    HOST = 0
    DEVICE = 1


DEVICE_STORAGE_TYPE = StorageType.DEVICE
HOST_STORAGE_TYPE = StorageType.HOST


class MathFidelity(PrintedEnum):
    """How many passes the FPU spends on a multiplication."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4
    Invalid = 255


class Arch(PrintedEnum):
    """Chip generations."""

    WORMHOLE_B0 = 2
    BLACKHOLE = 3
    QUASAR = 4  # programs ask whether they run on one
