"""The gradient of every operation of the catalogue is torch's, or the tape says that it has none."""

from __future__ import annotations

import random
import re

import pytest
from catalogue_gradients import REFUSAL, UNCOMPARED, WITHOUT_GRADIENT, Case, Cell, cells, compare
from harness import load_cases

CASES = load_cases()
SAMPLE = 110  # about 5 s
COMPARABLE = [case for case in CASES if cells(case)]
_random = random.Random(15)


def check(case: Case, cell: Cell) -> None:
    if case.operation not in WITHOUT_GRADIENT:
        compare(case, cell)
        return
    with pytest.raises(RuntimeError, match=REFUSAL):
        compare(case, cell)


@pytest.mark.parametrize(
    ("case", "cell"),
    [pytest.param(case, _random.choice(cells(case)), id=case.name) for case in _random.sample(COMPARABLE, SAMPLE)],
)
def test_a_gradient_is_torchs_somewhere(case: Case, cell: Cell) -> None:
    check(case, cell)


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_gradient_is_torchs_everywhere(case: Case) -> None:
    for cell in cells(case):
        try:
            check(case, cell)
        except Exception as problem:
            raise AssertionError(f"{cell}: {problem}") from problem


def test_what_is_not_compared_exists() -> None:
    assert {*UNCOMPARED} <= {case.name for case in CASES}
    assert {*WITHOUT_GRADIENT} <= {case.operation for case in CASES}
    assert re.compile(REFUSAL)
