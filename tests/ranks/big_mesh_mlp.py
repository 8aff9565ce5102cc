"""An MLP on a mesh that ranks divide, run until something happens to a rank.

    python big_mesh_mlp.py FOLDER TIMEOUT_S

Every rank compares its first result with torch and says so in FOLDER/sumsN. It goes on until an operation takes longer
than the timeout, and writes what it was told then to FOLDER/toldN.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.errors import RankError

SHAPE = (2, 8)


def main(folder: Path, timeout_s: float) -> None:
    settings.override("TTMESH_TIMEOUT_S", timeout_s)
    settings.override("TTMESH_SYSTEM", "2x8")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*SHAPE))
    rank = int(ttnn.distributed_context_get_rank())
    draw = torch.Generator().manual_seed(0)
    x, up, down = (torch.randn(*shape, generator=draw) / 8 for shape in ((64, 64), (64, 256), (256, 64)))

    def on(values: torch.Tensor, dims: tuple[int | None, int | None]) -> ttnn.Tensor:
        mapper = ttnn.ShardTensor2dMesh(mesh, SHAPE, dims)
        return ttnn.from_torch(values, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=mapper)

    held = on(x, (0, None)), on(up, (None, 1)), on(down, (None, 0))

    def forward() -> ttnn.Tensor:
        hidden = ttnn.relu(ttnn.matmul(held[0], held[1]))
        return ttnn.all_reduce(ttnn.matmul(hidden, held[2]), cluster_axis=1)

    found = ttnn.to_torch(forward(), mesh_composer=ttnn.ConcatMesh2dToTensor(mesh, SHAPE, (0, 1)))
    expected = torch.relu(x @ up) @ down
    assert torch.allclose(found, expected.repeat(1, 8), atol=1e-4), (found - expected.repeat(1, 8)).abs().max()
    tell(folder, f"sums{rank}", str(os.getpid()))
    while True:
        try:
            forward()
        except RankError as error:
            tell(folder, f"told{rank}", str(error))
            wait(folder / "seen")
            os._exit(1)


def tell(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.part").write_text(text)
    (folder / f"{name}.part").rename(folder / name)


def wait(sign: Path) -> None:
    """Until the test has looked, or long enough."""
    deadline = time.monotonic() + 180
    while not sign.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
