"""Files of earlier versions that somebody made up, cut short or changed: one error that names the file, no wrong values."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ttmesh.base import dtypes as d
from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshShape
from ttmesh.tensor.distribution.mappers import ShardTensorToMesh
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer import tensorbin_files
from ttmesh.tensor.transfer.safetensors_files import DTYPE_NAMES, read_tensors, write_tensors
from ttmesh.tensor.transfer.serialization import dump_tensor, load_tensor
from ttmesh.tensor.transfer.tensor_descriptions import describe
from ttmesh.tensor.transfer.transfers import from_torch, to_torch

REFUSALS = "is neither a file of TT-NN nor|is too small to be valid|is truncated or corrupt"
DEEP = "[" * 100_000 + "]" * 100_000


def dump_earlier(path: Path, tensor: Tensor) -> None:
    """A file as ttmesh wrote it before it wrote TT-NN's."""
    write_tensors(path, {"lanes": tensor.lanes}, {"ttmesh": json.dumps(describe(tensor))})


@pytest.fixture
def good(tmp_path: Path) -> tuple[Path, dict[str, Any], torch.Tensor]:
    """A file, what it says and what it holds."""
    path = tmp_path / "x.tensorbin"
    tensor = from_torch(
        torch.rand(2, 64, 64), d.bfloat16, layout=Layout.TILE, mesh_mapper=ShardTensorToMesh(MeshShape(1, 2), 0)
    )
    dump_earlier(path, tensor)
    with safe_open(path, framework="pt") as file:
        return path, json.loads(file.metadata()["ttmesh"]), file.get_tensor("lanes")


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"shape": [1, 4096, 4096]}, r"describes shape \[1, 4096, 4096\] .* holds values of shape \[1, 2, 1, 64, 64\]"),
    ({"shape": [1, 32, 32]}, "holds values of shape"),
    ({"shape": [1, 64]}, "holds values of shape"),
    ({"shape": [10**9, 10**9]}, "holds values of shape"),
    ({"shape": [10**30]}, r"damaged: .*\$.shape"),
    ({"shape": [1, -64, 64]}, r"damaged: .*\$.shape"),
    ({"shape": "abcd"}, r"damaged: .*\$.shape"),
    ({"dtype": "FLOAT32"}, "describes FLOAT32, and holds values of torch.bfloat16"),
    ({"dtype": "nope"}, "dtype 'nope', which does not exist"),
    ({"dtype": "INVALID"}, "dtype 'INVALID', which does not exist"),
    ({"layout": "nope"}, "KeyError: 'nope'"),
    ({"layout": "ROW_MAJOR"}, "layout ROW_MAJOR with tile"),
    ({"tile": None}, "layout TILE with tile None"),
    ({"tile": [[0, 0], False]}, r"damaged: .*\$.tile"),
    ({"tile": [[7, 9], False]}, "Tile size is not valid"),
    ({"mesh": [10**9, 10**9]}, "a mesh of 1000000000x1000000000 chips"),
    ({"mesh": [2, 4]}, r"describes shape \[1, 64, 64\] on \[2, 4\] chips"),
    ({"mesh": []}, r"damaged: .*\$.mesh"),
    ({"part": [[0, 0], [5, 5]]}, "holds values of shape"),
    ({"part": [[0, 7], [1, 2]]}, r"a block of \[1, 2\] at \[0, 7\] of a mesh of \[1, 2\]"),
    ({"presence": [[0, 9]]}, r"names chip \[0, 9\]"),
    ({"topology": [[2], [0, 1], [[0, 0]]]}, "2 placements for 1 axes"),
    ({"memory": {"layout": "HEIGHT_SHARDED", "buffer": "nope"}}, "KeyError: 'nope'"),
    ({"memory": {"layout": "HEIGHT_SHARDED", "buffer": "L1", "shard": [[0], [], "ROW_MAJOR", None]}}, "damaged"),
    ({"version": 99}, "has version 99"),
    ({"colour": "blue"}, "unknown field `colour`"),
]


