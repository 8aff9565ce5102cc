"""The monitor tests use the tracking tests' server and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tracked import Program

from ttmesh.tracking.address import Address


@pytest.fixture
def address(tmp_path: Path) -> Address:
    return Address(path=str(tmp_path / "s.sock"))


@pytest.fixture
def start(address: Address) -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def started(**extra: str) -> Program:
        programs.append(Program(address, **extra))
        return programs[-1]

    yield started
    for program in programs:
        if program.process.poll() is None:
            program.kill()
