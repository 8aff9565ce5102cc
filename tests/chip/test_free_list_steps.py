"""A call's blocks taken in one step lie where single allocations and frees would put them."""

from __future__ import annotations

import random

import pytest

from ttmesh.chip.free_list import BlockSteps, FreeList


def _fragment(rng: random.Random) -> FreeList:
    spans = FreeList(1024, 64 * 400, 32)
    taken = [spans.allocate(rng.randrange(1, 900), True) for _ in range(25)]
    for address in rng.sample([address for address in taken if address is not None], 12):
        spans.free(address)
    return spans


def _steps(rng: random.Random) -> tuple[list[int], list[int], int]:
    sizes = [rng.randrange(1, 3000) for _ in range(rng.randrange(2, 8))]
    result = rng.randrange(len(sizes))
    steps: list[int] = []
    for n in range(len(sizes)):
        steps.append(n)
        held = [m for m in range(n + 1) if m != result and ~m not in steps]
        steps += [~m for m in held if rng.random() < 0.4]
    return [*steps, *(~m for m in range(len(sizes)) if m != result and ~m not in steps)], sizes, result


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("again", [False, True])
def test_steps_in_one_function_are_allocations_and_frees(seed: int, again: bool) -> None:
    rng = random.Random(seed)
    together = _fragment(rng)
    one_by_one, before = together.copy(), together.spans()
    steps, sizes, result = _steps(rng)

    places: dict[int, int | None] = {}
    for step in steps:
        if step < 0:
            address = places[~step]
            if address is not None:
                one_by_one.free(address)
        else:
            places[step] = one_by_one.allocate(sizes[step], True)
    blocks = BlockSteps(tuple(steps), tuple(sizes), result)
    if again:  # what the same steps did to the same spans is remembered
        together.copy().run_steps(blocks)
    found = together.run_steps(blocks)

    if None in places.values():
        assert found is None
        assert together.spans() == before
        return
    assert found is not None
    assert found[0] == places[result]
    ends = [address + sizes[n] for n, address in places.items() if n != result and address is not None]
    assert found[1] == max(ends)
    assert together.spans() == one_by_one.spans()
    assert (together.used, together.peak, together.live) == (one_by_one.used, one_by_one.peak, one_by_one.live)


def test_remembered_steps_stay_few() -> None:
    spans = FreeList(0, 1 << 20, 32)
    blocks = BlockSteps((0, 1, ~0), (64, 32), 1)
    held = [spans.run_steps(blocks) for _ in range(100)]
    assert len(set(held)) == 100
    assert len(blocks.outcomes) <= 32
