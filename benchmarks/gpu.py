"""Operations, collectives and traces on one NVIDIA GPU beside what the GPU allows: memory bandwidth, or torch's own calls.

python benchmarks/gpu.py [--json FILE] [--only WORD]

Every row is timed in the same run as its limit, with the GPU's own clock over many calls. For what moves memory the
limit is the bytes that must be read and written, at the bandwidth of a large copy; for the rest it is the same work
called from torch. A row says whether its aim is met or missed; the file of --json has all of them, with the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ["TTMESH_BACKEND"] = "cuda"
os.environ.setdefault("TTMESH_SYSTEM", "galaxy")

import gpu_models
import torch
from rich.console import Console
from rich.table import Table

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.chip.formats import packing

MIB = 1 << 20
ROUNDS, CALLS = 5, 20
LEAST_US = 1e5  # rounds go on for so long: a busy moment of the host is not what is measured
MODELS = "Llama decode layer, training step"
DTYPES = {"float32": (ttnn.float32, torch.float32), "bfloat16": (ttnn.bfloat16, torch.bfloat16)}


class Row(NamedTuple):
    """A figure, what it is measured against, and how many times that it may take."""

    name: str
    ours_us: float
    limit_us: float
    limit: str
    aim: float

    @property
    def ratio(self) -> float:
        """Times the limit."""
        return self.ours_us / self.limit_us

    @property
    def verdict(self) -> str:
        """Whether the aim is met."""
        return "met" if self.ratio <= self.aim else "missed"


def time_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """The best of a few rounds, per call."""
    for _ in range(3):
        call()
    best, taken, rounds = float("inf"), 0.0, 0
    while rounds < ROUNDS or taken < LEAST_US:
        rounds += 1
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        round_us = begin.elapsed_time(end) * 1e3
        best, taken = min(best, round_us / calls), taken + round_us
    return best


def measure_bandwidth() -> float:
    """Bytes per microsecond of a copy of 1 GiB."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_us(lambda: target.copy_(source))


def fill(mesh: ttnn.MeshDevice, shape: tuple[int, ...], dtype: ttnn.DataType) -> ttnn.Tensor:
    """A tensor with its first dim split over the chips; a million random numbers, again and again."""
    values = torch.randn(1 << 20).repeat(math.prod(shape) // (1 << 20) + 1)[: math.prod(shape)].reshape(shape)
    return ttnn.from_torch(
        values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=mesh,
        mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0),
    )  # fmt: skip


