"""What `make release` asks before it builds: one version everywhere, dated in the changelog, and entry points that exist."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path

import pytest

import ttmesh

ROOT = Path(__file__).parents[1]
RELEASE = runpy.run_path(str(ROOT / "tools" / "release.py"))


def test_the_version_is_dated_in_the_changelog() -> None:
    RELEASE["check_changelog"]()

    assert f'version = "{ttmesh.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_every_command_of_the_wheel_exists() -> None:
    scripts = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]")[2].partition("[")[0]
    found = re.findall(r'^([\w-]+) = "([\w.]+):(\w+)"', scripts, re.M)

    assert {"ttmesh", "tt-smi", "tt-run", "allocation_monitor_client"} <= {name for name, _, _ in found}
    for _, module, function in found:
        assert callable(getattr(importlib.import_module(module), function))


def test_a_python_that_is_not_installed_is_named() -> None:
    with pytest.raises(RELEASE["Failure"], match=r"no Python 2\.1 on this machine"):
        RELEASE["find_python"]("2.1")


def test_a_step_that_fails_shows_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(RELEASE["Failure"], match=r"ended with 3:\nhalf way"):
        RELEASE["call"]("bash", "-c", "echo half way; exit 3", cwd=tmp_path)
