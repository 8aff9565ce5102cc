"""Views of a fused tensor, and their files, as TT-NN 0.81.1 has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError

SAMPLE = Path(__file__).parent / "tensorbin" / "two_views.overlappedtensorbin"  # written by TT-NN
CORES = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(1, 0))])


def make_fused(**options: Any) -> Any:
    spec = ttnn.ShardSpec(CORES, [1, 256], ttnn.ShardOrientation.ROW_MAJOR)
    config = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)
    values = torch.arange(512, dtype=torch.int32).reshape(2, 256)
    return ttnn.from_torch(values, dtype=ttnn.uint32, memory_config=config, **options)


def make_views(fused: Any) -> dict[str, Any]:
    view = ttnn.OverlappedTensor
    return {
        "a": view(fused, [2, 128], [1, 128], CORES, ttnn.bfloat16, [32, 32]),
        "b": view(fused, (2, 64), (1, 64), CORES, ttnn.bfloat8_b, (16, 32), byte_offset=3, total_size=4096),
    }


def fields(view: Any) -> tuple[Any, ...]:
    places = view.byte_offset, view.total_size
    return view.tensor_shape, view.shard_shape, view.core_range_set, view.dtype, view.tile_shape, *places


def test_files_of_ttnn_are_read_and_written_again(tmp_path: Path) -> None:
    expected, files = make_views(make_fused()), ttnn._ttnn.tensor

    loaded = files.load_overlapped_tensors(SAMPLE)
    files.dump_overlapped_tensors(tmp_path / "x.overlappedtensorbin", loaded)
    again = files.load_overlapped_tensors(str(tmp_path / "x.overlappedtensorbin"))

    for views in (loaded, again):
        assert {name: fields(view) for name, view in views.items()} == {n: fields(v) for n, v in expected.items()}
        assert views["a"].fused_tensor is views["b"].fused_tensor
        assert views["a"].fused_tensor.spec == expected["a"].fused_tensor.spec
        assert views["a"].fused_tensor.lanes.equal(expected["a"].fused_tensor.lanes)
    assert expected["b"].get_tile() == ttnn.Tile((16, 32))


def test_a_device_holds_the_fused_tensor_once(tmp_path: Path) -> None:
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    path = tmp_path / "x.overlappedtensorbin"
    ttnn._ttnn.tensor.dump_overlapped_tensors(path, make_views(make_fused(device=mesh)))

    loaded = ttnn._ttnn.tensor.load_overlapped_tensors(path, device=mesh)

    assert loaded["a"].fused_tensor.device() is mesh
    assert loaded["a"].fused_tensor.buffer_address() == loaded["b"].fused_tensor.buffer_address()
    ttnn.close_mesh_device(mesh)


def test_what_ttnn_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    files, path = ttnn._ttnn.tensor, tmp_path / "x.overlappedtensorbin"
    views = make_views(make_fused())

    with pytest.raises(MeshError, match=r"must have \.overlappedtensorbin extension"):
        files.dump_overlapped_tensors(tmp_path / "x.bin", views)
    with pytest.raises(MeshError, match="Need at least one view to serialize"):
        files.dump_overlapped_tensors(path, {})
    with pytest.raises(MeshError, match=r"must reference the same fused tensor \(view 1 differs\)"):
        files.dump_overlapped_tensors(path, {"a": views["a"], "c": make_views(make_fused())["b"]})
    with pytest.raises(TypeError, match=r"incompatible function arguments: tensor_shape=\[1, 2, 3\]"):
        ttnn.OverlappedTensor(make_fused(), [1, 2, 3], [1, 1], CORES, ttnn.bfloat16, [32, 32])
    whole = SAMPLE.read_bytes()
    for broken, words in ((whole[:5], "too small"), (whole[:100], "truncated or corrupt"), (bytes(400), "corruption")):
        path.write_bytes(broken)
        with pytest.raises(MeshError, match=words):
            files.load_overlapped_tensors(path)
