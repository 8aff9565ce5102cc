"""Traces take what TT-NN's programs take: runtime arguments of every core and the commands around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import Arch
from ttmesh.mesh.queue.dispatch_commands import (
    TRACE_END_BYTES,
    CapturedProgram,
    Group,
    choose_page_bytes,
    compute_argument_bytes,
    compute_launch_bytes,
    compute_program_bytes,
    host_alignment,
)

BINARIES = 160  # the commands that place a program's binaries, which a library without chips leaves out


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=1 << 20)
    yield opened
    ttnn.close_mesh_device(opened)


def put(device: Any, *shape: int, dtype: Any = ttnn.bfloat16, config: Any = ttnn.DRAM_MEMORY_CONFIG) -> Any:
    values = torch.zeros(shape) if dtype not in (ttnn.int32, ttnn.uint32) else torch.zeros(shape, dtype=torch.int32)
    layout = ttnn.ROW_MAJOR_LAYOUT if dtype in (ttnn.int32, ttnn.uint32) else ttnn.TILE_LAYOUT
    return ttnn.from_torch(values, dtype=dtype, layout=layout, device=device, memory_config=config)


def shards(width: int, cores: int) -> Any:
    grid = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, cores // 8 - 1))])
    spec = ttnn.ShardSpec(grid, [32, width // cores], ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.L1, spec)


def decode(device: Any) -> Callable[[], Any]:
    query, cache = put(device, 1, 32, 4, 128), put(device, 1024, 1, 32, 128, dtype=ttnn.bfloat8_b)
    pages, places = put(device, 32, 32, dtype=ttnn.int32), put(device, 32, dtype=ttnn.int32)
    attend = ttnn.transformer.paged_scaled_dot_product_attention_decode
    return lambda: attend(query, cache, cache, pages, cur_pos_tensor=places, scale=1.0)


def one(operation: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[Any], Callable[[], Any]]:
    def prepare(device: Any) -> Callable[[], Any]:
        tensors = [put(device, 1, 1, *shape) for shape in shapes]
        return lambda: operation(*tensors)

    return prepare


def rows(operation: Callable[..., Any], shape: tuple[int, ...]) -> Callable[[Any], Callable[[], Any]]:
    def prepare(device: Any) -> Callable[[], Any]:
        tensor = ttnn.from_torch(torch.zeros(1, 1, *shape), dtype=ttnn.bfloat16, device=device)
        return lambda: operation(tensor)

    return prepare


def embed(device: Any) -> Callable[[], Any]:
    tokens, weights = (
        put(device, 1, 1024, dtype=ttnn.uint32),
        ttnn.from_torch(torch.zeros(1, 1, 1024, 512), dtype=ttnn.bfloat16, device=device),
    )
    return lambda: ttnn.embedding(tokens, weights, layout=ttnn.TILE_LAYOUT)


def leave_shards(device: Any) -> Callable[[], Any]:
    wide = put(device, 1, 1, 32, 4096, config=shards(4096, 32))
    return lambda: ttnn.to_memory_config(wide, ttnn.DRAM_MEMORY_CONFIG)


def reshard(device: Any) -> Callable[[], Any]:
    narrow = put(device, 1, 1, 32, 4096, config=shards(4096, 8))
    return lambda: ttnn.to_memory_config(narrow, shards(4096, 32))


# What TT-NN 0.81.1 wrote into the trace for one program on an n150, without the commands for binaries.
RECORDED: dict[str, tuple[Callable[[Any], Callable[[], Any]], int]] = {
    "add of a tile": (one(ttnn.add, (32, 32), (32, 32)), 11008),
    "add": (one(ttnn.add, (1024, 4096), (1024, 4096)), 11008),
    "relu": (one(ttnn.relu, (128, 512)), 5920),
    "where": (one(ttnn.where, (128, 512), (128, 512), (128, 512)), 12064),
    "typecast": (one(lambda x: ttnn.typecast(x, ttnn.bfloat8_b), (128, 512)), 1824),
    "rms_norm": (one(ttnn.rms_norm, (1024, 4096)), 1760),
    "softmax": (one(lambda x: ttnn.softmax(x, dim=-1), (1024, 4096)), 2816),
    "transpose": (one(lambda x: ttnn.transpose(x, -1, -2), (128, 512)), 3872),
    "concat": (one(lambda x: ttnn.concat([x, x], dim=2), (128, 512)), 3840),
    "matmul of one row of tiles": (one(ttnn.matmul, (32, 1792), (1792, 4096)), 6464),
    "matmul": (one(ttnn.matmul, (1024, 4096), (4096, 1792)), 6208),
    "attention over a sequence": (
        one(
            lambda q, k: ttnn.transformer.scaled_dot_product_attention(q, k, k, is_causal=True), (128, 128), (128, 128)
        ),
        10208,
    ),
    "attention of a token": (decode, 62720),
    "from 8 shards to 32": (reshard, 6272),
    "tilize": (rows(ttnn.tilize, (128, 512)), 704),
    "permute": (one(lambda x: ttnn.permute(x, (0, 2, 1, 3)), (128, 512)), 2848),
    "reshape of rows": (rows(lambda x: ttnn.reshape(x, (1, 1, 1024, 64)), (128, 512)), 3840),
    "slice": (one(lambda x: x[:, :, :32, :], (1024, 4096)), 2848),
    "slice of rows": (rows(lambda x: x[:, :, :16, :], (128, 512)), 2880),
    "pad": (one(lambda x: ttnn.pad(x, [(0, 0), (0, 0), (0, 32), (0, 0)], 0.0), (128, 512)), 9984),
    "maximum of columns": (one(lambda x: ttnn.max(x, dim=-2), (1024, 4096)), 2880),
    "topk": (one(lambda x: ttnn.topk(x, 32, dim=-1), (1024, 4096)), 1792),
    "matmul of four rows of tiles": (one(ttnn.matmul, (128, 512), (512, 512)), 3968),
    "wide matmul": (one(ttnn.matmul, (128, 512), (512, 4096)), 6464),
    "embedding": (embed, 1696),
    "out of shards": (leave_shards, 2176),
}


@pytest.mark.parametrize("case", RECORDED)
def test_a_traced_program_takes_what_tt_nn_takes(device: Any, case: str) -> None:
    prepare, recorded = RECORDED[case]
    run = prepare(device)
    run()
    trace = ttnn.begin_trace_capture(device, cq_id=0)
    run()
    ttnn.end_trace_capture(device, trace, cq_id=0)

    taken = device.trace_bytes
    ttnn.release_trace(device, trace)

    assert taken - TRACE_END_BYTES == pytest.approx(recorded + BINARIES, rel=0.1, abs=1024)  # pages are of 1,024 B


@pytest.mark.parametrize(
    ("cores", "argument_bytes", "recorded"),
    [(64, 152, 10528), (1, 32, 96), (32, 32, 1184), (15, 72, 1312), (28, 64, 1952), (21, 64, 1472), (64, 600, 39200)],
)
def test_arguments_of_cores_take_as_many_bytes_as_tt_metal_writes(
    cores: int, argument_bytes: int, recorded: int
) -> None:
    assert compute_argument_bytes(Group(cores, argument_bytes)) == recorded


@pytest.mark.parametrize(("ranges", "wormhole", "blackhole"), [(1, 192, 192), (5, 800, 832), (32, 4896, 4928)])
def test_launch_messages_take_as_many_bytes_as_tt_metal_writes(ranges: int, wormhole: int, blackhole: int) -> None:
    assert compute_launch_bytes(ranges, host_alignment(Arch.WORMHOLE_B0)) == wormhole
    assert compute_launch_bytes(ranges, host_alignment(Arch.BLACKHOLE)) == blackhole


@pytest.mark.parametrize(
    ("program", "alignment", "recorded"),
    [
        (CapturedProgram([Group(64, 152)], 48), 32, 11008),
        (CapturedProgram([Group(110, 152)], 48), 64, 18752),
        (CapturedProgram([Group(1, 88), Group(7, 80), Group(7, 72), Group(28, 64), Group(21, 64)], 240), 32, 6208),
        (CapturedProgram([Group(1, 0)], 48), 32, 480),
    ],
)
def test_a_program_is_the_sum_of_its_commands(program: CapturedProgram, alignment: int, recorded: int) -> None:
    without = program._replace(binaries=0)

    assert compute_program_bytes(without, alignment) == recorded
    assert compute_program_bytes(program, alignment) > recorded


@pytest.mark.parametrize(
    ("size", "banks", "page"), [(5_000, 12, 1024), (30_000, 12, 1024), (100_000, 12, 4096), (50_000_000, 12, 8192)]
)
def test_pages_of_a_trace_grow_with_it(size: int, banks: int, page: int) -> None:
    assert choose_page_bytes(size, banks) == page
