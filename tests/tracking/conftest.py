"""Fixtures of the tracking and monitor tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tracked import Program, RunningServer

from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor


@pytest.fixture
def address(tmp_path: Path) -> Address:
    return Address(path=str(tmp_path / "s.sock"))


@pytest.fixture
def server(address: Address) -> Iterator[RunningServer]:
    running = RunningServer(address)
    yield running
    running.stop()


@pytest.fixture
def monitor(address: Address) -> Iterator[Monitor]:
    with Monitor(address, timeout_s=180) as asking:
        yield asking


@pytest.fixture
def start(address: Address) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(**extra: str) -> Program:
        programs.append(Program(address, **extra))
        return programs[-1]

    yield started
    for program in programs:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
            program.kill()