def time_collectives(mesh: ttnn.MeshDevice, bandwidth: float) -> Iterator[Row]:
    """Sums and gathers over all chips of one row. What every chip gets alike is stored once."""
    n = mesh.get_num_devices()
    for name, (dtype, stored) in DTYPES.items():
        for mib in (1, 16, 64, 256):
            if n * mib > 4096:
                continue
            size = mib * MIB
            small = mib == 1
            rows = 256 if small else 1024  # whole tiles for every chip
            x = fill(mesh, (n, 1, rows, size // stored.itemsize // rows), dtype)
            aim, limit = (25.0, 1.0) if small else (1.25, (n + 1) * size / bandwidth)
            unit = "1 µs" if small else "bandwidth"
            for operation, call in (
                ("all_reduce", lambda x=x: ttnn.all_reduce(x, cluster_axis=1)),
                ("reduce_scatter", lambda x=x: ttnn.reduce_scatter(x, 3, cluster_axis=1)),
            ):
                yield Row(f"{operation} {n} x {mib} MiB {name}", time_us(call), limit, unit, aim)
            if not small:  # written out: every shard read once and written once
                gather = time_us(lambda x=x: ttnn.all_gather(x, 3, cluster_axis=1))
                yield Row(f"all_gather {n} x {mib} MiB {name}", gather, 2 * n * size / bandwidth, "bandwidth", 1.25)
            del x


def time_formats(mesh: ttnn.MeshDevice, bandwidth: float) -> Iterator[Row]:
    """Block floats: one value is 2 bytes in lanes."""
    n = mesh.get_num_devices()
    x = fill(mesh, (n, 1, 4096, 4096), ttnn.bfloat16)
    lane_bytes = n * 4096 * 4096 * 2
    y, z = ttnn.typecast(x, ttnn.bfloat8_b), ttnn.typecast(x, ttnn.bfloat8_b)
    limit = 2 * lane_bytes / bandwidth
    yield Row(
        "typecast bfloat16 to bfloat8_b", time_us(lambda: ttnn.typecast(x, ttnn.bfloat8_b)), limit, "bandwidth", 1.3
    )
    yield Row("add of two bfloat8_b", time_us(lambda: ttnn.add(y, z)), 3 * lane_bytes / bandwidth, "bandwidth", 1.3)
    for name, values in (("bfloat16", x), ("bfloat8_b", y)):
        packed = values.buffer.cell.read(values.spec)
        cell_bytes = lane_bytes if name == "bfloat16" else lane_bytes * 1088 // 2048
        lanes, dtype, tile = packed.flatten(0, -3), values.dtype, ttnn.Tile((32, 32))
        tiled = packing.pack(lanes, dtype, ttnn.TILE_LAYOUT, tile)
        limit = (lane_bytes + cell_bytes) / bandwidth
        size = tuple(lanes.shape[-2:])
        tilize = time_us(lambda lanes=lanes, dtype=dtype, tile=tile: packing.pack(lanes, dtype, ttnn.TILE_LAYOUT, tile))
        yield Row(f"tiles of {name}, packed", tilize, limit, "bandwidth", 1.3)
        untilize = time_us(
            lambda tiled=tiled, size=size, dtype=dtype, tile=tile: packing.unpack(
                tiled, size, dtype, ttnn.TILE_LAYOUT, tile
            )
        )
        yield Row(f"tiles of {name}, unpacked", untilize, limit, "bandwidth", 1.3)
    lanes = torch.randn(n, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    for name, ours, theirs in (
        ("softmax", lambda: ttnn.softmax(x, dim=-1), lambda: torch.softmax(lanes, -1)),
        ("gelu", lambda: ttnn.gelu(x), lambda: torch.nn.functional.gelu(lanes)),
    ):
        yield Row(f"{name} bfloat16", time_us(ours), time_us(theirs), "torch", 1.3)


def capture_trace(mesh: ttnn.MeshDevice, call: Callable[[], object]) -> Callable[[], None]:
    """A trace of ttnn calls, warmed up."""
    call()
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    kept = call()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)

    def replay() -> None:
        assert kept is not None
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)

    return replay


def time_traces(mesh: ttnn.MeshDevice) -> Iterator[Row]:
    """Twenty small operations, and the two matmuls of a decode step."""
    n = mesh.get_num_devices()
    x = fill(mesh, (n, 1, 32, 1024), ttnn.bfloat16)
    lanes = torch.randn(n, 32, 1024, device="cuda", dtype=torch.bfloat16)

    def ours() -> ttnn.Tensor:
        y = x
        for _ in range(10):
            y = ttnn.relu(ttnn.add(y, y))
        return y

    def theirs() -> torch.Tensor:
        y = lanes
        for _ in range(10):
            y = torch.relu(torch.add(y, y))
        return y

    graph = gpu_models.capture_graph(theirs)
    yield Row(
        "trace of 20 operations", time_us(capture_trace(mesh, ours), 100), time_us(graph.replay, 100), "CUDA graph", 1.2
    )
    for tokens, label in ((32, "decode"), (4096, "prefill")):
        yield time_mlp(mesh, tokens, label)


def time_mlp(mesh: ttnn.MeshDevice, tokens: int, label: str) -> Row:
    """A tensor-parallel MLP with an all_reduce beside its two batched matmuls in torch."""
    n, width, hidden = mesh.get_num_devices(), 4096, 14336 // 8 * 8 // mesh.get_num_devices()
    a = ttnn.from_torch(torch.randn(1, 1, tokens, width), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    up, down = fill(mesh, (n, 1, width, hidden), ttnn.bfloat16), fill(mesh, (n, 1, hidden, width), ttnn.bfloat16)
    rows = torch.randn(1, tokens, width, device="cuda", dtype=torch.bfloat16)
    first = torch.randn(n, width, hidden, device="cuda", dtype=torch.bfloat16)
    second = torch.randn(n, hidden, width, device="cuda", dtype=torch.bfloat16)

    def ours() -> ttnn.Tensor:
        return ttnn.all_reduce(ttnn.matmul(ttnn.matmul(a, up), down), cluster_axis=1)

    def theirs() -> torch.Tensor:
        return torch.matmul(torch.matmul(rows, first), second)

    call = capture_trace(mesh, ours)
    return Row(
        f"tensor-parallel MLP, {label}, traced",
        time_us(call),
        time_us(gpu_models.capture_graph(theirs).replay),
        "two GEMMs",
        1.1,
    )


def time_transfers(mesh: ttnn.MeshDevice) -> Iterator[Row]:
    """Host to device."""
    values = torch.randn(64 * MIB // 4)[None].reshape(1, 1, 4096, -1)
    ours = time_us(lambda: ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh), 3)
    yield Row("from_torch 64 MiB float32", ours, time_us(lambda: values.cuda(), 3), "Tensor.cuda", 1.3)


def describe_machine(bandwidth: float) -> dict[str, str]:
    """What the figures depend on."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "copy": f"{bandwidth / 1e6:.2f} TB/s",
        "torch": torch.__version__,
        "ttmesh": ttmesh.__version__,
        "processors": str(os.cpu_count()),
    }


def collect_rows(only: str, bandwidth: float) -> Iterator[Row]:
    """Every row, on 8 chips and sums on 32 as well."""
    for shape in ((1, 8), (1, 32)):
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)  # closing a mesh disables it
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(*shape), trace_region_size=4 * MIB)
        groups: list[Callable[[], Iterator[Row]]] = [lambda mesh=mesh: time_collectives(mesh, bandwidth)]
        if shape == (1, 8):
            groups += [
                lambda mesh=mesh: time_formats(mesh, bandwidth),
                lambda mesh=mesh: time_traces(mesh),
                lambda mesh=mesh: time_transfers(mesh),
            ]
        for group in groups:
            yield from (row for row in group() if only in row.name)
        ttnn.close_mesh_device(mesh)
    if only in MODELS:
        yield from (Row(*row) for row in gpu_models.time_models())


def main() -> int:
    """Print the table; 1 when a row misses its aim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device: nothing to measure")
        return 0
    bandwidth = measure_bandwidth()
    machine, rows = describe_machine(bandwidth), list[Row]()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    with ttmesh.numerics("ideal"):
        for row in collect_rows(arguments.only, bandwidth):
            rows.append(row)
            print(f"{row.name}: {row.ours_us:.1f} µs, {row.ratio:.2f}, aim {row.aim} {row.verdict}", flush=True)
    table = Table("row", "ttmesh µs", "limit or peer", "µs", "ratio", "aim", "")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.ours_us:.1f}",
            row.limit,
            f"{row.limit_us:.1f}",
            f"{row.ratio:.2f}",
            f"{row.aim}",
            row.verdict,
        )
    Console(width=120).print(table)
    missed = sum(row.verdict == "missed" for row in rows)
    print(f"{len(rows)} rows, {missed} missed their aim")
    if arguments.json:
        found = [row._asdict() | {"ratio": round(row.ratio, 3), "verdict": row.verdict} for row in rows]
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"machine": machine, "rows": found}, indent=2))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
