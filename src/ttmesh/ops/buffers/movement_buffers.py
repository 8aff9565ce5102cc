"""Circular buffers of programs that move values: transposes, slices, concatenation, padding, reshapes, copies, lookups."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import BLOCK_FLOATS, Arch, BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    FLOAT32,
    HALF_L1,
    L1_ALIGNMENT,
    TILE,
    align,
    alignment,
    columns,
    element_bytes,
    in_l1_shards,
    most_per_core,
    page,
    page_of,
    row_bytes,
)
from ttmesh.ops.stages.reshape_map import map_spec
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

FACE_ROW, FACE = 16, 256  # numbers
READ, PAD_READ = 4096, 2048  # bytes that a slice, and a pad, read at a time
SLICE_SCRATCH = 16
SLICE_PART, SLICE_RESERVE = 8192, 160  # bytes of a part of a row that L1 does not hold twice; bytes of L1 left free
PADS_IN_FLIGHT, SLOTS = 16, 8
REPEATED, REPEATED_SLACK = 8, 128  # pages in flight; bytes beside a row in the older program
JOINED = {Arch.WORMHOLE_B0: 1_393_472, Arch.BLACKHOLE: 1_461_248}  # bytes of a row that concat takes
LONGEST_COPY = 1 << 18  # bytes of a row: more is copied in parts
LOOKUP_BYTES, DOUBLE_BUFFERED = 1 << 20, 64  # of a row of a table: more is taken in parts; tiles that have two buffers


def _is_tiles(spec: TensorSpec) -> bool:
    return spec.layout is Layout.TILE


def _order(program: ProgramCall) -> tuple[int, ...]:
    """The dims of a permutation, from the call or from the stage."""
    stage, rank = program.options.get("stage"), len(program.inputs[0].shape)
    dims = stage[0] if isinstance(stage, tuple) and stage else program.options.get("dims")
    if isinstance(dims, (tuple, list)) and len(dims) == rank and rank:
        return tuple(int(dim) % rank for dim in dims)
    first, second = program.options.get("dim1"), program.options.get("dim2")
    order = list(range(rank))
    if stage == "rows" and rank > 1:
        first, second = -1, -2
    if isinstance(dims, (tuple, list)) and len(dims) == 2:
        first, second = dims
    if isinstance(first, int) and isinstance(second, int) and rank:
        order[first % rank], order[second % rank] = order[second % rank], order[first % rank]
    return tuple(order)


@buffer_rule("transpose", "permute")
def permute_buffers(program: ProgramCall) -> int:
    """Pages in, transposed pages, and a row or a face of padding."""
    spec, result = program.inputs[0], program.results[0]
    order, rank = _order(program), len(spec.shape)
    if rank < 2 or all(i == dim or spec.shape[i] == spec.shape[dim] == 1 for i, dim in enumerate(order)):
        return 0
    size, last = page_of(spec), order[-1]
    number = size // (TILE * TILE) if spec.dtype not in BLOCK_FLOATS else 1
    if not _is_tiles(spec):
        return 2 * row_bytes(result, program.arch) if last == rank - 1 else 6 * TILE * TILE * element_bytes(spec)
    by_height = TensorMemoryLayout.HEIGHT_SHARDED
    if in_l1_shards(spec) and in_l1_shards(result) and spec.memory_config.memory_layout is by_height:
        return 0
    padded = len(result.shape) > 1 and result.shape[-2] % TILE != 0
    swapped = [i for i, dim in enumerate(order) if i != dim]
    if rank <= 4 and swapped == [rank - 3, rank - 2]:
        return 2 * size + (FACE * number if padded else 0)
    if order[-2:] == (rank - 2, rank - 1):
        return 2 * size
    if order[-2:] == (rank - 1, rank - 2):
        return 4 * size
    fill = FACE_ROW * number if padded else 0
    if program.arch is Arch.BLACKHOLE and number == 2 and last < rank - 2:
        fill += 192  # rows of 16 bits are aligned on the way
    return (2 if last == rank - 1 else 4 if last == rank - 2 else 6) * size + fill


@buffer_rule("slice")
def slice_buffers(program: ProgramCall) -> int:
    """Two tiles, or as many rows as are read at a time, twice."""
    spec, result = program.inputs[0], program.results[0]
    if _is_tiles(spec):
        return 2 * page_of(spec) + SLICE_SCRATCH
    if in_l1_shards(spec) and in_l1_shards(result):
        return 0
    first, has_steps = _read_bounds(program)
    if has_steps:
        return 2 * row_bytes(spec, program.arch)
    step = max(alignment(spec, program.arch), alignment(result, program.arch))
    skewed = first * element_bytes(spec) % alignment(spec, program.arch) != 0
    stick = align(max(result.shape[-1] if result.shape else 1, 1) * element_bytes(spec), step * (2 if skewed else 1))
    if not skewed and 2 * stick > (program.free_l1 or JOINED[program.arch]) - SLICE_RESERVE:
        return (2 if -(-stick // SLICE_PART) % 2 else 4) * SLICE_PART + SLICE_SCRATCH  # two parts at a time if even
    each = align(most_per_core(prod(result.shape[:-1]), program.grid.num_cores), TILE)
    most = max(min(each, READ // stick), 1)
    merged = next(n for n in range(most, 0, -1) if each % n == 0)
    return 2 * merged * stick + SLICE_SCRATCH


def _read_bounds(program: ProgramCall) -> tuple[int, bool]:
    """Where a slice starts in a row, and whether it leaves elements out: from the stage's bounds or from the call."""
    options, stage = program.options, program.options.get("stage")
    if isinstance(stage, tuple) and stage and all(isinstance(bound, tuple) and len(bound) == 3 for bound in stage):
        return stage[-1][0], any(step > 1 for _, _, step in stage)
    starts = options.get("slice_start") or options.get("starts") or options.get("begins")
    steps = options.get("slice_step") or options.get("steps") or options.get("step")
    first = starts[-1] if isinstance(starts, (tuple, list)) and starts and isinstance(starts[-1], int) else 0
    given = steps if isinstance(steps, (tuple, list)) else ()
    return first, any(isinstance(step, int) and step > 1 for step in given)


