"""Seed 001's program: fill a 2x4 mesh, compute on all chips at once, free step by step, end where it began.

python examples/mesh_allocation.py
python examples/mesh_allocation.py --megabytes 10                  # smaller tensors
TT_ALLOC_TRACKING_ENABLED=1 python examples/mesh_allocation.py     # with `ttmesh server` running beside it
"""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console
from rich.table import Table

import ttmesh.ttnn as ttnn

ROWS, COLUMNS = 2, 4
MEGABYTES = 100
console = Console(highlight=False)


def step(number: int, text: str) -> None:
    console.print(f"\n[bold]\\[Step {number}][/bold] {text}")


def held(mesh: ttnn.MeshDevice) -> dict[str, int]:
    """Bytes in use per chip and buffer type: the same on all chips, because a mesh allocates in lock step."""
    views = {name: ttnn.get_memory_view(mesh, getattr(ttnn.BufferType, name)) for name in ("DRAM", "L1")}
    return {name: view.num_banks * view.total_bytes_allocated_per_bank for name, view in views.items()}


def show_memory(mesh: ttnn.MeshDevice, title: str) -> None:
    """What every chip holds, on the mesh grid."""
    now = held(mesh)
    table = Table(title=title, show_header=False, show_lines=True)
    for row in range(ROWS):
        ids = [mesh.get_device_id(ttnn.MeshCoordinate(row, column)) for column in range(COLUMNS)]
        table.add_row(*(f"Dev. ID: {chip}\nDRAM {now['DRAM'] / 2**20:.0f} MiB" for chip in ids))
    console.print(table)


def distribute_random(mesh: ttnn.MeshDevice, megabytes: int, seed: int) -> ttnn.Tensor:
    """A bfloat16 tensor with so many MiB on each chip: random numbers, times 1 on the first chip, times 8 on the last."""
    rows = megabytes * 2**20 // (1024 * 2)
    one_chip = torch.randn(1, 1, rows, 1024, generator=torch.Generator().manual_seed(seed)).bfloat16()
    values = one_chip * torch.arange(1, ROWS * COLUMNS + 1).bfloat16().reshape(-1, 1, 1, 1)
    return ttnn.from_torch(
        values, layout=ttnn.TILE_LAYOUT, device=mesh, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)
    )


def main(megabytes: int = MEGABYTES) -> int:
    step(1, "Opening 8-Device Mesh (2x4 Topology)")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(ROWS, COLUMNS))
    baseline = held(mesh)
    console.print(f"✓ Mesh device opened: {mesh}")
    show_memory(mesh, "Mesh topology")

    step(2, f"Creating Distributed Tensor ({megabytes}MB per device)")
    first = distribute_random(mesh, megabytes, seed=1)
    console.print("✓ Tensor distributed across mesh!")

    step(3, f"Creating Second Distributed Tensor ({megabytes}MB per device)")
    second = distribute_random(mesh, megabytes, seed=2)
    console.print("✓ Second tensor distributed!")
    show_memory(mesh, "Two tensors on every chip")

    step(4, "Performing Distributed Computation (Add)")
    total = ttnn.add(first, second)
    console.print("✓ Distributed addition completed!")

    step(5, "Performing Distributed MatMul")
    weight = ttnn.from_torch(torch.randn(1024, 64).bfloat16(), layout=ttnn.TILE_LAYOUT, device=mesh)
    output = ttnn.matmul(total, weight)
    console.print("✓ Distributed matmul completed!")
    show_memory(mesh, "Five tensors on every chip")

    step(6, "Deallocating Tensors - WATCH MEMORY DROP!")
    for name, tensor in [
        ("output", output),
        ("weight", weight),
        ("sum", total),
        ("second", second),
        ("first", first),
    ]:
        ttnn.deallocate(tensor)
        console.print(f"  {name:8} freed: {held(mesh)['DRAM'] / 2**20:.0f} MiB of DRAM in use per device")

    after = held(mesh)
    returned = after == baseline
    verdict = "✓ every device returned to its baseline" if returned else f"✗ baseline {baseline}, now {after}"
    console.print(f"\n[bold]{verdict}[/bold]")
    ttnn.close_mesh_device(mesh)
    return 0 if returned else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--megabytes", type=int, default=MEGABYTES, help="size of a tensor on each chip (default %(default)s)"
    )
    megabytes = parser.parse_args().megabytes
    if megabytes < 1:
        parser.error(f"--megabytes {megabytes}; expected 1 or more")
    sys.exit(main(megabytes))
