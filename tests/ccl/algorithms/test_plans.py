"""Plans deliver what their collective promises, and send what their closed forms say."""

from __future__ import annotations

from collections import Counter

import pytest

from ttmesh.ccl.planning.algorithm_choice import AlgorithmError, algorithm, choose, make_plan, names
from ttmesh.ccl.planning.transfer_plan import ChipGroup, TransferPlan, chunk_bytes

LINES = [ChipGroup((1, n), (False, closes and n > 2)) for n in (2, 3, 4, 8) for closes in (False, True)]
GRIDS = [
    ChipGroup((2, 4)),
    ChipGroup((2, 4), (False, True)),
    ChipGroup((8, 4), (True, True)),
    ChipGroup((4, 8), (True, False)),
]
CASES = [
    pytest.param(name, group, id=f"{name}-{group.shape[0]}x{group.shape[1]}-{group.closes}")
    for name in names()
    for group in LINES + GRIDS
    if algorithm(name).unsupported_reason(group) is None and (group.is_line or not algorithm(name).LINE_ONLY)
]
D = 64 * 1024


def run_plan(plan: TransferPlan, start: list[dict[int, Counter[int]]]) -> list[dict[int, Counter[int]]]:
    """Which chips' terms every chip has in every chunk, after the plan."""
    state = [{chunk: Counter(terms) for chunk, terms in held.items()} for held in start]
    for round_ in plan.rounds:
        sent = [(t, Counter(state[t.source][t.chunk])) for t in round_]
        for transfer, terms in sent:
            if transfer.reduce:
                state[transfer.target][transfer.chunk] += terms
            else:
                state[transfer.target][transfer.chunk] = terms
    return state


def own_terms(plan: TransferPlan) -> list[dict[int, Counter[int]]]:
    return [{chunk: Counter([chip]) for chunk in range(plan.chunks)} for chip in range(plan.group_size)]


@pytest.mark.parametrize(("name", "group"), CASES)
def test_all_reduce_leaves_every_term_once_everywhere(name: str, group: ChipGroup) -> None:
    plan = make_plan(name, "all_reduce", group)

    state = run_plan(plan, own_terms(plan))

    every = Counter(range(group.size))
    assert all(terms == every for held in state for terms in held.values())


@pytest.mark.parametrize(("name", "group"), CASES)
def test_reduce_scatter_leaves_every_term_once_with_its_owner(name: str, group: ChipGroup) -> None:
    plan = make_plan(name, "reduce_scatter", group)

    state = run_plan(plan, own_terms(plan))

    for chip, held in enumerate(state):
        for chunk_index in range(plan.chunks_per_shard):
            assert held[chip * plan.chunks_per_shard + chunk_index] == Counter(range(group.size))


@pytest.mark.parametrize(("name", "group"), CASES)
def test_all_gather_brings_every_chunk_everywhere(name: str, group: ChipGroup) -> None:
    plan = make_plan(name, "all_gather", group)
    start = [
        {c: Counter([c]) for c in range(m * plan.chunks_per_shard, (m + 1) * plan.chunks_per_shard)}
        for m in range(group.size)
    ]

    state = run_plan(plan, start)

    assert all(held == {c: Counter([c]) for c in range(plan.chunks)} for held in state)


@pytest.mark.parametrize(("name", "group"), CASES)
def test_broadcast_reaches_everybody_from_every_root(name: str, group: ChipGroup) -> None:
    for root in range(group.size):
        plan = make_plan(name, "broadcast", group, root)
        start = [{0: Counter([root])} if m == root else {} for m in range(group.size)]

        state = run_plan(plan, start)

        assert all(held == {0: Counter([root])} for held in state)
        assert sum(1 for _ in plan.transfers()) == group.size - 1


@pytest.mark.parametrize(("name", "group"), CASES)
def test_all_to_all_brings_every_chunk_to_its_target(name: str, group: ChipGroup) -> None:
    plan, n = make_plan(name, "all_to_all", group), group.size
    start = [{m * n + j: Counter([m * n + j]) for j in range(n)} for m in range(n)]

    state = run_plan(plan, start)

    assert all(i * n + j in state[j] for i in range(n) for j in range(n))


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_ring_sends_two_n_minus_one_nths_one_way_and_nothing_back(n: int) -> None:
    sent = make_plan("ring", "all_reduce", ChipGroup((1, n), (False, True))).bytes_by_pair(D * n)

    assert sent == {(i, (i + 1) % n): 2 * (n - 1) * D for i in range(n)}


