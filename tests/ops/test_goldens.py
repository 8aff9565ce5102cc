"""Every operation agrees with its golden: a seeded sample here, the full matrix by `make test-ops`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import harness
import pytest
import torch

from ttmesh.ops.catalogue import coverage
from ttmesh.ops.catalogue.signatures import registered_names
from ttmesh.tensor.calls import lane_calls, make_plan
from ttmesh.tensor.spec.tensor_spec import TensorSpec

CASES = harness.load_cases()


@pytest.fixture(autouse=True)
def compare_inference_with_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes and dtypes inferred without elements are those of a run on meta."""

    def infer(lane: Callable[..., Any], positions: Any, static: Any, specs: Sequence[TensorSpec], axes: int) -> Any:
        inferred, wrap = lane_calls.infer(lane, positions, static, specs, axes)
        on_meta = lane_calls.make_lanes(specs, (1,) * axes, "meta")
        result = lane(**lane_calls.fill_arguments(positions, static, on_meta))
        assert inferred == lane_calls.describe_results(result, axes)
        return inferred, wrap

    monkeypatch.setattr(make_plan, "infer", infer)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_its_golden_somewhere(case: harness.Case) -> None:
    cells = harness.cells(case)

    harness.run(case, random.Random(case.name).choice(cells))


@pytest.mark.parametrize("system", sorted({case.system for case in CASES}))
def test_the_formats_and_layouts_of_every_case_are_taken(system: str) -> None:
    """Without values: `make test-ops` compares all of them with goldens."""
    refused: list[str] = []
    with harness.mesh_of((1, 1), "meta", system) as mesh:
        for case in (case for case in CASES if case.system == system):
            arguments = [case.make(torch.Generator().manual_seed(0))]
            for cell in (cell for cell in harness.cells(case) if cell.mesh == (1, 1)):
                try:
                    harness._run(case, cell, mesh, arguments)
                except RuntimeError as error:
                    refused.append(f"{case.name}, {cell.dtype.name}, {cell.layout.name}: {str(error)[:120]}")
    assert not refused, "\n".join(refused)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_its_golden_everywhere(case: harness.Case) -> None:
    for cell in harness.cells(case):
        try:
            harness.run(case, cell)
        except Exception as problem:
            raise AssertionError(f"{cell}: {problem}") from problem


# A sixth of the cases by their names' hashes, each in one format on one mesh.
SAMPLE = sorted(CASES, key=lambda case: random.Random(case.name).random())[::6]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_agrees_with_its_golden_by_about_the_chip_s_arithmetic(case: harness.Case) -> None:
    cells = harness.cells(case)

    harness.run(case, random.Random(case.name).choice(cells), "realistic")


DEFAULTS = [case for case in CASES if case in SAMPLE[::5] or case.name == "ttnn.div/integers"]


@pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: case.name)
def test_torch_s_default_dtype_and_device_change_nothing(case: harness.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    run = harness._run

    def run_with_other_defaults(*args: Any) -> Any:
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                return run(*args)
        finally:
            torch.set_default_dtype(torch.float32)

    monkeypatch.setattr(harness, "_run", run_with_other_defaults)

    harness.run(case, random.Random(case.name).choice(harness.cells(case)))


@pytest.mark.full
@pytest.mark.parametrize("mode", ["realistic", "exact"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_its_golden_by_the_chip_s_arithmetic_on_one_chip(case: harness.Case, mode: str) -> None:
    for cell in harness.cells(case):
        if cell.mesh == (1, 1):
            harness.run(case, cell, mode)


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]

    assert len(names) == len(set(names)), sorted(name for name in set(names) if names.count(name) > 1)


def test_every_operation_is_compared_or_its_reason_is_told() -> None:
    compared = {case.name.partition("/")[0] for case in CASES}
    explained = {*coverage.list_uncompared_operations(), *coverage.REASONS}

    assert set(registered_names()) - compared - explained == set()
    assert explained & compared == set()
    assert len(set(registered_names()) & compared) >= 420
