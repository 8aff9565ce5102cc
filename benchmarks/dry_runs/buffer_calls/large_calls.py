"""Calls of tensors as wide or as tall as models have them: vocabularies, long prompts, caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ttnn

from buffer_calls.listed_call import Call, T, call

SHAPES = (
    (1, 1, 1, 129280), (1, 1, 32, 128256), (1, 1, 32, 131072), (1, 1, 2048, 8192), (1, 1, 8192, 4096), (1, 1, 65536, 128),
    (1, 32, 4096, 128), (32, 1, 32, 4096), (1, 1, 32, 50272), (1, 1, 33, 151936), (1, 8, 1024, 1024), (1, 1, 32768, 2048),
)  # fmt: skip
BELOW, BESIDE = [(0, 0), (0, 0), (0, 32), (0, 0)], [(0, 0), (0, 0), (0, 0), (0, 64)]

Run = Callable[[Any], Any]
BOTH: dict[str, Run] = {
    "transpose": lambda a: ttnn.transpose(a, -1, -2),
    "permute": lambda a: ttnn.permute(a, (0, 2, 1, 3)),
    "slice a row": lambda a: a[:, :, :1, :],
    "slice columns": lambda a: a[:, :, :, 32:64],
    "concat columns": lambda a: ttnn.concat([a, a], -1),
    "concat rows": lambda a: ttnn.concat([a, a], 2),
    "pad below": lambda a: ttnn.pad(a, BELOW, 0.0),
    "pad beside": lambda a: ttnn.pad(a, BESIDE, 0.0),
    "repeat rows": lambda a: ttnn.repeat(a, (1, 1, 4, 1)),
    "repeat columns": lambda a: ttnn.repeat(a, (1, 1, 1, 2)),
    "clone": lambda a: ttnn.clone(a),
    "split": lambda a: ttnn.split(a, a.shape[-1] // 2, dim=3),
}
TILES: dict[str, Run] = {
    "gelu": lambda a: ttnn.gelu(a),
    "add": lambda a: ttnn.add(a, a),
    "sum": lambda a: ttnn.sum(a, dim=-1),
    "max": lambda a: ttnn.max(a, dim=-1),
    "mean of columns": lambda a: ttnn.mean(a, dim=-2),
    "std": lambda a: ttnn.std(a, dim=-1),
    "softmax": lambda a: ttnn.softmax(a, dim=-1),
    "softmax of columns": lambda a: ttnn.softmax(a, dim=-2),
    "rms_norm": lambda a: ttnn.rms_norm(a),
    "layer_norm": lambda a: ttnn.layer_norm(a),
    "to rows": lambda a: ttnn.to_layout(a, ttnn.ROW_MAJOR_LAYOUT),
    "untilize": lambda a: ttnn.untilize(a),
    "argmax": lambda a: ttnn.argmax(a, dim=-1, keepdim=True),
    "topk": lambda a: ttnn.topk(a, 32, dim=-1),
}
ROWS: dict[str, Run] = {
    "to tiles": lambda a: ttnn.to_layout(a, ttnn.TILE_LAYOUT),
    "to L1": lambda a: ttnn.to_memory_config(a, ttnn.L1_MEMORY_CONFIG),
}


def large() -> Iterator[Call]:
    for shape in SHAPES:
        for dtype in ("b16", "f32", "b8"):
            for layout, runs in (("T", BOTH | TILES), ("R", BOTH | ROWS)):
                if layout == "T" or dtype != "b8":
                    for name, run in runs.items():
                        yield call("large", name, T(shape, dtype, layout), run=run)
