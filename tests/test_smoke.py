"""The shortest possible proof of life: one mesh, one tensor, one operation, and imports that stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn


def test_a_sharded_sum_comes_back() -> None:
    values = torch.arange(8 * 32 * 32, dtype=torch.float32).reshape(8, 32, 32)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))

    shards = ttnn.from_torch(
        values, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
    )
    doubled = ttnn.to_torch(ttnn.add(shards, shards), mesh_composer=ttnn.ConcatMeshToTensor(mesh, dim=0))

    assert torch.equal(doubled, values * 2)
    ttnn.close_mesh_device(mesh)


def test_importing_the_package_and_its_tools_does_not_import_torch() -> None:
    code = "import sys, ttmesh, ttmesh.tracking, ttmesh.cli; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_version_is_known() -> None:
    assert ttmesh.__version__.count(".") == 2


def test_systems_and_backends_that_do_not_exist_are_refused_when_they_are_chosen() -> None:
    with pytest.raises(RuntimeError, match=r"no system named 'n151'.*Did you mean n150"):
        ttmesh.configure(system="n151")
    with pytest.raises(RuntimeError, match="no backend named 'cda'"):
        ttmesh.configure(backend="cda")