@pytest.mark.parametrize("n", [3, 4, 8])
def test_a_bidirectional_ring_sends_n_minus_one_nths_each_way(n: int) -> None:
    sent = make_plan("bidirectional_ring", "all_reduce", ChipGroup((1, n), (False, True))).bytes_by_pair(D * n)

    forward = {(i, (i + 1) % n): (n - 1) * D for i in range(n)}
    backward = {((i + 1) % n, i): (n - 1) * D for i in range(n)}
    assert sent == forward | backward


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_line_sends_the_whole_data_each_way_over_every_link(n: int) -> None:
    group = ChipGroup((1, n))

    assert make_plan("line", "all_reduce", group).bytes_by_pair(D * n) == {
        hop: D * n for i in range(n - 1) for hop in ((i, i + 1), (i + 1, i))
    }
    scatter, gather = (make_plan("line", c, group).bytes_by_pair(D * n) for c in ("reduce_scatter", "all_gather"))
    for i in range(n - 1):
        assert (scatter[i, i + 1], scatter[i + 1, i]) == ((n - 1 - i) * D, (i + 1) * D)
        assert (gather[i, i + 1], gather[i + 1, i]) == ((i + 1) * D, (n - 1 - i) * D)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_halving_and_direct_send_two_n_minus_one_nths_per_member(n: int) -> None:
    for name in ("recursive_halving", "direct"):
        sent = make_plan(name, "all_reduce", ChipGroup((1, n))).bytes_by_pair(D * n)
        for chip in range(n):
            assert sum(size for (source, _), size in sent.items() if source == chip) == 2 * (n - 1) * D


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_tree_sends_the_whole_data_up_and_down_every_edge(n: int) -> None:
    sent = make_plan("tree", "all_reduce", ChipGroup((1, n))).bytes_by_pair(D)

    assert sent == {hop: D for m in range(1, n) for hop in ((m, m & (m - 1)), (m & (m - 1), m))}


def test_a_torus_sends_less_per_link_than_two_rings_one_after_the_other() -> None:
    rows, cols = 8, 4
    group = ChipGroup((rows, cols), (True, True))
    total = D * rows * cols

    sent = make_plan("mesh2d", "all_reduce", group).bytes_by_pair(total)

    along = {size for (a, b), size in sent.items() if a // cols == b // cols}
    down = {size for (a, b), size in sent.items() if a % cols == b % cols}
    assert along == {total * (cols - 1) // cols}
    assert down == {total // cols * (rows - 1) // rows}


def test_chunks_add_up_to_the_whole() -> None:
    for size in (0, 1, 7, 1000, 1088):
        for chunks in (1, 2, 3, 7, 16):
            assert sum(chunk_bytes(size, chunks, c) for c in range(chunks)) == size


def test_the_choice_follows_form_and_size() -> None:
    ring = ChipGroup((1, 8), (False, True))

    assert choose(ring, 1 << 10, ring=True) == "direct"
    assert choose(ring, 1 << 20, ring=True) == "bidirectional_ring"
    assert choose(ring, 1 << 20, ring=False) == "line"
    assert choose(ChipGroup((1, 8)), 1 << 20, ring=True) == "line"
    assert choose(ChipGroup((2, 4)), 1 << 20, ring=True) == "mesh2d"


def test_an_algorithm_that_cannot_serve_says_why_and_names_those_that_can() -> None:
    with pytest.raises(AlgorithmError, match=r"by 'ring' is not possible: the chips do not form.*'line'"):
        make_plan("ring", "all_reduce", ChipGroup((1, 8)))
    with pytest.raises(AlgorithmError, match="3 chips are not a power of two"):
        make_plan("recursive_halving", "all_gather", ChipGroup((1, 3)))
    with pytest.raises(AlgorithmError, match="the chips form one line"):
        make_plan("mesh2d", "broadcast", ChipGroup((1, 8)))


def test_an_unknown_algorithm_lists_the_known() -> None:
    with pytest.raises(
        RuntimeError, match=r"no algorithm named 'rings'; expected one of \[.*'ring'.*Did you mean ring"
    ):
        make_plan("rings", "all_reduce", ChipGroup((1, 8)))
