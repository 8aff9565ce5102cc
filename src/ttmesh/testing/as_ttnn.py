"""pytest -p ttmesh.testing.as_ttnn: a test suite written for TT-NN runs on ttmesh, conftest.py and all.

With `--dry-run` it runs on chips without values, and a report of memory and traffic follows the summary.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ttmesh import dropin, shim
from ttmesh.testing import stand_ins
from ttmesh.testing.short_tracebacks import shorten

dropin.install(force=True)
stand_ins.install()
# The same for Python processes that tests start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [shim.__path__[0], os.environ.get("PYTHONPATH")]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--dry-run`, and what values that do not exist are in it."""
    group = parser.getgroup("ttmesh")
    group.addoption(
        "--dry-run", action="store_true", help="chips and large host tensors without values; a report follows"
    )
    group.addoption("--dry-run-assume", type=float, metavar="NUMBER", help="what a value that does not exist is")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[Any]:
    """All tests, dry if asked for."""
    if not session.config.getoption("--dry-run"):
        return (yield)
    from ttmesh.dryrun.dry_context import dry_run

    os.environ["TTMESH_BACKEND"] = "meta"
    with dry_run(assume=session.config.getoption("--dry-run-assume")) as run:
        result = yield
    session.config.stash[REPORT] = run.report
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    """Errors end at the line of the test suite that met them."""
    if call.excinfo is not None:
        shorten(call.excinfo)
    return (yield)


REPORT = pytest.StashKey[Any]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The report."""
    report = config.stash.get(REPORT, None)
    if report is None:
        return
    from ttmesh.dryrun.report_text import draw_text
    from ttmesh.monitor.tables import printer

    terminalreporter.section("dry run")
    console = printer()
    with console.capture() as text:
        console.print(draw_text(report))
    terminalreporter.write(text.get())
