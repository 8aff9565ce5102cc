"""What every test can rely on: the same random numbers each time, no deadlines; and whether two hosts were there."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from ttmesh.base import numerics_mode
from ttmesh.base import settings as process_settings

# On a busy machine drawing an example may take a second: that says nothing about the code.
settings.register_profile("ttmesh", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ttmesh")

# A shell that starts this in the background has it ignore SIGINT; tests of Ctrl-C need Python's own handler.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What real tt-metal programs on this machine report is not what the tests look at.
_SHARED = tempfile.mkdtemp(prefix="ttmesh-tests-")
os.environ["TTMESH_SHARED_MEMORY"] = _SHARED
atexit.register(shutil.rmtree, _SHARED, ignore_errors=True)


# Tests that start many processes: begun first, so that no worker is left alone with one of their files at the end.
FIRST = ("ranks", "examples", "test_seed_commands.py", "launch", "fabric", "nn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files by how long they take; within a file nothing moves."""
    here = Path(__file__).parent

    def rank(item: pytest.Item) -> int:
        name = item.path.relative_to(here).parts[0]
        return FIRST.index(name) if name in FIRST else len(FIRST)

    items.sort(key=rank)


# Tests compare tightly with torch, so they compute ideally. What users run as it is printed, they run as users do.
AS_USERS_DO = (
    "tests/examples/test_text_demo.py",
    "tests/examples/test_training_examples.py",
    "tests/cli/",
    "tests/programs/test_distributed_examples.py",
    "tests/test_seed",
    "tests/test_smoke.py",
    "_page.py",
    "test_seed_",
)


def _choose_numerics(path: str) -> None:
    if any(part in path for part in AS_USERS_DO):
        os.environ.pop(numerics_mode.VARIABLE, None)
    else:
        os.environ[numerics_mode.VARIABLE] = numerics_mode.IDEAL
    numerics_mode.choose(None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test draws the same numbers and prints as wide after others as alone; before fixtures, which draw too."""
    for name in (
        "COLUMNS",
        "LINES",
        "FORCE_COLOR",
        "TTY_COMPATIBLE",
    ):  # an earlier test or the caller set them
        os.environ.pop(name, None)
    _choose_numerics(item.nodeid)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Two hosts need permissions that a machine may not give."""
    counts = {
        outcome: sum("test_hosts.py" in report.nodeid for report in terminalreporter.stats.get(outcome, []))
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        terminalreporter.write_line(f"two hosts as network namespaces: {said}")


@pytest.fixture
def without_hugging_face() -> Iterator[None]:
    """No module of Hugging Face is imported, and what the test imports under these names is forgotten after it."""

    def forget() -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.partition(".")[0] in ("transformers", "huggingface_hub")]
        return {name: sys.modules.pop(name) for name in names}

    held = forget()
    yield
    forget()
    sys.modules.update(held)


@pytest.fixture(scope="module", autouse=True)
def settings_end_with_their_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test file sets for the process it takes back: the next file would run on another system."""
    before = dict(process_settings._overrides)
    yield
    assert process_settings._overrides == before, (
        f"{request.path.name} leaves settings behind: {process_settings._overrides}"
    )
