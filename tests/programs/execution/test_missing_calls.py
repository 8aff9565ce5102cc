"""From a correct program any one synchronising call is removed: an error names kernel, core and line, or nothing changes."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange, MeshShape
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.programs.buffers.buffer_configs import DeviceLocalBufferConfig, ReplicatedBufferConfig
from ttmesh.programs.buffers.buffer_transfers import enqueue_write_mesh_buffer, read_shard
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer
from ttmesh.programs.circular_buffers import CircularBufferConfig
from ttmesh.programs.execution.workload import MeshWorkload, enqueue_mesh_workload
from ttmesh.programs.program import ComputeConfig, Program, ReaderDataMovementConfig, WriterDataMovementConfig

TILE = 2048
SYNCHRONISING = re.compile(
    r"\s*(await )?core\.(cb_|noc_async_\w*(barrier|flushed)|noc_semaphore|tile_regs_|pack_tile|\w+\.noc_\w*atomic_inc)"
)
NAMED = r"{kernel} on core \(x=\d+,y=\d+\).*{kernel}\.py:\d+"

CONFIGS = {"reader": ReaderDataMovementConfig, "writer": WriterDataMovementConfig, "compute": ComputeConfig}


@dataclass
class Case:
    """Kernels as source text by name: the processor each runs on, its cores, and how often it is unrolled."""

    sources: dict[str, str]
    places: dict[str, tuple[str, CoreRange]]
    rings: list[tuple[int, int, CoreRange]]  # index, pages, cores
    pages: int
    expected: Callable[[torch.Tensor], torch.Tensor]
    semaphores: CoreRange | None = None
    legal: set[tuple[str, int]] = field(default_factory=set)  # lines that hardware does not need: kernel and number


def _unroll(head: str, body: str, times: int) -> str:
    """The body for i = 0, 1, ..., one line per call."""
    lines = [head, *(body.replace("$i", str(i)) for i in range(times))]
    return "\n".join(line for block in lines for line in block.strip("\n").splitlines())


def _line(source: str, call: str, *, last: bool = False) -> int:
    found = [number for number, line in enumerate(source.splitlines(), 1) if call in line]
    return found[-1] if last else found[0]


ONE = CoreRange((0, 0), (0, 0))


def pipeline(pages: int, slots: int) -> Case:
    """Reader, compute and writer: doubles every page."""
    reader = _unroll(
        "async def reader(core):\n    source = core.tensor_accessor(core.get_arg_val(0))",
        """
    await core.cb_reserve_back(0, 1)
    core.noc_async_read_page($i, source, core.get_write_ptr(0))
    core.noc_async_read_barrier()
    core.cb_push_back(0, 1)
""",
        pages,
    )
    compute = _unroll(
        "async def compute(core):",
        """
    await core.cb_wait_front(0, 1)
    await core.cb_reserve_back(1, 1)
    core.tile_regs_acquire()
    core.add_tiles(0, 0, 0, 0, 0)
    core.tile_regs_commit()
    core.tile_regs_wait()
    core.pack_tile(0, 1)
    core.tile_regs_release()
    core.cb_pop_front(0, 1)
    core.cb_push_back(1, 1)
""",
        pages,
    )
    writer = _unroll(
        "async def writer(core):\n    target = core.tensor_accessor(core.get_arg_val(1))",
        """
    await core.cb_wait_front(1, 1)
    core.noc_async_write_page($i, target, core.get_read_ptr(1))
    core.noc_async_write_barrier()
    core.cb_pop_front(1, 1)