@buffer_rule("split", "chunk")
def split_buffers(program: ProgramCall) -> int:
    """Two tiles."""
    return 2 * page_of(program.inputs[0]) if _is_tiles(program.inputs[0]) else slice_buffers(program)


@buffer_rule("concat", "stack")
def concat_buffers(program: ProgramCall) -> int:
    """Two pages; shards are joined in place, but tiles side by side pass through rows."""
    spec, result = program.inputs[0], program.results[0]
    if in_l1_shards(result) and all(in_l1_shards(one) for one in program.inputs):
        by_height = result.memory_config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
        shards = [one.memory_config.shard_spec for one in (*program.inputs, result, result)]
        if not _is_tiles(spec) or not by_height or None in shards:
            return 0
        return sum(prod(-(-extent // TILE) for extent in one.shape) for one in shards if one) * page_of(spec)
    dim, rank = program.options.get("stage", program.options.get("dim")), len(spec.shape)
    if _is_tiles(spec) and dim in (-1, rank - 1) and any(one.shape and one.shape[-1] % TILE for one in program.inputs):
        return 3 * (sum(map(columns, program.inputs)) + columns(result)) * page_of(spec)  # columns move within tiles
    if _is_tiles(spec):
        return 2 * page_of(spec)
    row = row_bytes(result, program.arch)
    if "stage" in program.options:  # transposed: more rows than L1 holds are joined in parts
        while row > JOINED[program.arch]:
            row = -(-row // 2)
    return (2 if 2 * row < HALF_L1 else 1) * row


@buffer_rule("repeat_codegen", "repeat_interleave")
def repeat_buffers(program: ProgramCall) -> int:
    """Eight pages, or as many pairs as fit into what is free of L1; else two of the input, by an older program."""
    spec, result = program.inputs[0], program.results[0]
    page_bytes = page_of(spec) if _is_tiles(spec) else row_bytes(result, program.arch)
    pairs = program.free_l1 // (2 * page_bytes) if program.free_l1 else REPEATED
    if not pairs:
        return 2 * (row_bytes(spec, program.arch) + REPEATED_SLACK)
    return min(REPEATED, 2 * pairs) * page_bytes


@buffer_rule("pad")
def pad_buffers(program: ProgramCall) -> int:
    """Tiles: two and one of padding. Rows: up to sixteen times what is read at a time, and rows of padding."""
    spec, result = program.inputs[0], program.results[0]
    if _is_tiles(spec):
        return 3 * page_of(spec)
    if in_l1_shards(spec):
        return row_bytes(result, program.arch)
    dram = 64 if alignment(spec, program.arch) == 64 else 32
    length = (result.padded_shape[-1] if result.shape else 1) * element_bytes(spec)
    stick, filled = align(length, L1_ALIGNMENT), align(length, dram)
    at_once = -(-PAD_READ // stick) * stick
    size = max(min(PADS_IN_FLIGHT, HALF_L1 // at_once), 1) * at_once + filled
    return size + (filled if stick % dram or _pads_in_front(program) else 0)


def _pads_in_front(program: ProgramCall) -> bool:
    padding = program.options.get("padding")
    last = padding[-1] if isinstance(padding, (tuple, list)) and padding else None
    return isinstance(last, (tuple, list)) and bool(last) and last[0] != 0


@buffer_rule("fill_pad", "fill_implicit_tile_padding")
def fill_pad_buffers(program: ProgramCall) -> int:
    """Tiles at the right, at the bottom and in the corner."""
    spec = program.inputs[0]
    bottom, right = (extent % TILE != 0 for extent in (1, 1, *spec.shape)[-2:])
    return (4 + right + bottom) * page_of(spec) if right or bottom else 0


@buffer_rule("reshape", "reshape_view", "view")
def reshape_buffers(program: ProgramCall) -> int:
    """Of tiles: a row of the map of segments, a tile in and a tile out; of rows: what is read and what is written."""
    spec, result = program.inputs[0], program.results[0]
    if _is_tiles(spec):
        mapped = map_spec(tuple(spec.shape), tuple(result.shape))
        return mapped.shape[-1] * 4 + page_of(spec) + page_of(result)
    wide = element_bytes(spec)
    source, target = (max(one.shape[-1] if one.shape else 1, 1) * wide for one in (spec, result))
    read, slot = (source - 1) // 64 * 64 + 128, (target - 1) // 64 * 64 + 80
    divides = source % target == 0 or target % source == 0
    in_dram = result.memory_config.buffer_type is BufferType.DRAM
    both = 2 if divides and (target % L1_ALIGNMENT == 0 or not in_dram) else 1
    aligned = source % L1_ALIGNMENT == 0 and target % L1_ALIGNMENT == 0
    room = max((program.free_l1 - 2 * read * both) // (slot * both), 1) if program.free_l1 else SLOTS
    return both * (2 * read + slot * (1 if aligned else min(SLOTS, room)))


@buffer_rule("interleaved_to_sharded")
def to_shards_buffers(program: ProgramCall) -> int:
    """The shards are the buffer; rows pass through four aligned ones, other formats through a shard of the input."""
    spec, result = program.inputs[0], program.results[0]
    shards = result.memory_config.shard_spec
    if shards is None:
        return 0
    if _is_tiles(spec):
        tiles = prod(-(-extent // TILE) for extent in shards.shape)
        return 0 if spec.dtype is result.dtype else tiles * page_of(spec)
    step = 64 if program.arch is Arch.BLACKHOLE else 32
    return 4 * align(shards.shape[1] * element_bytes(spec) + step, step)


@buffer_rule("sharded_to_interleaved")
def from_shards_buffers(program: ProgramCall) -> int:
    """The shards are the buffer; other formats have one of their own."""
    spec, result = program.inputs[0], program.results[0]
    shards = spec.memory_config.shard_spec
    if shards is None or spec.dtype is result.dtype:
        return 0
    return prod(-(-extent // TILE) for extent in shards.shape) * page_of(result)


@buffer_rule("clone")
def clone_buffers(program: ProgramCall) -> int:
    """Two pages, of rows of any length."""
    spec = program.inputs[0]
    if _is_tiles(spec) or spec.memory_config.is_sharded() or program.results[0].memory_config.is_sharded():
        return copy_buffers(program)
    return 2 * row_bytes(spec, program.arch)


@buffer_rule("copy", "to_memory_config", "move")
def copy_buffers(program: ProgramCall) -> int:
    """Two pages, in two formats if they differ; rows between DRAM and L1 one more."""
    spec, result = program.inputs[0], program.results[0]
    if spec.memory_config.is_sharded() or result.memory_config.is_sharded():
        return 0
    if _is_tiles(spec):
        return 2 * page_of(spec) + (0 if spec.dtype is result.dtype else 2 * page_of(result))
    row = min(row_bytes(spec, program.arch), LONGEST_COPY)
    moved = spec.memory_config.buffer_type is not result.memory_config.buffer_type
    return (3 if moved else 2) * row


@buffer_rule("typecast")
def typecast_buffers(program: ProgramCall) -> int:
    """Two pages of each format, also of shards."""
    spec, result = program.inputs[0], program.results[0]
    return 2 * (page_of(spec) + page_of(result))


@buffer_rule("embedding")
def embedding_buffers(program: ProgramCall) -> int:
    """Rows of the table and indices; in tiles where the result is."""
    indices, table, result = program.inputs[0], program.inputs[min(1, len(program.inputs) - 1)], program.results[0]
    row = align(max(table.shape[-1] if table.shape else 1, 1) * element_bytes(table), alignment(table, program.arch))
    if _is_tiles(indices):
        return 2 * row + FLOAT32
    if not _is_tiles(result):
        found = 512 if program.arch is Arch.BLACKHOLE else 256
        if in_l1_shards(result):
            return found
        return row * (1 if prod(indices.shape) <= program.grid.num_cores else 2) + found
    made = page(table.dtype if result.dtype in BLOCK_FLOATS else result.dtype)
    shards = result.memory_config.shard_spec if in_l1_shards(result) else None
    wide = columns(table) if shards is None else max(shards.shape[1] // TILE, 1)
    if 2 * wide * page(table.dtype) > LOOKUP_BYTES:
        wide = DOUBLE_BUFFERED  # a part of the row at a time
    deep = 2 if wide <= DOUBLE_BUFFERED else 1
    own = 0 if shards is not None else made
    return deep * wide * (page(table.dtype) + own) + 4 * TILE


@buffer_rule("gather")
def gather_buffers(program: ProgramCall) -> int:
    """A row of tiles of the values and of the result, where they fit; else one tile of the result and parts of the row."""
    spec, result = program.inputs[0], program.results[0]
    index = program.inputs[min(1, len(program.inputs) - 1)]
    size, wide, made = page_of(spec), columns(spec), columns(result)
    if not _is_tiles(spec) or not _is_tiles(index):
        return 0
    if spec.dtype is not DataType.BFLOAT16:
        return (wide if wide <= 60 else 2) * size + page_of(index) + page_of(result)
    own, one = page_of(index), page_of(result)
    room = program.free_l1 or wide * size + own + max(made, 4) * one
    if wide * size + own + max(made, 4) * one <= room:
        return wide * size + own + max(made, 4) * one
    while wide > 1 and wide * size + own + one > room:
        wide = -(-wide // 2)
    return wide * size + own + one


@buffer_rule("scatter", "scatter_add")
def scatter_buffers(program: ProgramCall) -> int:
    """Rows of the input, the result, indices and sources, or as much of each as a sixteenth of free L1 has numbers."""
    spec, more = program.inputs[0], program.inputs[1:3]
    most = max(align(program.free_l1 // 16 * 9 // 10 - 32, 32), 32) if program.free_l1 else None

    def part(one: TensorSpec) -> int:
        wide = max(one.shape[-1] if one.shape else 1, 1)
        return align((wide if most is None else min(wide, most)) * element_bytes(one), 32)

    return 2 * part(spec) + sum(map(part, more))


@buffer_rule("plus_one")
def plus_one_buffers(program: ProgramCall) -> int:
    """The row."""
    return row_bytes(program.inputs[0], program.arch)


@buffer_rule("bcast")
def bcast_buffers(program: ProgramCall) -> int:
    """Two pages of each."""
    return 2 * sum(page_of(one) for one in (*program.inputs[:2], program.results[0]))


@buffer_rule("dropout", "clamp")
def one_to_one_buffers(program: ProgramCall) -> int:
    """Two pages in and out."""
    if len(program.inputs) > 1:
        return bcast_buffers(program)
    return 2 * (page_of(program.inputs[0]) + page_of(program.results[0]))


@buffer_rule("rand", "uniform")
def random_buffers(program: ProgramCall) -> int:
    """A tile of float32."""
    return FLOAT32


@buffer_rule("bernoulli")
def bernoulli_buffers(program: ProgramCall) -> int:
    """Two pages in and out, and a tile of random numbers."""
    return 2 * (page_of(program.inputs[0]) + page_of(program.results[0])) + FLOAT32


@buffer_rule("moreh_full_like", "moreh_full", "moreh_arange")
def filled_buffers(program: ProgramCall) -> int:
    """One tile."""
    return page_of(program.results[0])


@buffer_rule("upsample")
def upsample_buffers(program: ProgramCall) -> int:
    """Two rows."""
    spec = program.inputs[0]
    return 0 if in_l1_shards(spec) else 2 * row_bytes(spec, program.arch) if not _is_tiles(spec) else 4 * BFLOAT16
