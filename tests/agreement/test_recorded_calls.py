"""ttmesh does with recorded calls what TT-NN did: refusals and their words, specs, addresses, device programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from recorded_calls import Session, agrees, opened, read

import ttmesh.ttnn as ttnn

CHIP = (
    "one_chip.jsonl",
    "one_chip_compositions.jsonl",
    "one_chip_pools_and_gradients.jsonl",
    "one_chip_refusals.jsonl",
    "one_chip_mixed_operands.jsonl",
    "one_chip_drawn.jsonl",
    "one_chip_matmul_and_operands.jsonl",
    "one_chip_shards_and_rows.jsonl",
    "one_chip_changed.jsonl",
)
MESH = (
    "mesh_2x4.jsonl",
    "mesh_2x4_compositions.jsonl",
    "mesh_2x4_collectives.jsonl",
    "mesh_2x4_fused.jsonl",
    "mesh_2x4_free.jsonl",
)


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


def test_operations_that_only_the_wheel_has_agree_without_addresses(chip: Session) -> None:
    """Fourier transforms keep tables on the device for the life of the process, which moves TT-NN's addresses."""
    found = []
    for recorded in read("one_chip_wheel_only.jsonl"):
        chip.mesh.clear_program_cache()
        outcome = chip.run(recorded["call"])
        if "result" in outcome:
            outcome["result"] = _drop_addresses(outcome["result"])
        if not agrees(recorded, outcome):
            found.append(f"{recorded} here {outcome}")

    assert found == []


def test_a_refused_call_keeps_no_memory(chip: Session) -> None:
    free = ttnn.get_memory_view(chip.mesh, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank

    for call in ("ttnn.mac(x, x, 'y')", "ttnn.lerp(x, x, y)", "ttnn.addcmul(x, y, x)", "ttnn.where(y, x, x)"):
        outcome = chip.run(f"x=mk((2, 96, 64), 'bf16'); y=mk((7, 3, 50), 'u32') => {call}")
        assert "error" in outcome, outcome

    assert ttnn.get_memory_view(chip.mesh, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank == free


def _drop_addresses(result: Any) -> Any:
    if not isinstance(result, list):
        return result
    is_tensor = len(result) == 2 and isinstance(result[0], str) and isinstance(result[1], int | None)
    return result[0] if is_tensor else [_drop_addresses(one) for one in result]


def _differences(session: Session, name: str) -> list[str]:
    """The calls run in the recorded order: programs and the memory that they keep are shared."""
    found = [(call, session.run(call["call"])) for call in read(name)]
    return [f"{call['call']}: {call} here {outcome}" for call, outcome in found if not agrees(call, outcome)]
