"""An operation on some chips writes only those chips: the values on the others stay, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import harness
import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.errors import MeshError, TraceError
from ttmesh.ops.catalogue import families
from ttmesh.tensor.calls.plan import OUTPUTS
from ttmesh.tensor.tensor import Tensor

CASES = harness.load_cases()
MESH, CHIP = (2, 2), (1, 0)
RANDOM = ("rand", "bernoulli", "dropout", "uniform", "sampling", "normal")  # other values at every call
OTHER_OUTPUTS = ("output", "out", "preallocated_output", "optional_tensor", "input_grad", "input_grad_tensor")
SCHEDULES = ("eager", "async", "adversarial", "trace")


def narrow(value: Any) -> Any:
    """The arguments as one chip's tensors."""
    if isinstance(value, Tensor):
        return ttnn.get_device_tensors(value)[CHIP[0] * MESH[1] + CHIP[1]]
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
        return type(value)(narrow(item) for item in value)
    return value


def tensors_in(*values: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found


def contents(tensors: list[Tensor]) -> list[torch.Tensor]:
    """What every chip holds in the memory of these tensors, as bytes."""
    for tensor in tensors:
        tensor.device().queue().finish()
    cells = [tensor.buffer.cell for tensor in tensors]
    return [cell.read_bytes().expand(*MESH, cell.size_bytes).clone() for cell in cells]


def assert_others_unchanged(before: list[torch.Tensor], after: list[torch.Tensor], what: str) -> None:
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        changed = {(r, c) for r in range(MESH[0]) for c in range(MESH[1]) if not torch.equal(old[r, c], new[r, c])}
        assert changed <= {CHIP}, f"{what}: tensor {i} changed on {sorted(changed - {CHIP})}"


def poison(tensors: list[Tensor], byte: int = 0x41) -> None:
    for tensor in tensors:
        cell = tensor.buffer.cell
        cell.write_bytes(torch.full((*MESH, cell.size_bytes), byte, dtype=torch.uint8))


@contextmanager
def mesh_on(schedule: str, case: harness.Case) -> Iterator[ttnn.MeshDevice]:
    settings.override("TTMESH_SCHEDULE", "eager" if schedule == "trace" else schedule)
    try:
        with harness.mesh_of(MESH, "cpu", case.system) as mesh:
            yield mesh
    finally:
        settings.override("TTMESH_SCHEDULE", None)


def call(schedule: str, mesh: ttnn.MeshDevice, function: Callable[[], Any]) -> Any:
    """The call's result, after it ran under this schedule."""
    if schedule != "trace":
        result = function()
    else:
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        try:
            result = function()
        finally:
            ttnn.end_trace_capture(mesh, trace, cq_id=0)
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
    ttnn.synchronize_device(mesh)
    return result


def outputs_for(name: str, results: list[Tensor]) -> list[dict[str, Any]]:
    """The keyword arguments that name tensors to write results into."""
    entry = families.load()[name]
    parameters = entry.function.parameters()
    if entry.operation is not None and entry.operation.outputs and len(entry.operation.outputs) == len(results):
        return [dict(zip(entry.operation.outputs, results, strict=True))]
    names = [p for p in (*OUTPUTS, *OTHER_OUTPUTS) if p in parameters and p in entry.function.takes]
    return [{p: results if p == "output_tensors" or len(results) > 1 else results[0]} for p in names[:1]]


def exercise(case: harness.Case, schedule: str) -> bool:
    """Run a case on one chip's tensors; whether it also wrote into given outputs."""
    cell = harness.Cell(case.dtypes[0], case.layouts[0], MESH, "sharded" if case.placements else "replicated")
    per_device = [case.make(torch.Generator().manual_seed(d if case.placements else 0)) for d in range(4)]
    function = families.load()[case.operation].function
    exact = not any(word in case.operation for word in RANDOM)
    with mesh_on(schedule, case) as mesh:
        args, kwargs = harness.arguments_on(mesh, cell, per_device)
        given = tensors_in(args, kwargs)
        if not given or case.operation == "ttnn.move":  # that one frees its input
            return False
        untouched = contents(given)
        results = harness.list_tensors(function(*args, **kwargs))
        expected = [shard[CHIP] for shard in contents(results)]
        specs = [result.spec for result in results]
        for tensor, old in zip(given, untouched, strict=True):
            tensor.buffer.cell.write_bytes(old)

        few, few_named = [narrow(a) for a in args], {k: narrow(v) for k, v in kwargs.items()}
        alone = harness.list_tensors(call(schedule, mesh, lambda: function(*few, **few_named)))

        assert_others_unchanged(untouched, contents(given), case.name)
        assert [result.spec for result in alone] == specs
        assert all(result.coords() == [CHIP] for result in alone), [result.coords() for result in alone]
        if exact:
            seen = [shard[CHIP] for shard in contents(alone)]
            assert all(map(torch.equal, seen, expected)), f"{case.name}: other values on one chip than on all"

        wrote = False
        aliases = {id(t.buffer) for t in given} & {id(r.buffer) for r in results}
        for named in [] if aliases else outputs_for(case.operation, results):
            for ins, outs in ((narrow, lambda v: v), (lambda v: v, narrow), (narrow, narrow)):
                for tensor, old in zip(given, untouched, strict=True):
                    tensor.buffer.cell.write_bytes(old)
                poison(results)
                poisoned = contents(results)
                options = {**{k: ins(v) for k, v in kwargs.items()}, **{k: outs(v) for k, v in named.items()}}
                try:
                    made = call(schedule, mesh, lambda ins=ins, options=options: function(*map(ins, args), **options))
                except TraceError:
                    raise
                except (TypeError, MeshError):  # this call takes no outputs
                    return wrote
                into = [r for r in results if any(r.buffer is m.buffer for m in harness.list_tensors(made))]
                if ins is narrow:
                    assert_others_unchanged(untouched, contents(given), f"{case.name} with {list(named)}")
                assert_others_unchanged(poisoned, contents(results), f"{case.name} into {list(named)}")
                if exact and into:
                    seen = [shard[CHIP] for shard in contents(into)]
                    wanted = [e for e, r in zip(expected, results, strict=True) if any(r is i for i in into)]
                    assert all(map(torch.equal, seen, wanted)), f"{case.name} into {list(named)}: other values"
                wrote = wrote or bool(into)
    return wrote


def run_case(case: harness.Case, schedule: str) -> None:
    try:
        exercise(case, schedule)
    except TraceError:  # it reads or writes on the host: no part of a trace
        assert schedule == "trace"


WRITE_WORDS = ("in_place", "cache", "copy", "plus_one", "insert")
WRITERS = [c for c in CASES if c.operation.endswith("_") or any(word in c.operation for word in WRITE_WORDS)]
SAMPLE = {case.name: case for case in (*random.Random(1).sample(CASES, 30), *WRITERS[::2])}


@pytest.mark.parametrize("case", SAMPLE.values(), ids=SAMPLE)
def test_an_operation_on_one_chip_leaves_the_others_unchanged(case: harness.Case) -> None:
    run_case(case, random.Random(case.name).choice(SCHEDULES))


@pytest.mark.deep
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operation_on_one_chip_leaves_the_others_unchanged(case: harness.Case, schedule: str) -> None:
    run_case(case, schedule)


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    opened = ttnn.open_mesh_device(ttnn.MeshShape(1, 4))
    yield opened
    ttnn.close_mesh_device(opened)


def chips_of(mesh: ttnn.MeshDevice, *numbers: float, memory_config: ttnn.MemoryConfig | None = None) -> ttnn.Tensor:
    values = torch.tensor(numbers).reshape(-1, 1, 1, 1).expand(-1, 1, 64, 32)
    mapper = ttnn.ShardTensorToMesh(mesh, dim=0)
    return ttnn.from_torch(
        values,
        dtype=ttnn.bfloat16,
        layout=ttnn.TILE_LAYOUT,
        device=mesh,
        mesh_mapper=mapper,
        memory_config=memory_config,
    )


def held(tensor: ttnn.Tensor) -> list[float]:
    return [float(ttnn.to_torch(shard)[0, 0, 0, 0]) for shard in ttnn.get_device_tensors(tensor)]


def test_a_repeated_call_on_one_chip_takes_the_short_way_and_writes_that_chip(mesh: ttnn.MeshDevice) -> None:
    y = chips_of(mesh, 1, 2, 3, 4)

    for _ in range(3):
        for shard in ttnn.get_device_tensors(y)[1:3]:
            ttnn.add_(shard, 10.0)

    assert held(y) == [1, 32, 33, 4]


def test_the_result_of_a_partial_call_shows_the_chips_it_ran_on(mesh: ttnn.MeshDevice) -> None:
    y, z = chips_of(mesh, 1, 2, 3, 4), chips_of(mesh, 5, 6, 7, 8)
    d, e = ttnn.get_device_tensors(y), ttnn.get_device_tensors(z)

    into_all = ttnn.add(d[1], 1.0, output_tensor=z)
    into_one = ttnn.add(y, 1.0, output_tensor=e[2])
    separate = ttnn.add(d[0], e[1])  # TT-NN takes the first tensor's chips

    assert [t.coords() for t in (into_all, into_one, separate)] == [[(0, 1)], [(0, 2)], [(0, 0)]]
    assert held(z) == [5, 3, 4, 8]
    assert held(separate) == [6]
    assert into_all.buffer_address() == z.buffer_address()


def test_host_writes_to_one_chip_leave_the_others(mesh: ttnn.MeshDevice) -> None:
    shard = ttnn.create_sharded_memory_config((32, 32), ttnn.CoreGrid(y=1, x=2), ttnn.ShardStrategy.HEIGHT,
                                              use_height_and_width_as_shard_shape=True)  # fmt: skip
    y = chips_of(mesh, 1, 2, 3, 4, memory_config=shard)
    host = ttnn.from_torch(torch.full((1, 1, 64, 32), 9.0), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    first = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 0))})

    ttnn.copy_host_to_device_tensor(host, ttnn.get_device_tensors(y)[2])
    ttnn.copy_host_to_device_tensor_partial(host, ttnn.get_device_tensors(y)[0], first)

    assert held(y) == [9, 2, 9, 4]
    assert float(ttnn.to_torch(ttnn.get_device_tensors(y)[0])[0, 0, 32, 0]) == 1


