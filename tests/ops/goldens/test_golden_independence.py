"""A golden that runs the operation's own code could not find its mistakes: it runs nothing of ttmesh but goldens."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import harness
import pytest
import torch

import ttmesh
from ttmesh.ops import goldens
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.coverage import list_uncompared_operations
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam, function_of
from ttmesh.ops.goldens.elementwise import activation_function

CASES = harness.load_cases()
SOURCE = str(Path(ttmesh.__file__).parent)
GOLDENS = str(Path(goldens.__file__).parent)
# Number formats are plain values; asking one for its name or its hash is no computation.
FORMATS = str(Path(SOURCE, "base", "dtypes.py"))


class Watch:
    """The code of ttmesh outside goldens that runs during a call."""

    def __init__(self) -> None:
        self.foreign: set[str] = set()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        gc.disable()  # it would run destructors of what earlier tests left
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            return function(*args, **options)
        finally:
            sys.setprofile(before)
            gc.enable()

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE) and not file.startswith((GOLDENS, FORMATS)):
            self.foreign.add(f"{file.removeprefix(SOURCE)}:{frame.f_code.co_name}")


@pytest.mark.parametrize("case", [case for case in CASES if case.golden is None], ids=lambda case: case.name)
def test_a_golden_runs_no_code_of_the_library(case: harness.Case) -> None:
    cell = harness.cells(case)[0]
    args, kwargs = harness._seen_by([case.make(torch.Generator().manual_seed(0))], 0, cell)
    kwargs = {name: value for name, value in kwargs.items() if name not in harness.WITHOUT_MEANING_IN_TORCH}
    golden, watch = families.load()[case.operation].golden, Watch()
    assert golden is not None, f"{case.operation} has no golden"

    watch.call(golden, *args, **kwargs)

    assert not watch.foreign


def _home(golden: Callable[..., Any]) -> str:
    plain = golden.func if isinstance(golden, functools.partial) else golden
    return getattr(plain, "__module__", None) or "torch"


def test_every_golden_lives_among_the_goldens() -> None:
    strangers = {
        name: _home(entry.golden)
        for name, entry in families.load().items()
        if entry.golden is not None and not _home(entry.golden).startswith(("ttmesh.ops.goldens.", "torch"))
    }

    assert not strangers


def test_every_golden_is_run_by_a_case_or_its_operation_is_compared_elsewhere() -> None:
    run = {case.operation for case in CASES if case.golden is None}
    idle = {name for name, entry in families.load().items() if entry.golden is not None and entry.same_as is None}

    assert idle - run - list_uncompared_operations() == set()


PARAMETERS = {
    "FILL": (3.0,), "HEAVISIDE": (0.5,), "LEAKY_RELU": (0.1,), "LOGIT": (0.1,), "POLYGAMMA": (2,), "POWER": (2.0,),
    "POWER_ITERATIVE": (2.0,), "RDIV": (2.0,), "RELU_MAX": (0.6,), "RELU_MIN": (0.4,), "RPOW": (2.0,), "SOFTCAP": (3.0,),
    "THRESHOLD": (0.5, 7.0), "WHERE_TSS": (1.0, 2.0), "MAC_TSS": (2.0, 3.0), "CLAMP_TSS": (0.3, 0.6), "TYPECAST": (0, 1),
    "SELU": (1.5, 1.1), "ELU": (0.7,),
}  # fmt: skip
OF_INTEGERS: dict[str, tuple[float, ...]] = {
    "BITWISE_AND": (3.0,), "BITWISE_OR": (3.0,), "BITWISE_XOR": (3.0,), "BITWISE_NOT": (), "LEFT_SHIFT": (3.0,),
    "RIGHT_SHIFT": (3.0,), "ABS_INT32": (),
}  # fmt: skip
OF_A_NUMBER = (
    "RSUB", "ADD_UNARY_SFPU", "SUB_UNARY_SFPU", "MUL_UNARY_SFPU", "DIV_UNARY_SFPU", "UNARY_NE", "UNARY_EQ", "UNARY_GT",
    "UNARY_LT", "UNARY_GE", "UNARY_LE", "REMAINDER", "FMOD", "MAXIMUM", "MINIMUM", "PRELU_SFPU",
)  # fmt: skip
NO_CHAIN = ("DROPOUT", "TILED_PROD", "BITCAST", "ZERO_POINT")


@pytest.mark.parametrize(
    "kind", [kind for kind in UnaryOpType if kind.name not in NO_CHAIN], ids=lambda kind: kind.name
)
def test_every_fused_activation_agrees_with_its_golden(kind: UnaryOpType) -> None:
    x = torch.linspace(0.05, 0.95, 64)
    parameters = PARAMETERS.get(kind.name, (0.5,) if kind.name in OF_A_NUMBER else ())
    if kind.name == "ACOSH":
        x = x + 1
    if kind.name in OF_INTEGERS:
        x, parameters = torch.arange(64, dtype=torch.int32), OF_INTEGERS[kind.name]
    activation = UnaryWithParam(kind, *parameters)

    golden = activation_function(activation)(x.clone())

    assert torch.allclose(function_of(activation)(x).float(), golden.float(), rtol=1e-4, atol=1e-5)
