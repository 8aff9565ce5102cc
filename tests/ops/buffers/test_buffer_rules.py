"""Rules of circular buffers: they take every spec, raise nothing, and give a number of bytes."""

from __future__ import annotations

import random
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

from ttmesh.base.cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import (
    BLOCK_FLOATS,
    Arch,
    BufferType,
    DataType,
    Layout,
    ShardOrientation,
    TensorMemoryLayout,
)
from ttmesh.base.errors import MeshError
from ttmesh.ops.catalogue.families import load
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import list_buffer_rules
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, L1_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec

load()
CASES = 25  # per rule
EXTENTS = (1, 2, 3, 8, 31, 32, 33, 50, 64, 96, 128, 160, 500, 1024, 4096, 8192, 16032, 65536)
DTYPES = [dtype for dtype in DataType if dtype.name != "INVALID"]


def _make_memory(rng: random.Random, shape: tuple[int, ...]) -> MemoryConfig:
    kind = rng.choice(("dram", "dram", "l1", "height", "width", "block"))
    if kind in ("dram", "l1") or len(shape) < 2:
        return L1_MEMORY_CONFIG if kind == "l1" else DRAM_MEMORY_CONFIG
    x, y = rng.choice(((1, 1), (4, 1), (8, 2), (8, 8)))
    cores = CoreRangeSet(CoreRange(CoreCoord(0, 0), CoreCoord(x - 1, y - 1)))
    rows = max(1, prod(shape[:-1]))
    down, across = {"height": (x * y, 1), "width": (1, x * y), "block": (y, x)}[kind]
    shard = tuple(
        max(-(-size // parts // 32) * 32, 32) for size, parts in ((rows + 31, down), (shape[-1] + 31, across))
    )
    layout = getattr(TensorMemoryLayout, f"{kind.upper()}_SHARDED")
    orientation = rng.choice((ShardOrientation.ROW_MAJOR, ShardOrientation.COL_MAJOR))
    return MemoryConfig(
        layout, rng.choice((BufferType.L1, BufferType.L1, BufferType.DRAM)), ShardSpec(cores, shard, orientation)
    )


def _make_spec(rng: random.Random, rank: int | None = None) -> TensorSpec:
    """A spec of any rank, format, layout and memory that can be made."""
    while True:
        shape = tuple(
            rng.choice(EXTENTS[: 12 if i else 18]) for i in range(rng.randint(0, 6) if rank is None else rank)
        )[::-1]
        dtype = rng.choice(DTYPES)
        layout = Layout.TILE if dtype in BLOCK_FLOATS else rng.choice((Layout.TILE, Layout.ROW_MAJOR))
        try:
            return TensorSpec(shape, dtype, layout, memory_config=_make_memory(rng, shape))
        except MeshError:
            continue


def _make_options(rng: random.Random, rank: int) -> dict[str, Any]:
    """Options as calls and stages give them; any may be missing."""
    order = list(range(rank))
    rng.shuffle(order)
    compute = SimpleNamespace(fp32_dest_acc_en=rng.random() < 0.5, packer_l1_acc=rng.random() < 0.5)
    all_options: dict[str, Any] = {
        "dim": rng.choice((None, -1, -2, 0, 1)),
        "dims": rng.choice((None, tuple(order), [0])),
        "k": rng.choice((None, 1, 32, 64)),
        "dim1": rng.randint(-1, 1),
        "dim2": rng.randint(-2, 0),
        "numeric_stable": rng.choice((None, True, False)),
        "compute_kernel_config": rng.choice((None, compute)),
        "program_config": None,
        "use_multicore": rng.choice((True, False)),
        "transpose_k_heads": rng.choice((None, True, False)),
        "padding": rng.choice((None, [(0, 1)] * rank, ((1, 2),))),
        "slice_step": rng.choice((None, [1] * rank, [2] * rank)),
        "slice_start": rng.choice((None, [0] * rank, [5] * rank)),
        "update_idxs_tensor": rng.choice((None, SimpleNamespace(spec=_make_spec(rng, 1)))),
        "page_table": rng.choice((None, SimpleNamespace(spec=_make_spec(rng, 2)))),
        "weight": rng.choice((None, SimpleNamespace(spec=_make_spec(rng, 2)))),
        "bias": rng.choice((None, SimpleNamespace(spec=_make_spec(rng, 2)))),
        "residual_input_tensor": rng.choice((None, SimpleNamespace(spec=_make_spec(rng)))),
        "stage": rng.choice(
            ((tuple(order), 0.0), ((0, 1), 0.0), ("W", "sum", None, None), ("H", "max"), (1, True), None, "front")
        ),
    }
    return {name: value for name, value in all_options.items() if rng.random() < 0.5}


@pytest.mark.parametrize("name", sorted(list_buffer_rules()))
def test_a_rule_takes_every_spec(name: str) -> None:
    rule, rng = list_buffer_rules()[name], random.Random(name)
    for _ in range(CASES):
        inputs = tuple(_make_spec(rng) for _ in range(rng.randint(1, 4)))
        results = tuple(_make_spec(rng) for _ in range(rng.randint(1, 2)))
        grid = rng.choice((CoreGrid(8, 8), CoreGrid(10, 13), CoreGrid(7, 8)))
        options = _make_options(rng, len(inputs[0].shape))
        free = rng.choice((0, 64_000, 1_393_472))
        program = ProgramCall(inputs, results, grid, rng.choice((Arch.WORMHOLE_B0, Arch.BLACKHOLE)), options, free)

        size = rule(program)

        assert isinstance(size, int), (inputs, results, options)
        assert size >= 0, (inputs, results, options)


def test_repeats_of_long_rows_take_no_more_than_is_free() -> None:
    rows = TensorSpec((1, 1, 1, 131072), DataType.BFLOAT16, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG)
    program = ProgramCall((rows,), (rows,), CoreGrid(8, 8), Arch.WORMHOLE_B0, {}, 1_393_472)

    assert list_buffer_rules()["repeat_codegen"](program) <= 1_393_472
