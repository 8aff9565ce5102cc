"""Runs calls of draw.py under TT-NN or ttmesh, and writes what each one did as a line of JSON.

usage: python record.py calls.txt real.jsonl                    under TT-NN; starts anew behind calls that end the process
       ttmesh run record.py calls.txt ours.jsonl --like real.jsonl   under ttmesh: the same calls, the same starts anew
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy

ANEW = 50  # after so many calls the mesh is opened anew


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, help="a record whose ended processes are starts anew here")
    parser.add_argument("--start", type=int, help="inside: the first call of this process")
    asked = parser.parse_args()
    calls = [line.split("\t") for line in asked.calls.read_text().splitlines()]
    if asked.like is not None:
        rows = [json.loads(line) for line in asked.like.read_text().splitlines()]
        ended = {row["i"] for row in rows if row.get("error") == "process ended"}
        record(calls[: len(rows)], 0, ended, asked.out)
    elif asked.start is not None:
        record(calls, asked.start, set(), asked.out)
    else:
        supervise(calls, asked)


def supervise(calls: list[list[str]], asked: argparse.Namespace) -> None:
    """Starts processes until all calls are done; a call at which one ends is written down as such."""
    asked.out.touch()
    while (start := len(asked.out.read_text().splitlines())) < len(calls):
        inner = [sys.executable, __file__, str(asked.calls), str(asked.out), "--start", str(start)]
        subprocess.run(inner, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        done = len(asked.out.read_text().splitlines())
        if done < len(calls):
            name, call = calls[done]
            with asked.out.open("a") as out:
                out.write(json.dumps({"i": done, "name": name, "call": call, "error": "process ended"}) + "\n")


def record(calls: list[list[str]], start: int, ended: set[int], path: Path) -> None:
    """Runs the calls from `start` on, except those that ended TT-NN's process."""
    import torch
    import ttnn

    session = None
    with path.open("a" if start else "w") as out:
        for i in range(start, len(calls)):
            name, call = calls[i]
            row = {"i": i, "name": name, "call": call}
            if session is not None and (i % ANEW == 0 or i in ended):
                ttnn.close_mesh_device(session.mesh)
                session = None
            if i in ended:
                row["error"] = "process ended"
            else:
                if session is None:
                    session = Session(ttnn, torch)
                    gc.collect()
                    gc.freeze()  # what is there now is not looked at again after every call
                row |= session.run(call)
            out.write(json.dumps(row) + "\n")
            out.flush()
    if session is not None:
        ttnn.close_mesh_device(session.mesh)


