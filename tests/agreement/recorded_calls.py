"""Calls and what TT-NN 0.81.1 did with them, one JSON object per line: arguments and outcomes only.

`call` is Python: what is set up, " => ", and the call that is compared, in the words of `vocabulary`. An outcome is `error`
(how the refusal begins), or `result` and `programs`: of each tensor its shape, padded shape, format, layout, memory and, on
meshes, distribution; then its address, counted from where the next buffer of that kind would have been; and how many device
programs were new.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ttmesh.ttnn as ttnn

FORMATS = {
    "bf16": ttnn.bfloat16, "f32": ttnn.float32, "bf8": ttnn.bfloat8_b, "bf4": ttnn.bfloat4_b,
    "u32": ttnn.uint32, "i32": ttnn.int32, "u16": ttnn.uint16, "u8": ttnn.uint8,
}  # fmt: skip
INTEGERS = ("u32", "i32", "u16", "u8")
FOLDER = Path(__file__).parent


def read(name: str) -> list[dict[str, Any]]:
    """The recorded calls of one file."""
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def make_on_host(shape: tuple[int, ...]) -> ttnn.Tensor:
    """Weights of any values, as a convolution takes them."""
    return ttnn.from_torch(torch.zeros(shape), dtype=ttnn.bfloat16)


def _cores(extent: int, most: int) -> int:
    return next(n for n in (8, 4, 2, 1) if n <= most and extent % (32 * n) == 0)


def make_cores(x0: int, y0: int, x1: int, y1: int) -> ttnn.CoreRangeSet:
    """A rectangle of cores."""
    return ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(x0, y0), ttnn.CoreCoord(x1, y1))])


def shard_on(kind: str, cores: ttnn.CoreRangeSet, shape: tuple[int, int]) -> ttnn.MemoryConfig:
    """Shards of this shape on these cores, by height, width or blocks."""
    layouts = ttnn.TensorMemoryLayout
    layout = {"h": layouts.HEIGHT_SHARDED, "w": layouts.WIDTH_SHARDED, "b": layouts.BLOCK_SHARDED}[kind]
    spec = ttnn.ShardSpec(cores, list(shape), ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(layout, ttnn.BufferType.L1, spec)


class Session:
    """One mesh, and the vocabulary of the recorded calls on it."""

    def __init__(self, mesh: ttnn.MeshDevice) -> None:
        self.mesh = mesh

    def vocabulary(self) -> dict[str, Any]:
        """What the recorded calls say."""
        mesh, size = self.mesh, self.mesh.compute_with_storage_grid_size()
        return {
            "ttnn": ttnn, "torch": torch, "dev": mesh, "mk": self.make, "host": make_on_host, "DT": FORMATS,
            "TILE": ttnn.TILE_LAYOUT, "RM": ttnn.ROW_MAJOR_LAYOUT, "DRAM": ttnn.DRAM_MEMORY_CONFIG,
            "L1": ttnn.L1_MEMORY_CONFIG, "shards": self.shards, "R": ttnn.ReplicateTensorToMesh(mesh),
            "S": lambda dim: ttnn.ShardTensorToMesh(mesh, dim=dim),
            "D": lambda dims: ttnn.ShardTensor2dMesh(mesh, mesh_shape=tuple(mesh.shape), dims=dims),
            "sem": lambda: ttnn.create_global_semaphore(mesh, make_cores(0, 0, size.x - 1, size.y - 1), 0),
            "cores": make_cores, "on": shard_on, "C": ttnn.MeshCoordinate, "socket": self.socket,
        }  # fmt: skip

    def make(
        self,
        shape: tuple[int, ...],
        dtype: str = "bf16",
        layout: ttnn.Layout = ttnn.TILE_LAYOUT,
        memory: Any = ttnn.DRAM_MEMORY_CONFIG,
        mapper: Any = None,
    ) -> ttnn.Tensor:
        """A tensor of any values; `memory` may be "h", "w" or "b": shards by height, width or blocks."""
        config = self.shard(memory, shape) if isinstance(memory, str) else memory
        values = torch.zeros(shape, dtype=torch.int64) if dtype in INTEGERS else torch.zeros(shape)
        return ttnn.from_torch(
            values, dtype=FORMATS[dtype], layout=layout, device=self.mesh, memory_config=config, mesh_mapper=mapper
        )

    @staticmethod
    def shard(kind: str, shape: tuple[int, ...]) -> ttnn.MemoryConfig:
        """The largest even sharding of a matrix."""
        rows, columns = 1, shape[-1]
        for extent in shape[:-1]:
            rows *= extent
        strategy = {"h": ttnn.ShardStrategy.HEIGHT, "w": ttnn.ShardStrategy.WIDTH, "b": ttnn.ShardStrategy.BLOCK}[kind]
        x, y = {"h": (_cores(rows, 8), 1), "w": (_cores(columns, 8), 1)}.get(kind) or (
            _cores(columns, 4),
            _cores(rows, 4),
        )
        return ttnn.create_sharded_memory_config(shape, core_grid=ttnn.CoreGrid(y=y, x=x), strategy=strategy)

    @staticmethod
    def shards(
        kind: str,
        shape: tuple[int, int],
        x: int,
        y: int,
        first_x: int = 0,
        first_y: int = 0,
        orientation: str = "ROW_MAJOR",
    ) -> ttnn.MemoryConfig:
        """Shards of this shape on x by y cores."""
        layout = {"h": "HEIGHT_SHARDED", "w": "WIDTH_SHARDED", "b": "BLOCK_SHARDED"}[kind]
        cores = ttnn.CoreRangeSet(
            {ttnn.CoreRange(ttnn.CoreCoord(first_x, first_y), ttnn.CoreCoord(first_x + x - 1, first_y + y - 1))}
        )
        spec = ttnn.ShardSpec(cores, shape, ttnn.ShardOrientation[orientation])
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout[layout], ttnn.BufferType.L1, spec)

    def socket(self, sender: Any, receiver: Any, fifo: int) -> tuple[ttnn.MeshSocket, ttnn.MeshSocket]:
        """The two ends of a socket between two coordinates."""
        ends = [ttnn.MeshCoreCoord(at, ttnn.CoreCoord(0, 0)) for at in (sender, receiver)]
        memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, fifo)
        config = ttnn.SocketConfig([ttnn.SocketConnection(*ends)], memory)
        return ttnn.create_socket_pair(self.mesh, self.mesh, config)

    def run(self, call: str) -> dict[str, Any]:
        """What ttmesh does with a recorded call."""
        words = self.vocabulary()
        base = {kind: self._next_address(words[kind]) for kind in ("DRAM", "L1")}
        before, _, asked = call.rpartition("=>")
        try:
            exec(before, words)
            programs = self.mesh.num_program_cache_entries()
            result = eval(asked.strip(), words)
            outcome = {
                "result": self._describe(result, base),
                "programs": self.mesh.num_program_cache_entries() - programs,
            }
        except Exception as refusal:
            outcome = {"error": str(refusal).split("\n")[0]}
        words.clear()
        gc.collect()
        return outcome

    def _next_address(self, config: ttnn.MemoryConfig) -> int:
        probe = self.make((32, 32), memory=config)
        address = probe.buffer_address()
        ttnn.deallocate(probe)
        return address

    def _describe(self, value: Any, base: dict[str, int]) -> Any:
        if isinstance(value, list | tuple):
            return [self._describe(item, base) for item in value]
        if isinstance(value, ttnn.ComplexTensor):
            return [self._describe(value.real, base), self._describe(value.imag, base)]
        if not isinstance(value, ttnn.Tensor):
            return repr(value)[:60]
        drop = r"TensorMemoryLayout::|BufferType::|,range_lock.*|memory_layout=|buffer_type=|,nd_shard_spec=.*"
        memory = re.sub(drop, "", str(value.memory_config()))
        text = f"{list(value.shape)} {list(value.padded_shape)} {value.dtype.name} {value.layout.name} {memory}"
        if self.mesh.get_num_devices() > 1:
            drop = r", mesh_coords.*|TensorTopology|distribution_shape=|placements=SmallVector|Placement"
            text += " " + re.sub(drop, "", str(value.tensor_topology()))
        on_device = value.device() is not None
        address = value.buffer_address() - base["DRAM" if ",DRAM" in memory else "L1"] if on_device else None
        return [text, address]


def opened(shape: tuple[int, int]) -> Iterator[Session]:
    """A session on a mesh of this shape."""
    several = shape != (1, 1)
    if several:
        ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(*shape), l1_small_size=16384)
    gc.collect()
    gc.freeze()  # what was there before is not looked at again after every call
    yield Session(mesh)
    gc.unfreeze()
    ttnn.close_mesh_device(mesh)
    if several:
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def agrees(recorded: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether an outcome is the recorded one; of refusals TT-NN's words must be in ours."""
    if "error" in recorded:
        words = [re.sub(r"\W+", " ", outcome.get("error", "")) for outcome in (recorded, found)]
        return bool(words[1]) and words[0][:60] in words[1]
    return recorded["result"] == found.get("result") and recorded["programs"] == found.get("programs")