def test_files_of_earlier_versions_are_read(good) -> None:
    path, _, lanes = good

    assert load_tensor(path).lanes.equal(lanes)


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[str(c)[:40] for c, _ in CHANGES])
def test_a_description_that_contradicts_the_values_is_refused(good, change: dict[str, Any], words: str) -> None:
    path, described, lanes = good
    save_file({"lanes": lanes}, path, {"ttmesh": json.dumps(described | change)})

    with pytest.raises(MeshError, match=words) as raised:
        load_tensor(path)

    assert "version" in change or str(path) in str(raised.value)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", "null", "3", DEEP, '{"version": 1}', "9" * 5000], ids=lambda t: t[:9]
)
def test_texts_that_describe_nothing_are_refused(good, text: str) -> None:
    path, _, lanes = good
    save_file({"lanes": lanes}, path, {"ttmesh": text})

    with pytest.raises(MeshError, match=r"has version|not JSON|damaged"):
        load_tensor(path)


@pytest.mark.parametrize(
    "values", [lambda t: t.to(torch.int8), lambda t: t.flatten(), lambda t: t[..., :32].contiguous()], ids=range(3)
)
def test_other_values_than_described_are_refused(good, values: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path, described, lanes = good
    save_file({"lanes": values(lanes)}, path, {"ttmesh": json.dumps(described)})

    with pytest.raises(MeshError, match="and holds values of"):
        load_tensor(path)


def test_numbers_outside_of_their_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tensorbin"
    dump_earlier(path, from_torch(torch.tensor([[1, 2]]), d.uint16))
    with safe_open(path, framework="pt") as file:
        text = file.metadata()["ttmesh"]
    save_file({"lanes": torch.tensor([[[[1, 70_000]]]], dtype=torch.int32)}, path, {"ttmesh": text})

    with pytest.raises(MeshError, match="holds values outside of UINT16"):
        load_tensor(path)


def test_every_shortened_file_is_refused(good) -> None:
    path, _, _ = good
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]

    for size in (*range(9), *range(9, header, 37), header, header + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(MeshError, match=REFUSALS):
            load_tensor(path)
    for broken in (struct.pack("<Q", 2**63) + whole[8:], os.urandom(5000), whole + b"more"):
        path.write_bytes(broken)
        with pytest.raises(MeshError, match=REFUSALS):
            load_tensor(path)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_header_gives_the_same_tensor_or_one_error(good, data: st.DataObject) -> None:
    path, described, lanes = good
    save_file({"lanes": lanes}, path, {"ttmesh": json.dumps(described)})
    whole = bytearray(path.read_bytes())
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole)

    try:
        tensor = load_tensor(path)
    except MeshError:
        return
    assert list(tensor.lanes.shape[-tensor.shape.rank :]) == list(tensor.shape)
    assert tensor.lanes.equal(lanes.view(tensor.lanes.dtype))


def test_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    (tmp_path / "f").mkdir()

    for name, words in (("p", "is not a file"), ("f", "is not a file"), ("none", "does not exist")):
        with pytest.raises(MeshError, match=words):
            read_tensors(tmp_path / name)


def test_files_are_those_of_safetensors_in_every_dtype(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.tensor([[0, 1], [1, 0], [1, 1]]).to(dtype) for dtype in DTYPE_NAMES}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "turned": torch.rand(3, 5).T}

    write_tensors(tmp_path / "ours", tensors, {"text": "ü"})

    theirs, (ours, texts) = load_file(tmp_path / "ours"), read_tensors(tmp_path / "ours")
    assert texts == {"text": "ü"}
    assert theirs.keys() == ours.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for found in (theirs[name], ours[name]):
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
            assert found.float().equal(tensor.float())


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tensorbin"
    dump_tensor(path, from_torch(torch.ones(2)))
    monkeypatch.setattr(tensorbin_files, "replace_file", lambda path: (_ for _ in ()).throw(OSError(28, "No space")))

    with pytest.raises(MeshError, match=r"Cannot open .* for writing: .*No space"):
        dump_tensor(path, from_torch(torch.zeros(2)))

    monkeypatch.undo()
    assert to_torch(load_tensor(path)).tolist() == [1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_values_stay_when_the_file_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.tensorbin"
    dump_tensor(path, from_torch(torch.full((64, 64), 3.0)))
    loaded = load_tensor(path)

    dump_tensor(path, from_torch(torch.full((8, 8), 9.0)))

    assert (to_torch(loaded) == 3).all()
