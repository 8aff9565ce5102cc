"""docs/scaling.md holds what benchmarks/scaling.py computes, and the arithmetic has the properties it claims."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def scaling() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scaling", ROOT / "benchmarks" / "scaling.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scaling"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_prints(scaling: ModuleType) -> None:
    assert scaling.report() in (ROOT / "docs" / "scaling.md").read_text()


def test_a_ring_sends_at_most_twice_the_data_and_waits_for_every_step(scaling: ModuleType) -> None:
    assert scaling.ring_s(1e9, 2, 1.0, 0.0) == pytest.approx(1.0)
    assert scaling.ring_s(1e9, 1000, 1.0, 0.0) == pytest.approx(2.0, rel=2e-3)
    assert scaling.ring_s(0.0, 5, 1.0, 3.0) == pytest.approx(24e-6)


def test_more_hosts_break_gloos_open_files_first_among_what_grows(scaling: ModuleType) -> None:
    at = {h: scaling.limits(scaling.Model(), replace(scaling.Machine(), hosts=h)) for h in (128, 256)}
    broken = {h: {limit.name for limit in found if limit.room < 1} for h, found in at.items()}

    assert broken[256] - broken[128] == {"open files per rank with gloo"}
