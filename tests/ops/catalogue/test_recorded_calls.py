"""Recorded calls of TT-NN 0.81.1 on an n150, made again here: refusals, texts, specs, addresses, programs.

`recorded_n150.jsonl` holds facts only: arguments and outcomes. `known_differences.jsonl` lists the calls that still differ;
`python tests/ops/catalogue/test_recorded_calls.py` writes it anew, and it may only get shorter.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn

HERE = Path(__file__).with_name("recorded")
FORMATS = {"bf16": "bfloat16", "f32": "float32", "bf8": "bfloat8_b", "i32": "int32", "u32": "uint32"}
TEXT_LENGTH = 60  # characters of TT-NN's sentence that ours has to contain; ours may go on


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=16384)
    yield mesh
    ttnn.close_mesh_device(mesh)


def find_differences(device: Any) -> dict[str, str]:
    """The recorded calls that differ, and in what."""
    bases, found = find_bases(device), {}
    for line in read_lines("recorded_n150.jsonl"):
        device.program_cache.buffers.clear()  # what programs of other calls keep, which were other ones in the recording
        difference = find_difference(line, device, bases)
        if difference is not None:
            found[json.dumps(line["call"])] = difference
    return found


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


def make_arguments(call: list[Any], device: Any) -> tuple[list[Any], dict[str, Any]]:
    """Tensors and options of a pattern: t a tensor, g a gradient, s a number; `dim` and `l1` are keywords."""
    _, pattern, shape, dtype, layout, buffer = call
    config = ttnn.DRAM_MEMORY_CONFIG if buffer == "DRAM" else ttnn.L1_MEMORY_CONFIG
    count = max(1, pattern.split(",")[0].count("t") + pattern.count("g"))
    values = torch.randint(0, 20, shape) if dtype in ("i32", "u32") else torch.randn(shape)
    tensors = [
        ttnn.from_torch(
            values,
            dtype=getattr(ttnn, FORMATS[dtype]),
            layout=getattr(ttnn, f"{layout}_LAYOUT"),
            device=device,
            memory_config=config,
        )
        for _ in range(count)
    ]
    options = {"dim": -1} if "dim" in pattern else {"memory_config": ttnn.L1_MEMORY_CONFIG} if "l1" in pattern else {}
    return [*tensors, *([2.0] if pattern == "ts" else [])], options


def describe(result: Any, bases: dict[str, int]) -> dict[str, Any]:
    if not isinstance(result, ttnn.Tensor):
        return {"other": None}
    config = result.memory_config()
    buffer = config.buffer_type.name
    described = {
        "shape": list(result.shape),
        "padded": list(result.padded_shape),
        "dtype": result.dtype.name,
        "layout": result.layout.name,
        "memory": f"{config.memory_layout.name} {buffer}",
    }
    if result.device() is not None:
        described["at"] = result.buffer_address() - bases["DRAM" if buffer == "DRAM" else "L1"]
    return described


def find_bases(device: Any) -> dict[str, int]:
    """Where the first tile of each memory lies."""
    bases = {}
    for name, config in (("DRAM", ttnn.DRAM_MEMORY_CONFIG), ("L1", ttnn.L1_MEMORY_CONFIG)):
        probe = ttnn.from_torch(
            torch.zeros(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, memory_config=config
        )
        bases[name] = probe.buffer_address()
        ttnn.deallocate(probe)
    return bases


def plain(text: str) -> str:
    return re.sub(r"\W+", " ", text).strip()


def find_difference(recorded: dict[str, Any], device: Any, bases: dict[str, int]) -> str | None:
    """What differs from the recording, in a word."""
    function: Any = ttnn
    for part in recorded["call"][0].split(".")[1:]:
        function = getattr(function, part)
    before = device.num_program_cache_entries()
    try:
        arguments, options = make_arguments(recorded["call"], device)
        results = function(*arguments, **options)
        ttnn.synchronize_device(device)  # a GPU reports indices out of range when a call waits
    except (RuntimeError, ValueError, TypeError, IndexError) as refusal:
        if "refused" not in recorded:
            return "refusal"
        return None if plain(recorded["refused"])[:TEXT_LENGTH].strip() in plain(str(refusal)) else "text"
    if "refused" in recorded:
        return "refusal"
    programs = device.num_program_cache_entries() - before
    described = [describe(result, bases) for result in (results if isinstance(results, (list, tuple)) else [results])]
    expected = recorded["results"]
    if len(described) != len(expected):
        return "count"
    for ours, theirs in zip(described, expected, strict=True):
        for what in ("shape", "padded", "dtype", "layout", "memory", "at"):
            if ours.get(what) != theirs.get(what):
                return "address" if what == "at" else what
    return None if programs == recorded["programs"] else "programs"


def test_recorded_calls_do_what_they_did(device: Any) -> None:
    known = {json.dumps(line["call"]) for line in read_lines("known_differences.jsonl")}

    new = {call: what for call, what in find_differences(device).items() if call not in known}

    assert not new, f"{len(new)} calls differ from TT-NN that did not before"


def test_the_known_differences_are_recorded_calls() -> None:
    recorded = {json.dumps(line["call"]) for line in read_lines("recorded_n150.jsonl")}

    assert {json.dumps(line["call"]) for line in read_lines("known_differences.jsonl")} < recorded


if __name__ == "__main__":
    os.environ["TTMESH_SYSTEM"] = "n150"
    differing = find_differences(ttnn.open_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=16384))
    lines = [json.dumps({"call": json.loads(call), "differs": what}) for call, what in differing.items()]
    (HERE / "known_differences.jsonl").write_text("\n".join(lines) + "\n")