def test_raw_bytes_on_other_chips_stay_to_the_bit(mesh: ttnn.MeshDevice) -> None:
    y = chips_of(mesh, 1, 2, 3, 4)
    cell = y.buffer.cell
    noise = torch.randint(
        0, 256, (1, 4, cell.size_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )
    cell.write_bytes(noise)

    ttnn.multiply(ttnn.get_device_tensors(y)[1], 0.0, output_tensor=ttnn.get_device_tensors(y)[1])

    after = cell.read_bytes()
    assert [torch.equal(after[0, i], noise[0, i]) for i in range(4)] == [True, False, True, True]


def test_memory_that_nobody_wrote_reads_zero_beside_a_chip_that_was_written(mesh: ttnn.MeshDevice) -> None:
    y = chips_of(mesh, 1, 2, 3, 4)
    empty = ttnn.allocate_tensor_on_device(y.spec, mesh)

    ttnn.copy(ttnn.get_device_tensors(y)[3], empty)

    assert held(empty) == [0, 0, 0, 4]


def test_two_queues_write_different_chips_of_one_tensor_at_the_same_time() -> None:
    settings.override("TTMESH_SCHEDULE", "async")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4), num_command_queues=2)
    try:
        y = chips_of(mesh, 0, 0, 0, 0)
        ttnn.synchronize_device(mesh)
        d = ttnn.get_device_tensors(y)
        for i in range(50):
            values = torch.full((1, 1, 64, 32), float(i))
            host = ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
            ttnn.add(d[0], 1.0, output_tensor=d[0], queue_id=0)
            ttnn.copy_host_to_device_tensor(host, d[1], cq_id=1)
        ttnn.synchronize_device(mesh)

        assert held(y) == [50, 49, 0, 0]
    finally:
        ttnn.close_mesh_device(mesh)
        settings.override("TTMESH_SCHEDULE", None)


