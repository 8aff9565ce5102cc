"""Random convolutions: memory of results and circular buffers per core, for TT-NN and for ttmesh alike.

    python random_convolutions.py real.jsonl SEED COUNT           # under TT-NN, on a mock cluster or chips
    TTMESH_BACKEND=meta ttmesh run random_convolutions.py ours.jsonl SEED COUNT

A row is one case and what came of it: refused, or the result's memory and the bytes of the largest program.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

Case = dict[str, Any]


def draw_case(rng: random.Random) -> Case:
    """Sizes and options of one call."""
    kind = rng.choice(["conv2d"] * 4 + ["conv1d"] * 3 + ["conv_transpose2d"])
    depthwise = rng.random() < (0.5 if kind == "conv1d" else 0.25)
    channels = rng.choice([16, 32, 64, 128, 256] if kind == "conv_transpose2d" else [3, 16, 32, 48, 96, 128, 320, 1280])
    filters = channels if depthwise else rng.choice([16, 32, 64, 96, 128, 320, 1000])
    if kind == "conv1d":
        size, kernel = (1, rng.choice([32, 100, 512, 1500, 4096])), (1, rng.choice([1, 3, 4, 7, 31]))
    else:
        height, taps = rng.choice([7, 8, 14, 28, 56, 64, 112]), rng.choice([1, 2, 3, 3, 3, 5, 7])
        size, kernel = (height, rng.choice([height, 2 * height])), (taps, taps)
    step, spread, border = rng.choice([1, 1, 2]), rng.choice([1, 1, 1, 2]), rng.choice([0, kernel[1] // 2])
    line = kind == "conv1d"
    config: dict[str, Any] = {}
    for name, value, share in (
        ("shard_layout", rng.choice(["HEIGHT", "HEIGHT", "BLOCK", "WIDTH"]), 0.6),
        ("act_block_h_override", rng.choice([32, 32, 64, 96]), 0.35),
        ("enable_act_double_buffer", True, 0.15),
        ("enable_weights_double_buffer", True, 0.15),
        ("full_inner_dim", True, 0.1),
        ("output_layout", "ROW_MAJOR", 0.1),
        ("transpose_shards", True, 0.1),
    ):
        if rng.random() < share:
            config[name] = value
    if "shard_layout" in config and rng.random() < 0.15:
        config |= {"override_sharding_config": True, "core_grid": rng.choice([[8, 1], [8, 2], [8, 4], [8, 8]])}
    slices = rng.choice([None] * 6 + ["L1_FULL"] * 3 + ["DRAM_WIDTH 0", "DRAM_WIDTH 4"])
    return {
        "kind": kind, "batch": rng.choice([1, 1, 1, 2, 8]), "size": size, "channels": channels, "filters": filters,
        "groups": filters if depthwise else 1, "kernel": kernel, "bias": rng.random() < 0.35,
        "stride": (1, step) if line else (step, step), "dilation": (1, spread) if line else (spread, spread),
        "padding": (0, border) if line else (border, border), "dtype": rng.choice(["bfloat16", "bfloat16", "float32"]),
        "layout": rng.choice(["TILE", "ROW_MAJOR", "ROW_MAJOR"]), "where": rng.choice(["host", "dram", "dram", "l1"]),
        "slices": slices, "config": config,
    }  # fmt: skip


def run_case(case: Case, device: Any) -> Any:
    """Make the tensors of a case and call the convolution."""
    import torch
    import ttnn

    dtype, channels, filters = getattr(ttnn, case["dtype"]), case["channels"], case["filters"]
    place = {"l1": ttnn.L1_MEMORY_CONFIG, "dram": ttnn.DRAM_MEMORY_CONFIG}.get(case["where"])
    rows, line = case["batch"] * case["size"][0] * case["size"][1], case["kind"] == "conv1d"
    image = ttnn.from_torch(
        torch.zeros((case["batch"], case["size"][1], channels) if line else (1, 1, rows, channels)),
        dtype=dtype, layout=getattr(ttnn, case["layout"] + "_LAYOUT"),
        **({} if place is None else {"device": device, "memory_config": place}),
    )  # fmt: skip
    outer = (channels, filters) if case["kind"] == "conv_transpose2d" else (filters, channels)
    weight = torch.zeros(outer[0], outer[1] // case["groups"], *case["kernel"][1 if line else 0 :])
    config = ttnn.Conv2dConfig()
    config.weights_dtype = dtype
    for name, value in case["config"].items():
        if name == "shard_layout":
            value = getattr(ttnn.TensorMemoryLayout, value + "_SHARDED")
        elif name == "output_layout":
            value = ttnn.ROW_MAJOR_LAYOUT
        elif name == "core_grid":
            corner = ttnn.CoreCoord(value[0] - 1, value[1] - 1)
            value = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), corner)})
        setattr(config, name, value)
    options: dict[str, Any] = {
        "input_tensor": image, "weight_tensor": ttnn.from_torch(weight, dtype=dtype), "device": device,
        "in_channels": channels, "out_channels": filters, "batch_size": case["batch"], "groups": case["groups"],
        "bias_tensor": ttnn.from_torch(torch.zeros(1, 1, 1, filters), dtype=dtype) if case["bias"] else None,
        "conv_config": config, "dtype": dtype,
    }  # fmt: skip
    if case["slices"] is not None:
        name, _, count = case["slices"].partition(" ")
        chosen = {"L1_FULL": ttnn.Conv2dL1Full, "DRAM_WIDTH": ttnn.Conv2dDRAMSliceWidth}[name]
        slicing = ttnn.Conv2dSliceConfig(slice_type=chosen, num_slices=int(count or 1))
        options["dram_slice_config" if case["kind"] == "conv_transpose2d" else "slice_config"] = slicing
    if line:
        options["input_length"] = case["size"][1]
        names = {"kernel_size": "kernel", "stride": "stride", "padding": "padding", "dilation": "dilation"}
        return ttnn.conv1d(**options, **{name: case[key][1] for name, key in names.items()})
    options |= {"input_height": case["size"][0], "input_width": case["size"][1], "kernel_size": case["kernel"]}
    options |= {name: case[name] for name in ("stride", "padding", "dilation")}
    return getattr(ttnn, case["kind"])(**options)


def record_case(case: Case, device: Any) -> dict[str, Any]:
    """The result's memory, and bytes per core of the largest program."""
    import circular_buffers
    import ttnn

    device.clear_program_cache()
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    try:
        result = run_case(case, device)
    finally:
        nodes = ttnn.graph.end_graph_capture()
    memory = result.memory_config()
    shard = memory.shard_spec and [*memory.shard_spec.shape, memory.shard_spec.grid.num_cores()]
    row = {"layout": str(result.layout), "memory": str(memory.memory_layout), "buffer": str(memory.buffer_type)}
    return row | {"shard": shard, "bytes": max(circular_buffers.program_sizes(nodes), default=0)}


def record(path: str, seed: int, count: int, start: int) -> None:
    """Run the cases from a number on and write a row for each."""
    import ttnn

    device, rng = ttnn.open_device(device_id=0, l1_small_size=32768), random.Random(seed)
    with open(path, "a") as rows:
        for number, case in enumerate(json.loads(json.dumps([draw_case(rng) for _ in range(count)]))):
            if number < start:
                continue
            Path(path + ".at").write_text(str(number))
            row: dict[str, Any] = {"number": number, "case": case}
            try:
                row |= record_case(case, device)
            except Exception as refusal:
                row["error"] = str(refusal)[:300]
            rows.write(json.dumps(row) + "\n")
            rows.flush()


if __name__ == "__main__":
    path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        record(path, seed, count, int(sys.argv[4]))
        os._exit(0)
    Path(path).unlink(missing_ok=True)
    if "ttmesh" in sys.modules:
        record(path, seed, count, 0)
    else:  # some calls end the process
        start = 0
        while subprocess.run([sys.executable, __file__, *sys.argv[1:4], str(start)], check=False).returncode:
            start = int(Path(path + ".at").read_text()) + 1
