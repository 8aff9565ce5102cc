"""Says at the end of a run whether the tests with two hosts ran, because a machine may not permit them."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = {
        outcome: sum("test_hosts.py" in report.nodeid for report in terminalreporter.stats.get(outcome, []))
        for outcome in ("passed", "failed", "skipped")
    }
    if any(counts.values()):
        said = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
        terminalreporter.write_line(f"two hosts as network namespaces: {said}")