""",
        pages,
    )
    return Case(
        {"reader": reader, "compute": compute, "writer": writer},
        {name: (name, ONE) for name in ("reader", "compute", "writer")},
        [(0, slots, ONE), (1, slots, ONE)],
        pages,
        lambda values: values + values,
        # What is popped last nobody needs again.
        legal={
            ("compute", _line(compute, "cb_pop_front", last=True)),
            ("writer", _line(writer, "cb_pop_front", last=True)),
        },
    )


def flushing(pages: int) -> Case:
    """A writer that waits only until its pages have left, and for their arrival at the end."""
    case = pipeline(pages, 2)
    writer = case.sources["writer"].replace("noc_async_write_barrier", "noc_async_writes_flushed")
    last = _line(writer, "writes_flushed", last=True)
    lines = writer.splitlines()
    lines[last - 1] = "    core.noc_async_write_barrier()"
    case.sources["writer"] = "\n".join(lines)
    return case


def blocks(count: int, tiles: int) -> Case:
    """The same in blocks of several tiles, packed one by one and out of order."""
    pack = "\n".join(f"    core.pack_tile({t}, 1, {t})" for t in reversed(range(tiles)))
    read = "\n".join(
        f"    core.noc_async_read_page($i * {tiles} + {t}, source, core.get_write_ptr(0) + {t * TILE})"
        for t in range(tiles)
    )
    write = "\n".join(
        f"    core.noc_async_write_page($i * {tiles} + {t}, target, core.get_read_ptr(1) + {t * TILE})"
        for t in range(tiles)
    )
    reader = _unroll(
        "async def reader(core):\n    source = core.tensor_accessor(core.get_arg_val(0))",
        f"""
    await core.cb_reserve_back(0, {tiles})
{read}
    core.noc_async_read_barrier()
    core.cb_push_back(0, {tiles})
""",
        count,
    )
    compute = _unroll(
        "async def compute(core):",
        f"""
    await core.cb_wait_front(0, {tiles})
    await core.cb_reserve_back(1, {tiles})
    core.tile_regs_acquire()
    core.add_tiles(0, 0, 0, 0, 0, tiles={tiles})
    core.tile_regs_commit()
    core.tile_regs_wait()
{pack}
    core.tile_regs_release()
    core.cb_push_back(1, {tiles})
    core.cb_pop_front(0, {tiles})
""",
        count,
    )
    writer = _unroll(
        "async def writer(core):\n    target = core.tensor_accessor(core.get_arg_val(1))",
        f"""
    await core.cb_wait_front(1, {tiles})
{write}
    core.noc_async_write_barrier()
    core.cb_pop_front(1, {tiles})
""",
        count,
    )
    return Case(
        {"reader": reader, "compute": compute, "writer": writer},
        {name: (name, ONE) for name in ("reader", "compute", "writer")},
        [(0, 2 * tiles, ONE), (1, 2 * tiles, ONE)],
        count * tiles,
        lambda values: values + values,
        legal={
            ("compute", _line(compute, "cb_pop_front", last=True)),
            ("writer", _line(writer, "cb_pop_front", last=True)),
        },
    )


def multicast(rounds: int, slots: int, receivers: int) -> Case:
    """One core reads pages and multicasts them; the others signal that they have room, and send what came to DRAM."""
    others, line = CoreRange((1, 0), (receivers, 0)), CoreRange((0, 0), (receivers, 0))
    sender = _unroll(
        f"""
async def sender(core):
    source = core.tensor_accessor(core.get_arg_val(0))
    ready, valid = core.get_semaphore(0), core.get_semaphore(1)
    x, y = core.my_x, core.my_y
    others = lambda address: core.get_noc_multicast_addr(x + 1, y, x + {receivers}, y, address)
    core.noc_semaphore_set(valid, 1)
""",
        f"""
    await core.cb_reserve_back(0, 1)
    core.noc_async_read_page($i, source, core.get_write_ptr(0))
    core.noc_async_read_barrier()
    await core.noc_semaphore_wait(ready, {receivers})
    core.noc_semaphore_set(ready, 0)
    core.noc_async_write_multicast(core.get_write_ptr(0), others(core.get_write_ptr(0)), {TILE})
    core.noc_semaphore_set_multicast(valid, others(valid))
    core.noc_async_write_barrier()
    core.cb_push_back(0, 1)
    await core.cb_wait_front(0, 1)
    core.cb_pop_front(0, 1)
""",
        rounds,
    )
    receiver = _unroll(
        """
