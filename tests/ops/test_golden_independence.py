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
from test_goldens import CASES

import ttmesh
from ttmesh.ops import goldens
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.coverage import uncompared

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

    assert idle - run - uncompared() == set()
