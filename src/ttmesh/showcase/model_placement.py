"""How the example models are placed on a mesh: on one chip, data-parallel on 1x8, tensor-parallel on 2x4."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

import ttmesh.ttnn as ttnn
from ttmesh.mesh.functions.memory_reports import peak_bytes

console = Console(highlight=False, soft_wrap=True)
LEAST_PCC = {ttnn.bfloat16: 0.999, ttnn.bfloat8_b: 0.99}  # by the weights' format


@dataclass
class Placement:
    """A mesh and what it splits: batches along `batch_axis`, weights along `weight_axis` (None: not at all)."""

    name: str
    mesh: ttnn.MeshDevice
    batch_axis: int | None
    weight_axis: int | None
    weights: ttnn.DataType

    @property
    def weight_shards(self) -> int:
        """Over how many chips one weight is split."""
        return 1 if self.weight_axis is None else tuple(self.mesh.shape)[self.weight_axis]

    @property
    def batches(self) -> int:
        """Over how many chips a batch is split."""
        return 1 if self.batch_axis is None else tuple(self.mesh.shape)[self.batch_axis]

    def mapper(self, *, batch_dim: int | None = None, weight_dim: int | None = None) -> ttnn.TensorToMesh:
        """Split one tensor dim with the batch, another with the weights, replicate otherwise."""
        dims: list[int | None] = [None, None]
        if self.batch_axis is not None:
            dims[self.batch_axis] = batch_dim
        if self.weight_axis is not None:
            dims[self.weight_axis] = weight_dim
        return ttnn.ShardTensor2dMesh(self.mesh, mesh_shape=tuple(self.mesh.shape), dims=tuple(dims))

    def activation(
        self, values: torch.Tensor, batch_dim: int = 0, *, layout: ttnn.Layout = ttnn.TILE_LAYOUT
    ) -> ttnn.Tensor:
        """A batch in bfloat16."""
        mapper = self.mapper(batch_dim=batch_dim)
        return ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=layout, device=self.mesh, mesh_mapper=mapper)

    def weight(self, values: torch.Tensor, split: int | None = None, dtype: ttnn.DataType | None = None) -> ttnn.Tensor:
        """A weight, split along a dim over the chips that share the model."""
        mapper = self.mapper(weight_dim=split)
        return ttnn.from_torch(
            values, dtype=dtype or self.weights, layout=ttnn.TILE_LAYOUT, device=self.mesh, mesh_mapper=mapper
        )

    def total(self, partial: ttnn.Tensor) -> ttnn.Tensor:
        """The sum over the chips that share the model."""
        return partial if self.weight_axis is None else ttnn.all_reduce(partial, cluster_axis=self.weight_axis)

    def whole(self, result: ttnn.Tensor, batch_dim: int = 0) -> torch.Tensor:
        """The full batch, from the chips that hold different shards of it."""
        shards = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(result)]
        stride = len(shards) // self.batches if self.batch_axis == 0 else 1
        return torch.cat([shards[i * stride] for i in range(self.batches)], dim=batch_dim).float()


Model = Callable[[Placement], tuple[torch.Tensor, torch.Tensor]]
SHAPES = (
    ("single chip 1x1", (1, 1), None, None),
    ("data-parallel 1x8", (1, 8), 1, None),
    ("tensor-parallel 2x4", (2, 4), 0, 1),
)


def pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    """Pearson's correlation."""
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


def draw(placement: Placement) -> None:
    """What every chip holds at the end, and the most it ever held."""
    mesh = placement.mesh
    table = Table("device", "at", "DRAM now", "most", "L1 now", "most", title=f"{placement.name}: memory per device")
    cells = []
    for kind in (ttnn.BufferType.DRAM, ttnn.BufferType.L1):
        view = ttnn.get_memory_view(mesh, kind)
        most = peak_bytes(mesh, kind)
        used = view.num_banks * view.total_bytes_allocated_per_bank
        filled = round(6 * used / max(most, 1))
        cells += [f"{'█' * filled}{'░' * (6 - filled)} {used / 2**20:.2f} MiB", f"{most / 2**20:.2f} MiB"]
    rows, columns = tuple(mesh.shape)
    for row in range(rows):
        for column in range(columns):
            chip = mesh.get_device_id(ttnn.MeshCoordinate(row, column))
            table.add_row(str(chip), f"({row}, {column})", *cells)
    console.print(table)


def run(name: str, model: Model) -> int:
    """Run a model in every placement and weight format, compare with torch, show the memory; 1 when one differs."""
    worst = 0
    for title, shape, batch_axis, weight_axis in SHAPES:
        for weights in (ttnn.bfloat16, ttnn.bfloat8_b):
            ttnn.set_fabric_config(
                ttnn.FabricConfig.FABRIC_1D if weight_axis is not None else ttnn.FabricConfig.DISABLED
            )
            mesh = ttnn.open_mesh_device(ttnn.MeshShape(*shape))
            placement = Placement(f"{name}, {title}", mesh, batch_axis, weight_axis, weights)
            start = time.perf_counter()
            got, expected = model(placement)
            seconds = time.perf_counter() - start
            agreement = pcc(got, expected)
            good = agreement >= LEAST_PCC[weights]
            worst = worst if good else 1
            console.print(
                f"{'✓' if good else '✗'} {placement.name}, weights {weights.name.lower()}: PCC {agreement:.5f} "
                f"(at least {LEAST_PCC[weights]}), {seconds:.2f} s"
            )
            if weights is ttnn.bfloat8_b:
                draw(placement)
            ttnn.close_mesh_device(mesh)
            ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
    return worst


def main(name: str, model: Model) -> None:
    """Run as a program."""
    with torch.no_grad():
        sys.exit(run(name, model))
