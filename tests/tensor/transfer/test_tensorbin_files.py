"""TT-NN's .tensorbin files: those that TT-NN 0.81.1 wrote (in the folder tensorbin), ours, and damaged ones."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flatbuffers import Builder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttmesh.base import dtypes as d
from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.formats.tiles import Tile
from ttmesh.tensor.distribution.mappers import ReplicateTensorToMesh, ShardTensor2dMesh, ShardTensorToMesh
from ttmesh.tensor.spec.memory_config import MemoryConfig, NdShardSpec, ShardSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.flatbuffer_tables import FlatbufferError, Schema
from ttmesh.tensor.transfer.serialization import dump_tensor, load_tensor
from ttmesh.tensor.transfer.tensorbin_header import SCHEMA
from ttmesh.tensor.transfer.transfers import from_torch, to_torch

SAMPLES = Path(__file__).with_name("tensorbin")
MESH = MeshShape(2, 4)


def grid(x: int, y: int) -> CoreRangeSet:
    return CoreRangeSet([CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1))])


def sharded(layout: TensorMemoryLayout, buffer: BufferType, cores: CoreRangeSet, *shard: Any) -> MemoryConfig:
    return MemoryConfig(layout, buffer, ShardSpec(cores, *shard))


HEIGHT, WIDTH = TensorMemoryLayout.HEIGHT_SHARDED, TensorMemoryLayout.WIDTH_SHARDED
SHAPES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "padded": ((5, 7), {"layout": Layout.TILE, "pad_value": 3}),
    "small_tile": ((16, 7), {"layout": Layout.TILE, "tile": Tile((16, 16), True)}),
    "height": (
        (8, 16),
        {"memory_config": sharded(HEIGHT, BufferType.L1, grid(2, 2), [2, 16], ShardOrientation.COL_MAJOR)},
    ),
    "width_uneven": ((4, 40), {"memory_config": sharded(WIDTH, BufferType.DRAM, grid(3, 1), [4, 16])}),
    "nd": ((3, 8, 32), {"memory_config": MemoryConfig(BufferType.L1, NdShardSpec([1, 4, 16], grid(3, 2)))}),
    "mesh_shard": ((8, 3, 4), {"mesh_mapper": ShardTensorToMesh(MESH, 0)}),
    "mesh_replicate": ((3, 4), {"mesh_mapper": ReplicateTensorToMesh(MESH)}),
    "mesh_2d": ((2, 3, 8), {"mesh_mapper": ShardTensor2dMesh(MESH, (2, 4), (0, -1))}),
    "mesh_rows": ((2, 3, 8), {"mesh_mapper": ShardTensor2dMesh(MESH, (2, 4), (0, None))}),
    "mesh_few": ((3, 2, 4), {"mesh_mapper": ShardTensorToMesh(MESH, 0)}),
}


def make_sample(name: str) -> Tensor:
    """The tensor that TT-NN was given for a sample: 0, 1, 2 … 49, 0 …, less 20 where the format has a sign."""
    if name == "ones_int8":
        return from_torch(torch.ones(32, 32, dtype=torch.int8), d.int8)
    kind, _, format_name = name.partition("_")
    plain = kind in ("tile", "rows")
    shape, options = SHAPES.get(name) or ((5, 7) if kind == "tile" else (2, 3, 5), {})
    dtype = getattr(d, format_name) if plain else d.bfloat16
    counts = torch.arange(math.prod(shape)).reshape(shape) % 50
    values = counts.int() if plain and format_name[0] == "u" else (counts - 20).to(torch.float32)
    return from_torch(
        values.int() if dtype is d.int32 else values, dtype, **({"layout": Layout.TILE} if kind == "tile" else options)
    )


def data_of(path: Path) -> bytes:
    whole = path.read_bytes()
    return whole[8 + int.from_bytes(whole[:8], "little") :]


def assert_alike(tensor: Tensor, expected: Tensor) -> None:
    assert tensor.spec == expected.spec
    assert tensor.tile.transpose_tile == expected.tile.transpose_tile
    assert tensor.mesh_shape == expected.mesh_shape
    assert tensor.coords() == expected.coords()
    if tensor.mesh_shape == MESH:
        assert tensor.tensor_topology() == expected.tensor_topology()
    assert all(tensor.lane(coord).equal(expected.lane(coord)) for coord in expected.coords())


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.tensorbin")), ids=lambda path: path.stem)
def test_files_of_ttnn_are_read_and_written_alike(path: Path, tmp_path: Path) -> None:
    expected = make_sample(path.stem)

    loaded = load_tensor(path)

    assert_alike(loaded, expected)
    for tensor in (loaded, expected):
        dump_tensor(tmp_path / "again.tensorbin", tensor)
        assert data_of(tmp_path / "again.tensorbin") == data_of(path)
        assert_alike(load_tensor(tmp_path / "again.tensorbin"), expected)


def test_replicas_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "t.tensorbin"

    dump_tensor(path, from_torch(torch.rand(64, 64), d.bfloat16, mesh_mapper=ReplicateTensorToMesh(MESH)))

    assert len(data_of(path)) == 64 * 64 * 2
    assert load_tensor(path).lanes.shape == (1, 1, 64, 64)


def test_what_ttnn_cannot_write_is_refused_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match="Unexpected empty buffer during tensor serialization"):
        dump_tensor(tmp_path / "t.tensorbin", from_torch(torch.ones(0, 32)))
    with pytest.raises(MeshError, match="FP8_E4M3 cannot be serialized to flatbuffer"):
        dump_tensor(tmp_path / "t.tensorbin", from_torch(torch.ones(2, 32), d.fp8_e4m3))
    assert not list(tmp_path.iterdir())


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "x.tensorbin"
    config = sharded(HEIGHT, BufferType.L1, grid(2, 1), [32, 64])
    dump_tensor(
        path,
        from_torch(
            torch.arange(2 * 64 * 64).reshape(2, 64, 64) % 100,
            d.bfloat16,
            layout=Layout.TILE,
            memory_config=config,
            mesh_mapper=ShardTensorToMesh(MeshShape(1, 2), 0),
        ),
    )
    return path


def test_every_shortened_file_is_refused(good: Path) -> None:
    whole = good.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")

    for size in (*range(9), *range(9, header, 37), header, header + 1, len(whole) - 1):
        good.write_bytes(whole[:size])
        with pytest.raises(MeshError, match=r"too small to be valid|truncated or corrupt|most likely indicates data"):
            load_tensor(good)
    for broken in (b"\xff" * 8 + whole[8:], bytes(400), os.urandom(5000)):
        good.write_bytes(broken)
        with pytest.raises(MeshError, match=r"too small|truncated|data corruption|neither a file"):
            load_tensor(good)


def change(path: Path, edit: Any) -> None:
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    fields = SCHEMA.decode("Tensor", whole[8 : 8 + size])
    edit(fields)
    header = SCHEMA.encode("Tensor", fields)
    path.write_bytes(len(header).to_bytes(8, "little") + header + whole[8 + size :])


def test_the_encoder_gives_back_what_was_decoded(good: Path) -> None:
    before = load_tensor(good)

    change(good, lambda fields: None)

    assert load_tensor(good).kind is before.kind


EDITS: list[tuple[Any, str]] = [
    (lambda t: t["tensor_spec"].update(shape=[1, 32, 64]), "8192 bytes at 0 of 16384 for a shard of 4096"),
    (lambda t: t["tensor_spec"].update(shape=[1, 4096, 4096]), "Shard width 64 must match physical width 4096"),
    (lambda t: t["tensor_spec"].update(shape=[4, 2**32 - 1, 2**32 - 1]), "must match physical width 4294967296"),
    (lambda t: t["tensor_spec"].update(shape=None), "it has no shape"),
    (lambda t: t["tensor_spec"].update(shape=[1] * 200), r"shape \[1, 1"),
    (lambda t: t["tensor_spec"]["tensor_layout"].update(data_type=77), "data type 77 is none"),
    (lambda t: t["tensor_spec"]["tensor_layout"].update(page_config=None), "neither rows nor tiles"),
    (lambda t: t["tensor_spec"]["tensor_layout"].update(alignment=[0, 0]), "with alignment"),
    (lambda t: t["tensor_spec"]["tensor_layout"]["page_config"][1]["tile"].update(tile_shape_h=7), "not valid"),
    (lambda t: t["tensor_spec"]["tensor_layout"]["memory_config"].update(memory_layout=1), "TensorMemoryLayout 1 is"),
    (lambda t: t["tensor_spec"]["tensor_layout"]["memory_config"].update(buffer_type=9), "BufferType 9 is none"),
    (lambda t: t["tensor_spec"]["tensor_layout"]["memory_config"].update(shard_spec=None), "must have Shard Spec"),
    (
        lambda t: t["tensor_spec"]["tensor_layout"]["memory_config"]["shard_spec"]["grid"]["ranges"][0]["end"].update(
            x=2**31 - 1
        ),
        r"cores from \(0, 0\) to \(2147483647, 0\)",
    ),
    (lambda t: t["mesh_shape"].update(dimensions=[2**20, 2**20]), "its mesh has the shape"),
    (lambda t: t["mesh_shape"].update(dimensions=[]), "its mesh has the shape"),
    (lambda t: t["mesh_shape"].update(dimensions=[1, 1]), r"chip \[0, 1\] of a mesh of \[1, 1\]"),
    (lambda t: t.update(mesh_shape=None), "it has no mesh"),
    (lambda t: t.update(shards=[]), "it has no shards"),
    (lambda t: t["shards"][1]["mesh_coordinate"].update(values=[0, 0]), r"two shards for chip \[0, 0\]"),
    (lambda t: t["shards"][1]["buffer"][1].update(offset=2**63), "8192 bytes at 9223372036854775808 of 16384"),
    (lambda t: t["shards"][0]["buffer"][1].update(size=64), "64 bytes at 0 of 16384 for a shard of 8192"),
    (lambda t: t["shards"][0].update(buffer=None), "no place of a shard"),
    (lambda t: t["tensor_topology"]["placements"].clear(), "0 placements for 1 axes"),
    (lambda t: t["tensor_topology"]["placements"][0].update(type=7), "placement 7 is none"),
]


@pytest.mark.parametrize(("edit", "words"), EDITS, ids=[words[:30] for _, words in EDITS])
def test_headers_that_mean_nothing_are_refused(good: Path, edit: Any, words: str) -> None:
    change(good, edit)

    with pytest.raises(MeshError, match=words) as raised:
        load_tensor(good)

    assert str(good) in str(raised.value)


def test_a_file_without_topology_is_replicated(good: Path) -> None:
    change(good, lambda fields: fields.update(tensor_topology=None))

    assert load_tensor(good).tensor_topology().is_fully_replicated()


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_changed_header_gives_a_tensor_of_the_files_bytes_or_one_error(good: Path, changes: Any) -> None:
    whole = bytearray(good.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    for at, value in changes:
        whole[at % header] = value
    changed = good.with_name("changed.tensorbin")
    changed.write_bytes(whole)

    try:
        tensor = load_tensor(changed)
    except MeshError:
        return
    assert list(tensor.lanes.shape[tensor.mesh_shape.dims() :]) == list(tensor.shape)
    assert tensor.spec.packed_size_bytes <= len(whole)


def test_offsets_that_all_lead_to_one_place_are_no_bomb() -> None:
    schema = Schema({"Root": {"rows": "[Row]"}, "Row": {"values": "[uint]"}})
    builder = Builder(0)
    values = builder.CreateNumpyVector(np.arange(1000, dtype=np.uint32))
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, values, 0)
    row = builder.EndObject()
    builder.StartVector(4, 3000, 4)
    for _ in range(3000):
        builder.PrependUOffsetTRelative(row)
    rows = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, rows, 0)
    builder.Finish(builder.EndObject())

    with pytest.raises(FlatbufferError, match="over and over"):
        schema.decode("Root", bytes(builder.Output()))
    many = [{"values": [1, 2, 3, 4]}] * 3000
    assert schema.decode("Root", schema.encode("Root", {"rows": many})) == {"rows": many}


def test_values_go_through_bfloat16_into_sharded_block_floats() -> None:
    exact = torch.tensor([0.9668247699737549, 6.345658302307129]).repeat(32, 32)
    config = sharded(HEIGHT, BufferType.L1, grid(1, 1), [32, 64])

    rounded_twice = from_torch(exact, d.bfloat8_b, layout=Layout.TILE, memory_config=config)

    assert to_torch(from_torch(exact, d.bfloat8_b, layout=Layout.TILE))[0, 0] == 0.9375
    assert to_torch(rounded_twice)[0, 0] == 1.0  # as TT-NN 0.81.1 gives it


def test_transposed_tiles_stay_transposed_beside_plain_ones() -> None:
    values = torch.arange(32 * 32.0).reshape(32, 32)

    plain, transposed = (
        from_torch(values, d.float32, layout=Layout.TILE, tile=Tile((32, 32), turn)) for turn in (False, True)
    )

    assert (plain.tile.transpose_tile, transposed.tile.transpose_tile) == (False, True)
    assert to_torch(transposed).equal(values)
    assert not transposed.spec.to_bytes(transposed.lanes, 2).equal(plain.spec.to_bytes(plain.lanes, 2))