def test_a_replayed_trace_of_one_chip_leaves_what_now_lies_at_its_address(mesh: ttnn.MeshDevice) -> None:
    y = chips_of(mesh, 1, 2, 3, 4)
    shard = ttnn.get_device_tensors(y)[1]
    ttnn.add(shard, 1.0)
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    made = ttnn.add(shard, 1.0)
    address = made.buffer_address()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    ttnn.deallocate(made)
    other = chips_of(mesh, 5, 6, 7, 8)

    ttnn.execute_trace(mesh, trace, cq_id=0)

    assert other.buffer_address() == address
    assert held(other) == [5, 3, 7, 8]


@pytest.mark.parametrize("gather", ["all_gather", "all_reduce"])
def test_a_collective_of_two_chips_leaves_the_rest_of_a_persistent_buffer(gather: str) -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 4))
    try:
        values = torch.tensor([1.0, 2.0]).reshape(-1, 1, 1, 1).expand(-1, 1, 32, 32)
        two = ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh,
                              mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0))  # fmt: skip
        target = chips_of(mesh, 5, 6, 7, 8)
        target = target if gather == "all_gather" else ttnn.slice(target, [0, 0, 0, 0], [1, 1, 32, 32])

        if gather == "all_gather":
            result = ttnn.all_gather(two, dim=2, output_tensor=target)
        else:
            result = ttnn.add(ttnn.all_reduce(two), 0.0, output_tensor=target)

        assert two.coords() == result.coords() == [(0, 0), (0, 1)]
        assert held(target) == ([1, 1, 7, 8] if gather == "all_gather" else [3, 3, 7, 8])
    finally:
        ttnn.close_mesh_device(mesh)
        ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)
