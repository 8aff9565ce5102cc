"""The allocator against a naive model, alone and shared by submeshes."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.chip.catalogue import load_system
from ttmesh.chip.free_list import BlockSteps, FreeList
from ttmesh.chip.memory import Allocator, MemoryMap, Space

DRAM, L1, L1_SMALL, TRACE = BufferType.DRAM, BufferType.L1, BufferType.L1_SMALL, BufferType.TRACE


class NaiveChip:
    """Every unit of a small memory as a bool."""

    def __init__(self, start: int, units: int, unit: int) -> None:
        self.start, self.unit, self.taken = start, unit, [False] * units

    def fits(self, at: int, count: int) -> bool:
        return at + count <= len(self.taken) and not any(self.taken[at : at + count])

    def set(self, at: int, count: int, value: bool) -> None:
        self.taken[at : at + count] = [value] * count


def first_fit(chips: list[NaiveChip], count: int, *, bottom_up: bool) -> int | None:
    places = range(len(chips[0].taken))
    return next((p for p in (places if bottom_up else reversed(places)) if all(c.fits(p, count) for c in chips)), None)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.integers(0, 2**32), st.booleans())
def test_free_list_agrees_with_a_naive_model(seed: int, bottom_up: bool) -> None:
    rng = random.Random(seed)
    spans, naive = FreeList(64, 64 * 32, 32), NaiveChip(64, 64, 32)
    live: dict[int, int] = {}

    for _ in range(200):
        if live and rng.random() < 0.45:
            address = rng.choice(sorted(live))
            spans.free(address)
            naive.set((address - 64) // 32, live.pop(address), False)
        else:
            size = rng.randint(1, 300)
            count = -(-size // 32)
            expected = first_fit([naive], count, bottom_up=bottom_up)
            got = spans.allocate(size, bottom_up=bottom_up)
            assert got == (None if expected is None else 64 + expected * 32)
            if expected is not None:
                naive.set(expected, count, True)
                live[64 + expected * 32] = count

        starts_and_ends = spans.spans()
        assert all(a[1] < b[0] for a, b in itertools.pairwise(starts_and_ends)), "not coalesced"
        assert spans.used == sum(naive.taken) * 32
    for address in list(live):
        spans.free(address)
    assert spans.spans() == [(64, 64 + 64 * 32)]


def test_ten_thousand_operations_with_submeshes_agree_with_a_naive_model() -> None:
    rng = random.Random(7)
    chips = tuple(range(8))
    memory_map = MemoryMap.of(load_system("t3000").chip)
    banks = memory_map.banks[L1]
    unit, units = 4096, banks.size // 4096
    space = Space(chips, memory_map)
    meshes = [chips, (0, 1, 2, 3), (4, 5, 6, 7), (0, 1), (5, 6), (2,)]
    allocators = [Allocator(space, chips)]
    for part in meshes[1:]:
        space.split(part)
        allocators.append(Allocator(space, part))
    # Align the naive model's units with the top of the bank, where L1 grows from.
    naive = {chip: NaiveChip(banks.start + banks.size % unit, units, unit) for chip in chips}
    live: list[tuple[int, int, int]] = []

    for _ in range(10_000):
        if live and rng.random() < 0.5:
            mesh, place, count = live.pop(rng.randrange(len(live)))
            allocators[mesh].free(L1, naive[0].start + place * unit)
            for chip in meshes[mesh]:
                naive[chip].set(place, count, False)
        else:
            mesh, count = rng.randrange(len(meshes)), rng.randint(1, 12)
            expected = first_fit([naive[chip] for chip in meshes[mesh]], count, bottom_up=False)
            got = allocators[mesh].allocate(L1, count * unit)
            assert got == (None if expected is None else naive[0].start + expected * unit)
            if expected is not None:
                for chip in meshes[mesh]:
                    naive[chip].set(expected, count, True)
                live.append((mesh, expected, count))

    for mesh, place, _ in live:
        allocators[mesh].free(L1, naive[0].start + place * unit)
    for allocator in allocators:
        view = allocator.view(L1)
        assert view.total_bytes_free_per_bank == view.largest_contiguous_bytes_free_per_bank == banks.size


def test_dram_grows_up_and_l1_grows_down_from_the_chips_own_addresses() -> None:
    allocator = Allocator(Space((0,), MemoryMap.of(load_system("n150").chip)), (0,))

    assert allocator.allocate(DRAM, 2048) == 2968640
    assert allocator.allocate(DRAM, 2048) == 2968640 + 2048
    assert allocator.allocate(L1, 2048) == 1499136 - 2048


def test_regions_are_cut_off_where_tt_metal_cuts_them() -> None:
    chip = load_system("t3000").chip

    banks = MemoryMap.of(chip, l1_small_size=24576, trace_region_size=60000).banks

    assert banks[L1_SMALL].start == 1499136 - 24576
    assert banks[L1].size == 1393472 - 24576
    assert banks[TRACE].size == 8192  # ceil(60000 / 12 banks), rounded up to a trace page
    assert banks[TRACE].start == banks[DRAM].start + banks[DRAM].size


def test_a_mesh_sees_only_what_all_of_its_chips_have_free() -> None:
    space = Space(range(4), MemoryMap.of(load_system("t3000").chip))
    whole = Allocator(space, range(4))
    space.split((0, 1))
    part = Allocator(space, (0, 1))
    size = whole.view(DRAM).total_bytes_per_bank

    part.allocate(DRAM, 1024)

    assert whole.view(DRAM).total_bytes_free_per_bank == size - 1024
    assert whole.allocate(DRAM, 32) == whole.map.banks[DRAM].start + 1024


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"worker_l1_size": 1464160}, "Worker L1 size 1464160 is larger than max size 1464128"),
        ({"l1_small_size": 1393472}, "Reserved size must be less than bank size"),
        ({"trace_region_size": 10**12}, "does not fit into DRAM"),
        ({"l1_small_size": -1}, "l1_small_size=-1 is negative"),
    ],
)
def test_regions_that_do_not_fit_are_refused(options: dict[str, int], text: str) -> None:
    with pytest.raises(MeshError, match=text):
        MemoryMap.of(load_system("t3000").chip, **options)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    blocks=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    holes=st.sets(st.integers(0, 11)),
    temporary=st.integers(1, 12),
    size=st.integers(1, 12),
    end=st.integers(0, 24),
    outlives=st.booleans(),
)
def test_a_block_after_a_temporary_lies_where_allocating_and_freeing_it_would_put_it(
    blocks: list[int], holes: set[int], temporary: int, size: int, end: int, outlives: bool
) -> None:
    spans = FreeList(64, (sum(blocks) + end) * 32, 32)
    addresses = [spans.allocate(block * 32, bottom_up=True) for block in blocks]
    for hole in holes:
        if hole < len(addresses):
            spans.free(addresses[hole])
    step_by_step, was = spans.copy(), spans.copy()
    held = step_by_step.allocate(temporary * 32, bottom_up=True)
    if held is not None and not outlives:
        step_by_step.free(held)
    address = None if held is None else step_by_step.allocate(size * 32, bottom_up=True)

    steps = (0, 1, ~0) if outlives else (0, ~0, 1)
    found = spans.run_steps(BlockSteps(steps, (temporary * 32, size * 32), 1))

    if held is None or address is None:
        assert found is None
        assert (spans.blocks(), spans.used, spans.peak) == (was.blocks(), was.used, was.peak)
    else:
        if outlives:
            step_by_step.free(held)
        assert found == (address, held + temporary * 32)
        assert (spans.blocks(), spans.used, spans.peak) == (step_by_step.blocks(), step_by_step.used, step_by_step.peak)