class Session:
    """One mesh of one chip, and the words of the calls."""

    def __init__(self, ttnn, torch) -> None:
        self.ttnn, self.torch = ttnn, torch
        self.mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=16384)
        self.formats = {
            "bf16": ttnn.bfloat16, "f32": ttnn.float32, "bf8": ttnn.bfloat8_b, "bf4": ttnn.bfloat4_b,
            "u32": ttnn.uint32, "i32": ttnn.int32, "u16": ttnn.uint16, "u8": ttnn.uint8,
        }  # fmt: skip
        self.shard_layouts = {
            "h": ttnn.TensorMemoryLayout.HEIGHT_SHARDED, "w": ttnn.TensorMemoryLayout.WIDTH_SHARDED,
            "b": ttnn.TensorMemoryLayout.BLOCK_SHARDED,
        }  # fmt: skip

    def words(self) -> dict[str, object]:
        ttnn = self.ttnn
        return {
            "ttnn": ttnn, "torch": self.torch, "dev": self.mesh, "mk": self.make, "host": self.host, "shard": self.shard,
            "shards": self.shards, "DT": self.formats, "TILE": ttnn.TILE_LAYOUT, "RM": ttnn.ROW_MAJOR_LAYOUT,
            "DRAM": ttnn.DRAM_MEMORY_CONFIG, "L1": ttnn.L1_MEMORY_CONFIG,
        }  # fmt: skip

    def host(self, shape):
        return self.ttnn.from_torch(self.torch.zeros(shape), dtype=self.ttnn.bfloat16)

    def make(self, shape, dtype="bf16", layout=None, memory=None):
        """A tensor of zeros; `memory` "h", "w" or "b" spreads it over as many of 8 (or 4 by 4) cores as it fills evenly."""
        ttnn, torch = self.ttnn, self.torch
        config = self.shard(memory, shape) if isinstance(memory, str) else memory or ttnn.DRAM_MEMORY_CONFIG
        layout = ttnn.TILE_LAYOUT if layout is None else layout
        if dtype in ("u32", "u16") and not hasattr(torch, "uint32"):  # before torch 2.3
            values = numpy.zeros(shape, numpy.uint32 if dtype == "u32" else numpy.uint16)
            return ttnn.Tensor(
                values, data_type=self.formats[dtype], device=self.mesh, layout=layout, mem_config=config
            )
        values = torch.zeros(shape, dtype=torch.int64) if dtype in ("u32", "i32", "u16", "u8") else torch.zeros(shape)
        return ttnn.from_torch(values, dtype=self.formats[dtype], layout=layout, device=self.mesh, memory_config=config)

    def shard(self, kind, shape):
        rows, columns = 1, shape[-1]
        for extent in shape[:-1]:
            rows *= extent
        most = 4 if kind == "b" else 8
        down = next(n for n in (8, 4, 2, 1) if n <= most and rows % (32 * n) == 0)
        across = next(n for n in (8, 4, 2, 1) if n <= most and columns % (32 * n) == 0)
        if kind == "b":
            return self.shards("b", (rows // down, columns // across), across, down)
        if kind == "h":
            return self.shards("h", (rows // down, columns), down, 1)
        return self.shards("w", (rows, columns // across), across, 1)

    def shards(self, kind, shape, x, y, first_x=0, first_y=0, orientation="ROW_MAJOR"):
        """Shards of this shape on x by y cores."""
        ttnn = self.ttnn
        corners = ttnn.CoreCoord(first_x, first_y), ttnn.CoreCoord(first_x + x - 1, first_y + y - 1)
        cores = ttnn.CoreRangeSet({ttnn.CoreRange(*corners)})
        spec = ttnn.ShardSpec(cores, list(shape), getattr(ttnn.ShardOrientation, orientation))
        return ttnn.MemoryConfig(self.shard_layouts[kind], ttnn.BufferType.L1, spec)

    def run(self, call: str) -> dict[str, object]:
        """What comes of a call."""
        words = self.words()
        base = {kind: self.next_address(words[kind]) for kind in ("DRAM", "L1")}
        before, _, asked = call.rpartition("=>")
        stage = "setup"
        try:
            exec(before, words)
            stage = "call"
            programs = self.mesh.num_program_cache_entries()
            result = eval(asked.strip(), words)
            told = self.describe(result, base)
            outcome = {"result": told, "programs": self.mesh.num_program_cache_entries() - programs}
            del result
        except Exception as refusal:
            text = str(refusal)
            told = re.search(r"info:\s*\n(.*)", text)
            outcome = {
                "error": (told.group(1) if told else text.strip().split("\n")[0])[:200],
                "type": type(refusal).__name__,
            }
            if stage == "setup":
                outcome["setup"] = True
            del refusal
        words.clear()
        gc.collect()
        return outcome

    def next_address(self, config) -> int:
        probe = self.make((32, 32), memory=config)
        address = probe.buffer_address()
        self.ttnn.deallocate(probe)
        return address

    def describe(self, value, base):
        """Spec and address (from where the next buffer of that kind would have been) of every tensor."""
        if isinstance(value, (list, tuple)):
            return [self.describe(item, base) for item in value]
        if type(value).__name__ == "ComplexTensor":
            return [self.describe(value.real, base), self.describe(value.imag, base)]
        if not hasattr(value, "padded_shape"):
            return repr(value)[:60] if not hasattr(value, "spec") else "spec"
        drop = r"TensorMemoryLayout::|BufferType::|,range_lock.*|memory_layout=|buffer_type=|,nd_shard_spec=.*"
        memory = re.sub(drop, "", str(value.memory_config()))
        spec = f"{list(value.shape)} {list(value.padded_shape)} {value.dtype.name} {value.layout.name} {memory}"
        address = (
            value.buffer_address() - base["DRAM" if ",DRAM" in memory else "L1"] if value.device() is not None else None
        )
        return [spec, address]


if __name__ == "__main__":
    main()
