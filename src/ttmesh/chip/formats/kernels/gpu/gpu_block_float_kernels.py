"""Triton kernels of block floats: groups on their grid, packed tiles and back; `gpu_block_float.py` launches them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _encode_on_host(values, WIDTH: tl.constexpr):
    """Shared exponents [n, 1], magnitudes and signs [n, 16] of groups of float32 values, as TT-NN's host code rounds."""
    SHIFT: tl.constexpr = 24 - WIDTH
    bits = values.to(tl.int32, bitcast=True)
    own = (bits >> 23) & 0xFF
    shared = tl.max(own, axis=1)[:, None]
    aligned = ((bits & 0x7FFFFF) | 0x800000) >> tl.minimum(shared - own, 31)
    magnitude = (aligned + ((1 << (SHIFT - 1)) - 1) + ((aligned >> SHIFT) & 1)) >> SHIFT
    magnitude = tl.where(own != 0, tl.minimum(magnitude, (1 << WIDTH) - 1), 0)
    sign = tl.where(magnitude != 0, (bits >> 31) & 1, 0)
    return shared, magnitude, sign


@triton.jit
def _decode(shared, magnitude, sign, WIDTH: tl.constexpr):
    """The bfloat16 values of groups."""
    # 2^23 + magnitude, less 2^23: an addition, where the GPU converts integers at a quarter of that speed.
    number = (magnitude | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    bits = number.to(tl.int32, bitcast=True) + ((shared - 127 - (WIDTH - 1)) << 23)
    bits = tl.where((magnitude != 0) & (bits >= 0x800000), bits, 0)
    bits = bits | (sign << 31)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _round_on_device(values, WIDTH: tl.constexpr):
    """Groups of float32 values on the grid, as the chip's packer rounds: 7 bits by truncation, then aligned, ties up.

    All on the float's own bits: with b exponents below the group's, the half is added b bits above bit 16 (a carry
    moves the exponent, as it should) and the bits below bit 17 + b are masked. From 8 below on nothing is left.
    """
    bits = values.to(tl.int32, bitcast=True)
    own = (bits >> 23) & 0xFF
    shared = tl.max(own, axis=1)[:, None]
    behind = shared - own
    kept = (bits & 0x7FFE0000) + (0x10000 << tl.minimum(behind, 7))
    kept = kept & (-0x20000 << tl.minimum(behind, 6))
    kept = tl.where(behind < 8, kept, 0)
    if WIDTH == 3:  # three bits of those seven, by truncation
        lost = shared - (kept >> 23)
        kept = tl.where(lost < 3, kept & (-0x200000 << tl.minimum(lost, 2)), 0)
    bits = tl.where(own != 0, kept | (bits & -0x80000000), 0)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _round_on_host(values, WIDTH: tl.constexpr):
    """Groups of float32 values on the grid, as TT-NN's host code rounds."""
    shared, magnitude, sign = _encode_on_host(values, WIDTH)
    return _decode(shared, magnitude, sign, WIDTH)


@triton.jit
def _round_halves(bits, largest, DEVICE: tl.constexpr):
    """Groups of ordinary bfloat16 values on the grid of bfloat8_b, by additions, which are faster than shifts.

    At 1.5 * 2^23 units of the grid an addition rounds to nearest even, as the host does; 1 + 2^-12 pushes the ties of
    the seven bits that the device's packer takes away from zero.
    """
    exponent = largest & 0x7F800000
    start = (exponent + 0x08C00000).to(tl.float32, bitcast=True)
    if DEVICE:
        kept = tl.where((bits & 0x7FFFFFFF) >= 0x800000, bits & -0x20000, 0)
        rounded = tl.fma(kept.to(tl.float32, bitcast=True), 1.000244140625, start) - start
        signed = rounded.to(tl.int32, bitcast=True) | (kept & -0x80000000)  # the sign of what rounds to zero stays
        return signed.to(tl.float32, bitcast=True).to(tl.bfloat16)
    limit = (exponent | 0x7E0000).to(tl.float32, bitcast=True)
    rounded = (bits.to(tl.float32, bitcast=True) + start) - start
    return tl.minimum(tl.maximum(rounded, -limit), limit).to(tl.bfloat16)


@triton.jit
def _are_ordinary(largest):
    """Whether every group's largest magnitude (its bits) is zero or far from the ends of float32's range."""
    ordinary = (largest == 0) | ((largest >= 0x0C000000) & (largest < 0x73000000))
    return tl.min(ordinary.to(tl.int32)) == 1


@triton.jit
def _encode_halves(bits, largest, WIDTH: tl.constexpr):
    """Fields [n, 16] of groups of ordinary bfloat16 values: an addition rounds as the host does, its low bits are the
    number of units."""
    start = (largest & 0x7F800000) + (((24 - WIDTH) << 23) | 0x400000)
    total = bits.to(tl.float32, bitcast=True) + start.to(tl.float32, bitcast=True)
    units = total.to(tl.int32, bitcast=True) - start
    magnitude = tl.minimum(tl.maximum(units, -units), (1 << WIDTH) - 1)
    return magnitude | ((units >> 31) & (1 << WIDTH))


@triton.jit
def _decode_ordinary(shared, magnitude, sign, WIDTH: tl.constexpr):
    """The bfloat16 values of groups whose exponents are zero or ordinary: one multiplication, which is exact."""
    scale = tl.where(shared == 0, 0, (shared - (WIDTH - 1)) << 23).to(tl.float32, bitcast=True)
    number = (magnitude | 0x4B000000).to(tl.float32, bitcast=True)
    value = tl.fma(number, scale, -8388608.0 * scale)
    return (value.to(tl.int32, bitcast=True) | (sign << 31)).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit
def _combine(first, second, OPERATION: tl.constexpr):
    if OPERATION == "add":
        return first + second
    if OPERATION == "subtract":
        return first - second
    return first * second


@triton.jit
def quantise_groups(
    source,
    other,
    target,
    groups,
    groups_per_row,
    columns,
    pad_value,
    OPERATION: tl.constexpr,
    WIDTH: tl.constexpr,
    DEVICE: tl.constexpr,
    NARROW: tl.constexpr,
    HALVES: tl.constexpr,
    RAGGED: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Round groups to the grid; NARROW rounds to bfloat16 before, an OPERATION with `other` is computed before that."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    lane = tl.arange(0, 16)
    if RAGGED:
        column = (group % groups_per_row)[:, None] * 16 + lane[None, :]
        offsets = (group // groups_per_row)[:, None] * columns + column
        inside = (group < groups)[:, None] & (column < columns)
        values = tl.load(source + offsets, mask=inside, other=pad_value).to(tl.float32)
        values = tl.where(inside, values, pad_value)
    else:
        offsets = group[:, None] * 16 + lane[None, :]
        inside = (group < groups)[:, None] & (lane < 16)[None, :]
        values = tl.load(source + offsets, mask=inside, other=0.0).to(tl.float32)
        if OPERATION is not None:
            values = _combine(values, tl.load(other + offsets, mask=inside, other=0.0).to(tl.float32), OPERATION)
    if NARROW:
        values = values.to(tl.bfloat16).to(tl.float32)
    if HALVES and WIDTH == 7:
        bits = values.to(tl.int32, bitcast=True)
        largest = tl.max(bits & 0x7FFFFFFF, axis=1)[:, None]
        if _are_ordinary(largest):
            tl.store(target + offsets, _round_halves(bits, largest, DEVICE), mask=inside)
        elif DEVICE:
            tl.store(target + offsets, _round_on_device(values, WIDTH), mask=inside)
        else:
            tl.store(target + offsets, _round_on_host(values, WIDTH), mask=inside)
    elif DEVICE:
        tl.store(target + offsets, _round_on_device(values, WIDTH), mask=inside)
    else:
        tl.store(target + offsets, _round_on_host(values, WIDTH), mask=inside)


@triton.jit
def _locate(
    rows,
    columns,
    tiles,
    tiles_down,
    tiles_across,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    FACE_ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Of a program's groups of packed tiles: tile, place in the tile, and where their elements lie in the matrices."""
    PER_TILE: tl.constexpr = TILE_ROWS * TILE_COLUMNS // 16
    FACES_ACROSS: tl.constexpr = TILE_COLUMNS // 16
    number = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    tile = number // PER_TILE
    group = number % PER_TILE
    matrix = (tile // (tiles_down * tiles_across)).to(tl.int64)
    down = (tile // tiles_across) % tiles_down
    across = tile % tiles_across
    face = group // FACE_ROWS
    row = down * TILE_ROWS + (face // FACES_ACROSS) * FACE_ROWS + group % FACE_ROWS
    column = (across * TILE_COLUMNS + (face % FACES_ACROSS) * 16)[:, None] + tl.arange(0, 16)[None, :]
    inside = ((tile < tiles) & (row < rows))[:, None] & (column < columns)
    offsets = (matrix * rows + row)[:, None] * columns + column
    return tile, group, offsets, inside


@triton.jit
def _store_fields(base, group, fields, used, EXPONENT_BYTES: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr):
    """Fields of groups behind their tiles' exponents; of 4 bits two a byte, the first in the low half."""
    if WIDTH == 7:
        lane = tl.arange(0, 16)
        place = (base + EXPONENT_BYTES + group * 16)[:, None] + lane[None, :]
        tl.store(place, fields.to(tl.uint8), mask=used[:, None] & (lane < 16)[None, :])
    else:
        first, second = tl.split(tl.reshape(fields, (GROUPS, 8, 2)))
        pairs = first | (second << 4)
        byte = tl.arange(0, 8)
        place = (base + EXPONENT_BYTES + group * 8)[:, None] + byte[None, :]
        tl.store(place, pairs.to(tl.uint8), mask=used[:, None] & (byte < 8)[None, :])


@triton.jit
def _load_fields(base, group, used, EXPONENT_BYTES: tl.constexpr, WIDTH: tl.constexpr):
    """What `_store_fields` stored."""
    if WIDTH == 7:
        lane = tl.arange(0, 16)
        place = (base + EXPONENT_BYTES + group * 16)[:, None] + lane[None, :]
        fields = tl.load(place, mask=used[:, None] & (lane < 16)[None, :], other=0).to(tl.int32)
    else:
        byte = tl.arange(0, 8)
        place = (base + EXPONENT_BYTES + group * 8)[:, None] + byte[None, :]
        both = tl.load(place, mask=used[:, None] & (byte < 8)[None, :], other=0).to(tl.int32)
        fields = tl.interleave(both & 0xF, both >> 4)
    return fields


@triton.jit
def pack_groups(
    source,
    target,
    rows,
    columns,
    tiles,
    tiles_down,
    tiles_across,
    pad_value,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    FACE_ROWS: tl.constexpr,
    EXPONENT_BYTES: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Tiles: their shared exponents, then their fields; faces from left to right, top to bottom."""
    tile, group, offsets, inside = _locate(
        rows, columns, tiles, tiles_down, tiles_across, TILE_ROWS, TILE_COLUMNS, FACE_ROWS, GROUPS
    )
    used = tile < tiles
    values = tl.load(source + offsets, mask=inside, other=pad_value).to(tl.float32)
    values = tl.where(inside, values, pad_value)
    shared, magnitude, sign = _encode_on_host(values, WIDTH)
    base = target + tile.to(tl.int64) * TILE_BYTES
    tl.store((base + group)[:, None], shared.to(tl.uint8), mask=used[:, None])
    _store_fields(base, group, magnitude | (sign << WIDTH), used, EXPONENT_BYTES, WIDTH, GROUPS)


@triton.jit
def pack_strip(
    source, target, columns, HALVES: tl.constexpr, TILE_BYTES: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr
):
    """The same of whole tiles of 32 x 32, some side by side: rows are read as they lie."""
    strip = tl.program_id(1).to(tl.int64)
    x = tl.program_id(0) * TILES * 32 + tl.arange(0, TILES * 32)[None, :]
    y = tl.arange(0, 32)[:, None]
    read = tl.load(source + strip * 32 * columns + y * columns + x, mask=x < columns, other=0.0)
    faces = tl.permute(tl.reshape(read, (2, 16, TILES, 2, 16)), (2, 0, 3, 1, 4))
    values = tl.reshape(faces, (TILES * 64, 16)).to(tl.float32)
    number = tl.arange(0, TILES * 64)
    tile, group = tl.program_id(0) * TILES + number // 64, number % 64
    used = tile * 32 < columns
    base = target + (strip * (columns // 32) + tile) * TILE_BYTES
    bits = values.to(tl.int32, bitcast=True)
    largest = tl.max(bits & 0x7FFFFFFF, axis=1)
    tl.store(base + group, (largest >> 23).to(tl.uint8), mask=used)
    if HALVES:
        if _are_ordinary(largest):
            _store_fields(base, group, _encode_halves(bits, largest[:, None], WIDTH), used, 64, WIDTH, TILES * 64)
        else:
            _, magnitude, sign = _encode_on_host(values, WIDTH)
            _store_fields(base, group, magnitude | (sign << WIDTH), used, 64, WIDTH, TILES * 64)
    else:
        _, magnitude, sign = _encode_on_host(values, WIDTH)
        _store_fields(base, group, magnitude | (sign << WIDTH), used, 64, WIDTH, TILES * 64)


@triton.jit
def unpack_groups(
    source,
    target,
    rows,
    columns,
    tiles,
    tiles_down,
    tiles_across,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    FACE_ROWS: tl.constexpr,
    EXPONENT_BYTES: tl.constexpr,
    TILE_BYTES: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Packed tiles to their places in matrices."""
    tile, group, offsets, inside = _locate(
        rows, columns, tiles, tiles_down, tiles_across, TILE_ROWS, TILE_COLUMNS, FACE_ROWS, GROUPS
    )
    used = tile < tiles
    base = source + tile.to(tl.int64) * TILE_BYTES
    shared = tl.load(base + group, mask=used, other=0).to(tl.int32)[:, None]
    fields = _load_fields(base, group, used, EXPONENT_BYTES, WIDTH)
    magnitude = fields & ((1 << WIDTH) - 1)
    tl.store(target + offsets, _decode(shared, magnitude, fields >> WIDTH, WIDTH), mask=inside)


@triton.jit
def unpack_strip(source, target, columns, TILE_BYTES: tl.constexpr, WIDTH: tl.constexpr, TILES: tl.constexpr):
    """The same of whole tiles of 32 x 32, some side by side: rows are written as they lie."""
    strip = tl.program_id(1).to(tl.int64)
    x = tl.program_id(0) * TILES * 32 + tl.arange(0, TILES * 32)[None, :]
    y = tl.arange(0, 32)[:, None]
    place = target + strip * 32 * columns + y * columns + x
    number = tl.arange(0, TILES * 64)
    tile, group = tl.program_id(0) * TILES + number // 64, number % 64
    used = tile * 32 < columns
    base = source + (strip * (columns // 32) + tile) * TILE_BYTES
    shared = tl.load(base + group, mask=used, other=0).to(tl.int32)[:, None]
    fields = _load_fields(base, group, used, 64, WIDTH)
    magnitude = fields & ((1 << WIDTH) - 1)
    sign = fields >> WIDTH
    ordinary = (shared == 0) | ((shared >= 8) & (shared < 230))
    if tl.min(ordinary.to(tl.int32)) == 1:
        faces = tl.reshape(_decode_ordinary(shared, magnitude, sign, WIDTH), (TILES, 2, 2, 16, 16))
        tl.store(place, tl.reshape(tl.permute(faces, (1, 3, 0, 2, 4)), (32, TILES * 32)), mask=x < columns)
    else:
        faces = tl.reshape(_decode(shared, magnitude, sign, WIDTH), (TILES, 2, 2, 16, 16))
        tl.store(place, tl.reshape(tl.permute(faces, (1, 3, 0, 2, 4)), (32, TILES * 32)), mask=x < columns)
