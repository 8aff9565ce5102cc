"""A golden that runs the operation's own code could not find its mistakes: the two share nothing but small tools."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import harness
import pytest
from test_goldens import CASES

# Binding, checks and rules of the machinery, and the helpers that only arrange operands.
MACHINERY = (
    "entry.py",
    "specs.py",
    "checks.py",
    "lanes.py",
    "families.py",
    "routes.py",
    "conv_config.py",
    "attending.py",
)
ARRANGING = (
    "wide", "_values", "shares", "<listcomp>", "_factors", "_of_users", "differentiated",
    "_margins", "_dims", "_chosen", "as_unary", "string_to_unary_with_param", "__init__",  # they read arguments
)  # fmt: skip


class Calls:
    """The functions of ttmesh.ops that run while a call is watched."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.codes: set[CodeType] = set()

    def __call__(self, *args: Any) -> Any:
        sys.setprofile(self._note)
        try:
            return self.function(*args)
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/ttmesh/ops/" in frame.f_code.co_filename:
            self.codes.add(frame.f_code)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_goldens_share_no_code_with_their_operation(case: harness.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    golden, run = Calls(harness._golden), Calls(harness._run)
    monkeypatch.setattr(harness, "_golden", golden)
    monkeypatch.setattr(harness, "_run", run)

    harness.run(case, next(cell for cell in harness.cells(case) if cell.mesh == (1, 1)))

    shared = [
        f"{code.co_filename.rsplit('/', 1)[1]}:{code.co_name}"
        for code in golden.codes & run.codes
        if not code.co_filename.endswith(MACHINERY) and code.co_name not in ARRANGING
    ]
    assert not shared, shared
