"""Runs drawn calls on a mesh under whichever `ttnn` is imported and writes what each did, one JSON object per line.

Under ttmesh: `TTMESH_SYSTEM=t3000 ttmesh run benchmarks/agreement/mesh_session.py CALLS OUT [REAL]`; under TT-NN (a mock cluster or
chips): the same file with TT-NN's Python. A call that ends the process is recorded as a crash and the next process goes on.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy

CALLS_PER_MESH = 50
FORMATS = {
    "bf16": "bfloat16", "f32": "float32", "bf8": "bfloat8_b", "bf4": "bfloat4_b",
    "u32": "uint32", "i32": "int32", "u16": "uint16", "u8": "uint8",
}  # fmt: skip
INTEGERS = ("u32", "i32", "u16", "u8")


class Session:
    """One open mesh, and the words that calls are written in."""

    def __init__(self, shape: tuple[int, int], fabric: str) -> None:
        import torch
        import ttnn

        self.torch, self.ttnn = torch, ttnn
        ttnn.set_fabric_config(getattr(ttnn.FabricConfig, fabric))
        self.mesh = ttnn.open_mesh_device(ttnn.MeshShape(*shape), l1_small_size=16384)
        self.formats = {name: getattr(ttnn, whole) for name, whole in FORMATS.items()}

    def close(self) -> None:
        """Close the mesh and the fabric."""
        self.ttnn.close_mesh_device(self.mesh)
        self.ttnn.set_fabric_config(self.ttnn.FabricConfig.DISABLED)

    def vocabulary(self) -> dict[str, Any]:
        """What the calls say; sockets and semaphores are made on all cores that compute."""
        ttnn, mesh = self.ttnn, self.mesh
        size = mesh.compute_with_storage_grid_size()
        cores = self.cores(0, 0, size.x - 1, size.y - 1)
        return {
            "ttnn": ttnn, "torch": self.torch, "dev": mesh, "mk": self.make, "host": self.host, "DT": self.formats,
            "TILE": ttnn.TILE_LAYOUT, "RM": ttnn.ROW_MAJOR_LAYOUT, "DRAM": ttnn.DRAM_MEMORY_CONFIG,
            "L1": ttnn.L1_MEMORY_CONFIG, "R": ttnn.ReplicateTensorToMesh(mesh),
            "S": lambda dim: ttnn.ShardTensorToMesh(mesh, dim=dim),
            "D": lambda dims: ttnn.ShardTensor2dMesh(mesh, mesh_shape=tuple(mesh.shape), dims=dims),
            "shard": self.shard, "cores": self.cores, "on": self.shard_on, "grid": (size.x, size.y),
            "sem": lambda: ttnn.create_global_semaphore(mesh, cores, 0),
            "C": lambda *at: ttnn.MeshCoordinate(*at), "socket": self.socket,
        }  # fmt: skip

    def make(
        self, shape: tuple[int, ...], dtype: str = "bf16", layout: Any = None, memory: Any = None, mapper: Any = None
    ) -> Any:
        """A tensor of any values; `memory` may be "h", "w" or "b": shards by height, width or blocks."""
        ttnn = self.ttnn
        memory = ttnn.DRAM_MEMORY_CONFIG if memory is None else memory
        config = self.shard(memory, shape) if isinstance(memory, str) else memory
        layout = ttnn.TILE_LAYOUT if layout is None else layout
        if dtype == "u16":  # torch has it since 2.3
            values, mapper = numpy.zeros(shape, numpy.uint16), mapper.unwrap() if hasattr(mapper, "unwrap") else mapper
            return ttnn.Tensor(values, ttnn.uint16, self.mesh, layout, config, mesh_mapper=mapper)
        return ttnn.from_torch(
            self._values(shape, dtype), dtype=self.formats[dtype], layout=layout, device=self.mesh,
            memory_config=config, mesh_mapper=mapper,
        )  # fmt: skip

    def host(self, shape: tuple[int, ...], dtype: str = "bf16", layout: Any = None, mapper: Any = None) -> Any:
        """A tensor on the host."""
        layout = self.ttnn.TILE_LAYOUT if layout is None else layout
        if dtype == "u16":
            return self.ttnn.Tensor(numpy.zeros(shape, numpy.uint16), self.formats[dtype], None, layout)
        return self.ttnn.from_torch(
            self._values(shape, dtype), dtype=self.formats[dtype], layout=layout, mesh_mapper=mapper
        )

    def _values(self, shape: tuple[int, ...], dtype: str) -> Any:
        kind = {"u8": "uint8"}.get(dtype, "int64" if dtype in INTEGERS else "float32")
        return self.torch.zeros(shape, dtype=getattr(self.torch, kind))

    def cores(self, x0: int, y0: int, x1: int, y1: int) -> Any:
        """A rectangle of cores."""
        ttnn = self.ttnn
        return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(x0, y0), ttnn.CoreCoord(x1, y1))])

    def shard_on(self, kind: str, cores: Any, shape: tuple[int, int], orientation: str = "ROW_MAJOR") -> Any:
        """A memory config in L1 with shards of this shape on these cores."""
        ttnn = self.ttnn
        layout = {"h": "HEIGHT_SHARDED", "w": "WIDTH_SHARDED", "b": "BLOCK_SHARDED"}[kind]
        spec = ttnn.ShardSpec(cores, list(shape), getattr(ttnn.ShardOrientation, orientation))
        return ttnn.MemoryConfig(getattr(ttnn.TensorMemoryLayout, layout), ttnn.BufferType.L1, spec)

    def shard(self, kind: str, shape: tuple[int, ...]) -> Any:
        """The largest even sharding of a matrix."""
        ttnn, rows, columns = self.ttnn, 1, shape[-1]
        for extent in shape[:-1]:
            rows *= extent

        def count(extent: int, most: int) -> int:
            return next((n for n in (8, 4, 2, 1) if n <= most and extent % (32 * n) == 0), 1)

        y, x, strategy = {
            "h": (1, count(rows, 8), ttnn.ShardStrategy.HEIGHT), "w": (1, count(columns, 8), ttnn.ShardStrategy.WIDTH),
            "b": (count(rows, 4), count(columns, 4), ttnn.ShardStrategy.BLOCK),
        }[kind]  # fmt: skip
        return ttnn.create_sharded_memory_config(shape, core_grid=ttnn.CoreGrid(y=y, x=x), strategy=strategy)

    def socket(self, sender: Any, receiver: Any, fifo: int = 16384, core: tuple[int, int] = (0, 0)) -> Any:
        """The two ends of a socket between two coordinates of the mesh, or two meshes."""
        ttnn = self.ttnn
        ends = [ttnn.MeshCoreCoord(at, ttnn.CoreCoord(*core)) for at in (sender, receiver)]
        memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, fifo)
        config = ttnn.SocketConfig([ttnn.SocketConnection(*ends)], memory)
        return ttnn.create_socket_pair(self.mesh, self.mesh, config)

    def run(self, call: str) -> dict[str, Any]:
        """What the library does with a call: `set-up => what is asked`."""
        words = self.vocabulary()
        base = {kind: self._next_address(words[kind]) for kind in ("DRAM", "L1")}
        before, _, asked = call.rpartition("=>")
        outcome: dict[str, Any] = {"call": call, "base": list(base.values())}
        try:
            exec(before.strip(), words)
        except Exception as refusal:
            outcome["setup"] = first_line(refusal)
        if "setup" not in outcome:
            programs = self.mesh.num_program_cache_entries()
            try:
                result = self._describe(eval(asked.strip(), words), base)
                outcome |= {"result": result, "programs": self.mesh.num_program_cache_entries() - programs}
            except Exception as refusal:
                outcome["error"] = first_line(refusal)
        words.clear()
        gc.collect()
        return outcome

    def _next_address(self, config: Any) -> int:
        probe = self.make((32, 32), memory=config)
        address = int(probe.buffer_address())
        self.ttnn.deallocate(probe)
        return address

    def _describe(self, value: Any, base: dict[str, int]) -> Any:
        if isinstance(value, list | tuple):
            return [self._describe(item, base) for item in value]
        if not isinstance(value, self.ttnn.Tensor):
            text = re.sub(r"0x[0-9a-f]+|<.*>", "", repr(value))[:60]
            return re.sub(r"(MeshDevice)\(.*", r"\1", text)
        drop = r"TensorMemoryLayout::|BufferType::|,range_lock.*|memory_layout=|buffer_type=|,nd_shard_spec=.*"
        memory = re.sub(drop, "", str(value.memory_config()))
        drop = r", mesh_coords.*|TensorTopology|distribution_shape=|placements=SmallVector|Placement"
        topology = re.sub(drop, "", str(value.tensor_topology()))
        names = f"{str(value.dtype).split('.')[-1]} {str(value.layout).split('.')[-1]}"
        text = f"{list(value.shape)} {list(value.padded_shape)} {names} {memory} {topology}"
        on_device = value.device() is not None
        return [text, value.buffer_address() - base["DRAM" if ",DRAM" in memory else "L1"] if on_device else None]


def first_line(refusal: BaseException) -> str:
    """What a refusal says: the line below TT-NN's "info:", else the first with words."""
    text = str(refusal)
    found = re.search(r"info:\s*\n(.*)", text)
    lines = [line for line in text.split("\n") if line.strip()]
    return (found.group(1) if found else lines[0] if lines else type(refusal).__name__)[:300]