async def receiver(core):
    ready, valid = core.get_semaphore(0), core.get_semaphore(1)
    first = core.get_noc_addr(core.my_x - core.logical_core.x, core.my_y, ready)
""",
        """
    await core.cb_reserve_back(0, 1)
    core.noc_semaphore_set(valid, 0)
    core.noc_semaphore_inc(first, 1)
    await core.noc_semaphore_wait(valid, 1)
    core.cb_push_back(0, 1)
""",
        rounds,
    )
    writer = _unroll(
        """
async def writer(core):
    target = core.tensor_accessor(core.get_arg_val(1))
    mine = core.logical_core.x - 1
""",
        f"""
    await core.cb_wait_front(0, 1)
    core.noc_async_write_page($i * {receivers} + mine, target, core.get_read_ptr(0))
    core.noc_async_write_barrier()
    core.cb_pop_front(0, 1)
""",
        rounds,
    )
    return Case(
        {"sender": sender, "receiver": receiver, "writer": writer},
        {"sender": ("reader", ONE), "receiver": ("reader", others), "writer": ("writer", others)},
        [(0, slots, line)],
        rounds,
        lambda values: values.repeat_interleave(receivers, 0),
        semaphores=line,
        legal={
            ("writer", _line(writer, "cb_pop_front", last=True)),
            ("receiver", _line(receiver, "noc_semaphore_set(valid, 0)")),  # it is 0 at the start
            ("sender", _line(sender, "noc_semaphore_set(ready, 0)", last=True)),  # nobody waits for it again
            ("sender", _line(sender, "cb_pop_front", last=True)),
        },
    )


def notes(rounds: int) -> Case:
    """A core writes to DRAM and tells another by a semaphore that it may read there."""
    second = CoreRange((1, 0), (1, 0))
    first = _unroll(
        """
async def first(core):
    source = core.tensor_accessor(core.get_arg_val(0))
    target = core.tensor_accessor(core.get_arg_val(2))
    ready = core.get_semaphore(0)
    there = core.get_noc_addr(core.my_x + 1, core.my_y, ready)
""",
        """
    await core.cb_reserve_back(0, 1)
    core.noc_async_read_page($i, source, core.get_write_ptr(0))
    core.noc_async_read_barrier()
    core.noc_async_write_page($i, target, core.get_write_ptr(0))
    core.noc_async_write_barrier()
    core.noc_semaphore_inc(there, 1)
""",
        rounds,
    )
    other = _unroll(
        """
async def other(core):
    source = core.tensor_accessor(core.get_arg_val(2))
    target = core.tensor_accessor(core.get_arg_val(1))
    ready = core.get_semaphore(0)
""",
        """
    await core.noc_semaphore_wait_min(ready, $i + 1)
    core.noc_async_read_page($i, source, core.get_write_ptr(0))
    core.noc_async_read_barrier()
    core.noc_async_write_page($i, target, core.get_write_ptr(0))
    core.noc_async_write_barrier()
