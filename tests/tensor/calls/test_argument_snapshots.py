"""What a caller does to a list or a configuration after a call changes nothing that the call gives, now or later."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from math import nan
from typing import Any

import harness
import numpy as np
import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.base import settings
from ttmesh.base.errors import TraceError
from ttmesh.ops.catalogue import families
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import MemoryConfig

SCHEDULES = ("eager", "async", "adversarial", "trace")
SAMPLE = 24


def lists(value: Any) -> Any:
    """The same with a list for every tuple, and objects that nobody else holds."""
    if isinstance(value, (torch.Tensor, harness.On)):
        return value
    if type(value) in (list, tuple):
        return [lists(item) for item in value]
    if isinstance(value, dict):
        return {name: lists(item) for name, item in value.items()}
    return copy.deepcopy(value)


def spoil(value: Any) -> bool:
    """Change everything inside that can be changed; whether there was something."""
    if isinstance(value, MemoryConfig):
        return spoil([value.shard_spec, value.nd_shard_spec]) and not value.interleaved
    if isinstance(value, list):
        found = [spoil(item) for item in value]
        numbers = [isinstance(item, (int, float)) for item in value]
        value[:] = [item + 1 if number else None for item, number in zip(value, numbers, strict=True)]
        return bool(found)
    if isinstance(value, (dict, set)):
        value.clear()
        return True
    if isinstance(value, np.ndarray):
        value += 1
        return True
    if dataclasses.is_dataclass(value) and not type(value).__dataclass_params__.frozen:
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if not spoil(held):
                setattr(value, field.name, another(held))
        return True
    return False


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next((member for member in type(value) if member is not value), value)
    return value + 1 if isinstance(value, (int, float)) else value


@contextmanager
def mesh_on(schedule: str, system: str) -> Iterator[ttnn.MeshDevice]:
    settings.override("TTMESH_SCHEDULE", schedule)
    settings.override("TTMESH_SYSTEM", system)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 26)
    try:
        yield mesh
    finally:
        ttnn.close_mesh_device(mesh)
        settings.override("TTMESH_SCHEDULE", None)
        settings.override("TTMESH_SYSTEM", None)


def values_of(results: list[ttnn.Tensor]) -> list[tuple[str, bytes]]:
    seen = []
    for result in results:
        values = harness.lane_of(result, (0, 0)).reshape(-1)
        seen.append((repr(result.spec), values.view(torch.uint8).cpu().numpy().tobytes() if values.numel() else b""))
    return seen


def arguments(case: harness.Case, mesh: ttnn.MeshDevice) -> harness.Arguments:
    made = lists(case.make(torch.Generator().manual_seed(0)))
    cell = harness.Cell(case.dtypes[0], case.layouts[0], (1, 2), "replicated")
    return harness.arguments_on(mesh, cell, [made, made])


def call(case: harness.Case, args: list[Any], kwargs: dict[str, Any]) -> list[ttnn.Tensor]:
    return harness.list_tensors(families.load()[case.operation].function(*args, **kwargs))


def check(case: harness.Case, schedule: str) -> None:
    """Spoil the arguments right after the call, and call again with fresh equal ones."""
    with mesh_on("eager", case.system) as mesh:
        expected = values_of(call(case, *arguments(case, mesh)))
    with mesh_on("eager" if schedule == "trace" else schedule, case.system) as mesh:
        for _ in range(3):
            args, kwargs = arguments(case, mesh)
            results = call(case, args, kwargs)
            spoil(args)
            spoil([kwargs])
            assert values_of(results) == expected
        if schedule != "trace":
            return
        args, kwargs = arguments(case, mesh)
        trace = ttnn.begin_trace_capture(mesh, cq_id=0)
        try:
            results = call(case, args, kwargs)
        except TraceError as refusal:
            if "Reads are not supported" in str(refusal):
                return  # it prepares its weights on the host: no trace can hold it
            raise
        finally:
            ttnn.end_trace_capture(mesh, trace, cq_id=0)
        held = [value for value in (*args, *kwargs.values()) if isinstance(value, ttnn.Tensor)]
        spoil(args)
        spoil([kwargs])
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
        assert values_of(results) == expected
        ttnn.release_trace(mesh, trace)
        del held


def has_mutable_arguments(case: harness.Case) -> bool:
    args, kwargs = lists(case.make(torch.Generator().manual_seed(0)))
    return True in [spoil(value) for value in (*args, *kwargs.values())]


CASES = [case for case in harness.load_cases() if has_mutable_arguments(case)]
ALL = [(case, schedule) for case in CASES for schedule in SCHEDULES]


def names(value: Any) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("case", "schedule"), random.Random(0).sample(ALL, SAMPLE), ids=names)
def test_changed_arguments_change_no_result(case: harness.Case, schedule: str) -> None:
    check(case, schedule)


@pytest.mark.deep
@pytest.mark.parametrize(("case", "schedule"), ALL, ids=names)
def test_changed_arguments_change_no_result_of_any_operation(case: harness.Case, schedule: str) -> None:
    check(case, schedule)


@pytest.fixture
def mesh() -> Iterator[ttnn.MeshDevice]:
    with mesh_on("eager", "t3k") as opened:
        yield opened


def ones(mesh: ttnn.MeshDevice, shape: tuple[int, ...] = (1, 1, 32, 32)) -> ttnn.Tensor:
    return ttnn.from_torch(torch.ones(shape), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=mesh)


ZEROS = {
    "a fill value": lambda x, zero: ttnn.moreh_full_like(x, zero),
    "a first operand": lambda x, zero: ttnn.multiply(zero, x),
    "a runtime number": lambda x, zero: ttnn.multiply(x, zero),
    "a padding": lambda x, zero: ttnn.pad(x, [(0, 0), (0, 0), (0, 32), (0, 0)], zero)[:, :, 32:, :],
    "a parameter of an activation": lambda x, zero: ttnn.add(
        x, x, activations=[ttnn.UnaryWithParam(ttnn.UnaryOpType.MUL_UNARY_SFPU, zero)]
    ),
}


@pytest.mark.parametrize("form", ZEROS)
def test_negative_zero_is_another_number_than_zero(mesh: ttnn.MeshDevice, form: str) -> None:
    x = ones(mesh)
    for zero in (0.0, -0.0, 0.0, -0.0):
        result = ZEROS[form](x, zero)

        signs = torch.signbit(harness.lane_of(result, (0, 0)))
        assert bool(signs.all() if str(zero) == "-0.0" else not signs.any()), zero


def test_calls_with_nan_find_the_plan_of_the_first(mesh: ttnn.MeshDevice) -> None:
    x = ones(mesh)
    ttnn.moreh_full_like(x, nan)
    ttnn.pad(x, [(0, 0), (0, 0), (0, 32), (0, 0)], nan)
    plans, programs = len(mesh.plans), mesh.num_program_cache_entries()

    for _ in range(5):
        ttnn.moreh_full_like(x, float("nan"))
        ttnn.pad(x, [(0, 0), (0, 0), (0, 32), (0, 0)], float("nan"))

    assert (len(mesh.plans), mesh.num_program_cache_entries()) == (plans, programs)


def test_specs_padded_with_nan_are_equal_and_with_negative_zero_are_not() -> None:
    specs = [ttnn.TensorSpec((32, 32), ttnn.float32, ttnn.TILE_LAYOUT, pad_value=v) for v in (nan, -nan, 0.0, -0.0)]

    assert specs[0] == ttnn.TensorSpec((32, 32), ttnn.float32, ttnn.TILE_LAYOUT, pad_value=float("nan"))
    assert specs[2] != specs[3]
    assert specs[2] == ttnn.TensorSpec((32, 32), ttnn.float32, ttnn.TILE_LAYOUT)


def test_a_convolution_takes_a_changed_configuration_as_another(mesh: ttnn.MeshDevice) -> None:
    values, weights = torch.randn(1, 1, 64, 16), torch.randn(16, 16, 3, 3)
    x = ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh)
    w = ttnn.from_torch(weights, dtype=ttnn.float32)
    config = ttnn.Conv2dConfig(weights_dtype=ttnn.bfloat16)

    def convolve() -> torch.Tensor:
        result = ttnn.conv2d(
            input_tensor=x, weight_tensor=w, device=mesh, in_channels=16, out_channels=16, batch_size=1,
            input_height=8, input_width=8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), conv_config=config,
        )  # fmt: skip
        return harness.lane_of(result, (0, 0)).float()

    plain = convolve()
    config.activation = ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)
    positive = convolve()
    config.activation = None
    again = convolve()

    assert plain.min() < 0
    assert torch.equal(positive, plain.relu())
    assert torch.equal(again, plain)


def test_a_collective_keeps_its_memory_configuration(mesh: ttnn.MeshDevice) -> None:
    cores = ttnn.CoreRangeSet({ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(0, 1))})

    def config(rows: int) -> MemoryConfig:
        shards = ttnn.ShardSpec(cores, [rows, 32], ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)

    x, given = ones(mesh), config(32)
    gather = lambda memory: ttnn.all_gather(x, dim=2, mode="host", memory_config=memory)  # noqa: E731
    first = gather(given).memory_config()
    given.shard_spec.shape = [64, 32]

    changed, again = gather(given).memory_config(), gather(config(32)).memory_config()

    assert (first.shard_spec.shape, changed.shard_spec.shape, again.shard_spec.shape) == ([32, 32], [64, 32], [32, 32])


CHANGES = {
    "a list": ([1, [2]], lambda v: v[1].append(3)),
    "a dict": ({"a": [1]}, lambda v: v["a"].append(2)),
    "a set": ({1, 2}, lambda v: v.add(3)),
    "an array": (np.zeros(100), lambda v: v.__setitem__(0, 1)),
    "a torch tensor": (torch.zeros(100), lambda v: v.__setitem__(0, 1)),
    "shards": (
        ttnn.create_sharded_memory_config((64, 64), ttnn.CoreGrid(y=2, x=1), ttnn.ShardStrategy.HEIGHT),
        lambda v: setattr(v.shard_spec, "shape", [64, 32]),
    ),
    "a configuration": (ttnn.Conv2dConfig(), lambda v: setattr(v, "act_block_h_override", 64)),
    "an activation": (ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU), lambda v: setattr(v, "params", (1.0,))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_arguments_count_by_value(name: str) -> None:
    value, change = copy.deepcopy(CHANGES[name])
    before = key_of(value)
    equal = key_of(copy.deepcopy(value))

    change(value)

    assert equal == before
    assert hash(equal) == hash(before)
    assert key_of(value) != before


@pytest.mark.parametrize("name", CHANGES)
def test_a_key_that_was_made_before_can_be_part_of_another(name: str) -> None:
    value = copy.deepcopy(CHANGES[name][0])

    key = key_of({"drop_memory": key_of(value)})

    assert key == key_of({"drop_memory": key_of(copy.deepcopy(value))})
    assert key != key_of({"drop_memory": None})


def test_numbers_of_other_types_are_other_arguments() -> None:
    keys = [key_of(value) for value in (1, 1.0, True, np.float32(1), np.int64(1), [1], (1,), 0.0, -0.0, 0, False, 1j)]

    assert len(set(keys)) == len(keys)