def main(calls: str, out: str, beside: str | None) -> None:
    """Run the calls of a file that are not yet in the output; behind a crash of the other side a new mesh is opened, too."""
    rows = [json.loads(line) for line in Path(calls).read_text().splitlines()]
    crashes = read_crashes(beside)
    done, at = len(Path(out).read_text().splitlines()) if Path(out).exists() else 0, Path(out + ".at")
    session, opened = None, None
    with open(out, "a") as file:
        for i in range(done, len(rows)):
            place = (i // CALLS_PER_MESH, rows[i]["fabric"], sum(crash < i for crash in crashes))
            if i in crashes:
                file.write(json.dumps({"call": rows[i]["call"], "crash": "on the other side"}) + "\n")
                continue
            if place != opened:
                if session is not None:
                    session.close()
                session, opened = Session(tuple(rows[i]["mesh"]), rows[i]["fabric"]), place
            assert session is not None, "opened above"
            at.write_text(str(i))
            file.write(json.dumps(session.run(rows[i]["call"])) + "\n")
            file.flush()
    if session is not None:
        session.close()


def read_crashes(outcomes: str | None) -> set[int]:
    """The calls that ended the process of another run."""
    lines = [] if outcomes is None else Path(outcomes).read_text().splitlines()
    return {i for i, line in enumerate(lines) if "crash" in json.loads(line)}


def watch(calls: str, out: str, beside: str | None) -> None:
    """Run `main` in processes of its own until every call has an outcome or a crash."""
    rows = [json.loads(line) for line in Path(calls).read_text().splitlines()]
    Path(out).unlink(missing_ok=True)
    while (done := len(Path(out).read_text().splitlines()) if Path(out).exists() else 0) < len(rows):
        Path(out + ".at").write_text(str(done))
        try:
            process = subprocess.run(
                [sys.executable, __file__, calls, out, *([beside] if beside else []), "--worker"],
                capture_output=True,
                text=True,
                timeout=1500,
            )
            reason = (process.stderr or process.stdout)[-300:]
        except subprocess.TimeoutExpired:
            reason = "took too long"
        count = len(Path(out).read_text().splitlines()) if Path(out).exists() else 0
        if count < len(rows):
            with open(out, "a") as file:
                file.write(json.dumps({"call": rows[count]["call"], "crash": reason}) + "\n")


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--worker"]
    other = given[2] if len(given) > 2 else None
    (main if "--worker" in sys.argv else watch)(given[0], given[1], other)
    os._exit(0)