""",
        rounds,
    )
    return Case(
        {"first": first, "other": other},
        {"first": ("reader", ONE), "other": ("writer", second)},
        [(0, 2, CoreRange((0, 0), (1, 0)))],
        rounds,
        lambda values: values,
        semaphores=CoreRange((0, 0), (1, 0)),
        # Nobody else uses this circular buffer: a page of L1 like any.
        legal={("first", number) for number, text in enumerate(first.splitlines(), 1) if "cb_reserve_back" in text},
    )


def variants(case: Case) -> Iterator[tuple[str, int]]:
    """Every line that can be left out."""
    for name, source in case.sources.items():
        for number, line in enumerate(source.splitlines(), 1):
            if SYNCHRONISING.match(line):
                yield name, number


@pytest.fixture(scope="module")
def chip() -> Iterator[MeshDevice]:
    opened = open_mesh_device(MeshShape(1, 1))
    yield opened
    close_mesh_device(opened)


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> None:
    return  # the mesh of this file stays open from test to test


def _run(chip: MeshDevice, case: Case, without: tuple[str, int] | None, order: tuple[str, ...]) -> None:
    """Run it and compare; the error is the program's, or that values differ."""
    outputs = case.expected(torch.zeros(case.pages, 1)).shape[0]
    local = DeviceLocalBufferConfig(TILE, BufferType.DRAM)
    source, between = (MeshBuffer.create(ReplicatedBufferConfig(case.pages * TILE), local, chip) for _ in range(2))
    target = MeshBuffer.create(ReplicatedBufferConfig(outputs * TILE), local, chip)
    values = torch.arange(case.pages).repeat_interleave(TILE // 2).add(1).bfloat16().reshape(case.pages, TILE // 2)
    enqueue_write_mesh_buffer(source, values)
    program = Program()
    for index, pages, cores in case.rings:
        program.create_circular_buffer(
            CoreRangeSet([cores]), CircularBufferConfig(pages * TILE, {index: DataType.BFLOAT16})
        )
    if case.semaphores is not None:
        for _ in range(2):
            program.create_semaphore(CoreRangeSet([case.semaphores]), 0)
    for name in order:
        lines = case.sources[name].splitlines()
        if without is not None and without[0] == name:
            lines[without[1] - 1] = "    pass"
        space: dict[str, Any] = {}
        exec(compile("\n".join(lines), f"{name}.py", "exec"), space)
        processor, cores = case.places[name]
        handle = program.create_kernel(space[name], CoreRangeSet([cores]), CONFIGS[processor]())
        for core in CoreRangeSet([cores]).cores():
            program.set_runtime_args(handle, CoreCoord(core.x, core.y), [source, target, between])
    workload = MeshWorkload()
    workload.add_program(MeshCoordinateRange(chip.shape), program)
    enqueue_mesh_workload(chip, workload)
    got = read_shard(target, MeshCoordinate(0, 0)).view(torch.bfloat16).reshape(outputs, TILE // 2)
    assert torch.equal(got, case.expected(values)), f"without {without} the values are wrong and nobody says so"


def _check(chip: MeshDevice, case: Case, order: tuple[str, ...]) -> None:
    _run(chip, case, None, order)
    said: dict[tuple[str, int], str] = {}
    for without in variants(case):
        try:
            _run(chip, case, without, order)
        except MeshError as error:
            said[without] = str(error)
    named = NAMED.replace("{kernel}", f"({'|'.join(case.sources)})")
    unnamed = {without: text for without, text in said.items() if not re.search(named, text)}
    assert not unnamed
    unsaid = set(variants(case)) - said.keys()
    assert unsaid <= case.legal, f"needed on hardware, and nobody says so: {sorted(unsaid - case.legal)}"


CASES = {
    "pipeline": pipeline(3, 2),
    "a ring of one page": pipeline(2, 1),
    "a ring with room for all": pipeline(3, 4),
    "flushing": flushing(3),
    "blocks": blocks(2, 2),
    "multicast": multicast(3, 2, 2),
    "notes in DRAM": notes(2),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backwards", [False, True], ids=["", "last kernel first"])
def test_no_missing_call_gives_wrong_values_without_a_word(chip: MeshDevice, name: str, backwards: bool) -> None:
    case = CASES[name]
    order = tuple(case.sources)

    _check(chip, case, order[::-1] if backwards else order)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(12))
def test_no_missing_call_of_a_random_program_goes_unsaid(chip: MeshDevice, seed: int) -> None:
    chance = random.Random(seed)
    makers: list[Callable[[], Case]] = [
        lambda: pipeline(chance.randint(2, 6), chance.randint(1, 7)),
        lambda: flushing(chance.randint(2, 5)),
        lambda: blocks(chance.randint(2, 4), chance.randint(2, 4)),
        lambda: multicast(chance.randint(2, 5), chance.randint(1, 4), chance.randint(1, 4)),
        lambda: notes(chance.randint(2, 5)),
    ]
    for make in makers:
        case = make()
        for order in itertools.permutations(case.sources):
            _check(chip, case, order)
