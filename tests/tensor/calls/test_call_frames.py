"""A repeated call enters few Python functions; the counts are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator

import frames
import pytest

import ttmesh
import ttmesh.ttnn as ttnn


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_BACKEND", "cpu")  # a GPU's kernels have frames of their own
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.mark.parametrize("mode", ["ideal", "realistic"])
@pytest.mark.parametrize("name", frames.LIMITS)
def test_a_repeated_call_takes_few_frames(mesh: ttnn.MeshDevice, name: str, mode: str) -> None:
    with ttmesh.numerics(mode):
        entered = frames.frames(frames.calls(mesh)[name])

    assert 0 < len(entered) <= frames.LIMITS[name], [f"{code.co_filename}:{code.co_name}" for code in entered]
