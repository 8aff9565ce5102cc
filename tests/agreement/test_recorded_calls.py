"""ttmesh does with recorded calls what TT-NN did: refusals and their words, specs, addresses, device programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded_calls import Session, agrees, opened, read

CHIP = (
    "one_chip.jsonl",
    "one_chip_compositions.jsonl",
    "one_chip_pools_and_gradients.jsonl",
    "one_chip_refusals.jsonl",
    "one_chip_mixed_operands.jsonl",
)
MESH = ("mesh_2x4.jsonl", "mesh_2x4_compositions.jsonl", "mesh_2x4_collectives.jsonl")


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    yield from opened((1, 1))


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3000")
    yield from opened((2, 4))


@pytest.mark.parametrize("name", CHIP)
def test_calls_on_one_chip_agree_with_ttnn(chip: Session, name: str) -> None:
    assert _differences(chip, name) == []


@pytest.mark.parametrize("name", MESH)
def test_calls_on_a_mesh_agree_with_ttnn(mesh: Session, name: str) -> None:
    assert _differences(mesh, name) == []


def _differences(session: Session, name: str) -> list[str]:
    """The calls run in the recorded order: programs and the memory that they keep are shared."""
    found = [(call, session.run(call["call"])) for call in read(name)]
    return [f"{call['call']}: {call} here {outcome}" for call, outcome in found if not agrees(call, outcome)]
