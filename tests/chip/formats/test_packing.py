"""Packed bytes are those a chip holds."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.dtypes import DataType, Layout, bfloat4_b, bfloat8_b, bfloat16, float32, uint16
from ttmesh.chip.formats import tile_packing
from ttmesh.chip.formats.block_float import decode
from ttmesh.chip.formats.kernels import block_tiles
from ttmesh.chip.formats.packing import pack, packed_bytes, unpack
from ttmesh.chip.formats.storage import LANE_DTYPES, to_lane
from ttmesh.chip.formats.tiles import FACE_SHAPES, Tile
from ttmesh.chip.formats.tilize import tilize

BLOCK_NAMES = {"bfloat8_b": bfloat8_b, "bfloat4_b": bfloat4_b}
TILES = [*map(Tile, FACE_SHAPES), *(Tile(shape, transpose_tile=True) for shape in FACE_SHAPES if shape[0] >= 16)]
TILED, ROWS = Layout.TILE, Layout.ROW_MAJOR


def _golden_inputs() -> dict[str, torch.Tensor]:
    random = np.random.default_rng(7)
    return {
        "iota_1024": torch.arange(1024.0).view(32, 32),
        "randn_seed7": torch.from_numpy(random.standard_normal((32, 32)).astype(np.float32)),
        "randn_64x64_seed7": torch.from_numpy(random.standard_normal((64, 64)).astype(np.float32)),
    }


def _sha256(raw: torch.Tensor) -> str:
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def _lanes(shape: tuple[int, ...], dtype: DataType, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return to_lane(torch.randn(shape, generator=generator) * 50, dtype)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("name", _golden_inputs())
def test_golden_tiles(golden: dict[str, Any], name: str) -> None:
    expected, values = golden["tiles"][name], _golden_inputs()[name]
    assert _sha256(values) == expected["input_sha256"]

    for format_name, dtype in BLOCK_NAMES.items():
        packed = pack(values, dtype, TILED)
        assert packed.shape == (expected[format_name]["bytes"],)
        assert bytes(packed[:64].tolist()).hex() == expected[format_name]["first64"]
        assert bytes(packed[64:96].tolist()).hex() == expected[format_name]["next32"]
        assert _sha256(packed) == expected[format_name]["sha256"]
        turned = pack(values, dtype, TILED, Tile(transpose_tile=True))
        assert _sha256(turned) == expected[f"{format_name}_transpose_tile"]
    assert _sha256(pack(values.bfloat16(), bfloat16, TILED)) == expected["bfloat16_tile_sha256"]


def test_golden_sizes(golden: dict[str, Any]) -> None:
    for shape, sizes in golden["tile_bytes"].items():
        tile = Tile(tuple(map(int, shape.split("x"))))  # type: ignore[arg-type]
        for dtype in LANE_DTYPES:
            assert tile.get_tile_size(dtype) == sizes[dtype.name.lower()]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", LANE_DTYPES)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.height}x{t.width}{'T' * t.transpose_tile}")
def test_unpack_undoes_pack(dtype: DataType, tile: Tile) -> None:
    shape = (2, 33, 21)
    lanes = _lanes(shape, dtype)
    if tile.transpose_tile and dtype in BLOCK_NAMES.values():
        lanes = unpack(pack(lanes, dtype, TILED, tile), (33, 21), dtype, TILED, tile)

    packed = pack(lanes, dtype, TILED, tile, rank=3)

    assert packed.shape == (packed_bytes(shape, dtype, TILED, tile),)
    back = unpack(packed, shape, dtype, TILED, tile)
    assert back.dtype == lanes.dtype
    assert torch.equal(back.view(torch.uint8), lanes.view(torch.uint8))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", BLOCK_NAMES.values())
@settings(deadline=None, max_examples=30, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), shape=st.tuples(st.integers(1, 70), st.integers(1, 70)))
def test_pack_undoes_unpack_on_canonical_bytes(dtype: DataType, seed: int, shape: tuple[int, int]) -> None:
    bits = torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    canonical = pack(bits.view(torch.float32), dtype, TILED)

    again = pack(unpack(canonical, shape, dtype, TILED), dtype, TILED)

    assert torch.equal(again, canonical)


@pytest.mark.skipif(not block_tiles.supports(torch.zeros(1)), reason="no C compiler")
@pytest.mark.parametrize("dtype", BLOCK_NAMES.values())
def test_kernel_and_torch_unpack_any_bytes_alike(dtype: DataType) -> None:
    """Also bytes no packer writes: magnitudes below the normal numbers, signed zeros."""
    tile_count, size = 40, packed_bytes((32, 32), dtype, TILED)
    raw = torch.randint(0, 256, (tile_count, size), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    raw[:, :64] //= 16  # exponents 0 to 15, where the edge is

    by_kernel = block_tiles.unpack(raw, (32, 32), dtype, Tile())

    fields = raw[:, 64:].reshape(-1, 16 if dtype == bfloat8_b else 8)
    if dtype == bfloat4_b:
        fields = torch.stack([fields & 0xF, fields >> 4], -1).view(-1, 16)
    by_torch = decode(raw[:, :64].reshape(-1, 1), fields, dtype).view(tile_count, 1024)
    assert torch.equal(tilize(by_kernel).view(torch.int16), by_torch.view(torch.int16))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", [d for d in LANE_DTYPES if d not in BLOCK_NAMES.values()])
def test_row_major_bytes_are_the_elements_in_order(dtype: DataType) -> None:
    lanes = _lanes((2, 3, 5), dtype)

    packed = pack(lanes, dtype, ROWS)

    assert packed.shape == (2, 15 * packed_bytes((1,), dtype, ROWS))
    assert torch.equal(unpack(packed, (3, 5), dtype, ROWS).view(torch.uint8), lanes.view(torch.uint8))


@pytest.mark.usefixtures("served")
def test_each_matrix_is_padded_by_itself() -> None:
    lanes = _lanes((3, 5, 7), bfloat16)

    folded = pack(lanes, bfloat16, TILED, rank=3)

    assert torch.equal(folded, torch.cat([pack(matrix, bfloat16, TILED) for matrix in lanes]))


@pytest.mark.usefixtures("served")
def test_padding_holds_the_pad_value() -> None:
    packed = pack(torch.zeros(1, 1), float32, TILED, pad_value=2.5)

    elements = packed.view(torch.float32)
    assert elements[0] == 0
    assert elements[1:].eq(2.5).all()


@pytest.mark.parametrize("rank", [0, 1])
def test_vectors_and_scalars_fill_a_tile_row(rank: int) -> None:
    lanes = _lanes((4, 3)[: rank + 1], float32)

    packed = pack(lanes, float32, TILED, rank=rank)

    assert packed.shape[-1] == 4096
    assert torch.equal(unpack(packed, tuple(lanes.shape[1:]), float32, TILED), lanes)


def test_unsigned_elements_use_all_their_bits() -> None:
    packed = pack(torch.tensor([[65535, 1]], dtype=torch.int32), uint16, ROWS)

    assert packed.tolist() == [0xFF, 0xFF, 1, 0]
    assert unpack(packed, (1, 2), uint16, ROWS).tolist() == [[65535, 1]]


@pytest.mark.parametrize("layout", [TILED, ROWS])
def test_bytes_and_lanes_never_share_storage(layout: Layout) -> None:
    lanes = torch.ones(32, 32)
    packed = pack(lanes, float32, layout)
    back = unpack(packed, (32, 32), float32, layout)

    packed.zero_()

    assert lanes.eq(1).all()
    assert back.eq(1).all()


def test_bytes_at_an_odd_offset_unpack() -> None:
    lanes = _lanes((32, 32), float32)
    page = torch.cat([torch.zeros(1, dtype=torch.uint8), pack(lanes, float32, TILED)])

    assert torch.equal(unpack(page[1:], (32, 32), float32, TILED), lanes)


def test_empty_tensors_have_no_bytes() -> None:
    assert pack(torch.zeros(2, 0, 5), float32, TILED).shape == (2, 0)
    assert unpack(torch.zeros(2, 0, dtype=torch.uint8), (0, 5), float32, TILED).shape == (2, 0, 5)


def test_block_floats_are_never_row_major() -> None:
    with pytest.raises(RuntimeError, match="Layout must be Layout::TILE for bfloat8_b or bfloat4_b!"):
        pack(torch.zeros(32, 32), bfloat8_b, ROWS)


def test_a_wrong_byte_count_says_the_right_one() -> None:
    with pytest.raises(RuntimeError, match="expected 1088 uint8 in the last dim"):
        unpack(torch.zeros(1087, dtype=torch.uint8), (32, 32), bfloat8_b, TILED)


@pytest.mark.parametrize("tile", [Tile(), Tile((16, 32))])
@pytest.mark.parametrize("dtype", [bfloat8_b, bfloat4_b])
def test_a_matrix_is_packed_on_the_host_as_a_tensor_is(dtype: DataType, tile: Tile) -> None:
    values = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    call = tile_packing.tilize_and_pack_bfp8_b if dtype is bfloat8_b else tile_packing.tilize_and_pack_bfp4_b

    packed = call(values.numpy(), 64, 96, tile.height, tile.width)

    assert packed == bytes(pack(to_lane(values, dtype), dtype, TILED, tile))
    with pytest.raises(RuntimeError, match=r"is not a \[64, 95\] matrix"):
        call(values.numpy(), 64, 95, tile.height, tile.width)
