"""Routes are shortest, linked, and always the same; counters count what crossed."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.errors import MeshError
from ttmesh.base.link_notation import Links, pair
from ttmesh.base.records import LinkTransfer, Record
from ttmesh.base.signals import signals
from ttmesh.chip.catalogue import load_system, system_names
from ttmesh.fabric.link_counters import LinkCounters
from ttmesh.fabric.routes import Routes


def _distances(chips: list[int], links: Links) -> dict[tuple[int, int], float]:
    """Every distance at once (Floyd and Warshall), sharing nothing with the code under test."""
    far = float("inf")
    length = {(a, b): 0 if a == b else 1 if pair(a, b) in links else far for a in chips for b in chips}
    for via in chips:
        for a in chips:
            for b in chips:
                length[a, b] = min(length[a, b], length[a, via] + length[via, b])
    return length


@st.composite
def _grids(draw: st.DrawFn) -> tuple[list[list[int]], dict[tuple[int, int], int]]:
    rows, cols = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    order = draw(st.permutations(range(rows * cols)))
    grid = [order[r * cols : (r + 1) * cols] for r in range(rows)]
    hops = [hop for line in [*grid, *map(list, zip(*grid, strict=True))] for hop in pairwise(line)]
    if draw(st.booleans()):
        hops += [(line[-1], line[0]) for line in grid if cols > 2]
    if draw(st.booleans()):
        hops += [(line[-1], line[0]) for line in map(list, zip(*grid, strict=True)) if rows > 2]
    broken = draw(st.sets(st.sampled_from(hops), max_size=3)) if hops else set()
    return grid, {pair(a, b): 1 for a, b in hops if (a, b) not in broken}


@settings(deadline=None, max_examples=40, derandomize=True)
@given(_grids())
def test_routes_agree_with_brute_force(described: tuple[list[list[int]], dict[tuple[int, int], int]]) -> None:
    grid, links = described
    chips = [chip for row in grid for chip in row]
    routes, best = Routes(grid, links), _distances(chips, links)

    for a in chips:
        for b in chips:
            if best[a, b] == float("inf"):
                with pytest.raises(MeshError, match=f"no route from chip {a} to chip {b}"):
                    routes.route(a, b)
                continue
            route = routes.route(a, b)
            assert (route[0], route[-1]) == (a, b)
            assert all(pair(x, y) in links for x, y in pairwise(route))
            assert routes.hops(a, b) == best[a, b]


def test_routes_go_along_the_column_first() -> None:
    box = load_system("t3000")

    assert Routes(box.grid, box.links).route(4, 6) == (4, 5, 1, 2, 6)
    assert Routes(box.grid, box.links).route(6, 4) == (6, 7, 3, 0, 4)


def test_ties_on_a_ring_go_north_and_east() -> None:
    box = load_system("galaxy_torus_xy")
    routes = Routes(box.grid, box.links)

    assert routes.route(box.grid[0][0], box.grid[4][0])[1] == box.grid[7][0]
    assert routes.route(box.grid[0][0], box.grid[0][2])[1] == box.grid[0][1]


@pytest.mark.parametrize("name", system_names())
def test_every_chip_reaches_every_other(name: str) -> None:
    box = load_system(name)
    if not box.links:
        return
    routes = Routes(box.grid, box.links)

    assert all(routes.route(a, b)[-1] == b for a in box.ids for b in box.ids)


def test_a_chip_from_elsewhere_is_refused() -> None:
    box = load_system("n300")

    with pytest.raises(MeshError, match=r"chip 7 is not in the fabric; expected one of \[0, 1\]"):
        Routes(box.grid, box.links).route(0, 7)


def test_counters_count_each_direction() -> None:
    box = load_system("t3000")
    routes = Routes(box.grid, box.links)
    counters = LinkCounters(routes.fabric)

    counters.send(routes.route(4, 3), 100)
    counters.send((3, 0), 7)
    counters.from_host([0, 1], 50)
    counters.to_host([1], 20)

    assert counters.loads() == {(4, 0): 100, (0, 3): 100, (3, 0): 7, (-1, 0): 50, (-1, 1): 50, (1, -1): 20}
    assert counters.get_bytes(3, 0) == 7
    assert counters.get_bytes(7, 3) == 0
    assert counters.fabric_bytes() == 207
    assert counters.host_bytes() == 120
    counters.reset()
    assert counters.loads() == {}


def test_nothing_crosses_where_there_is_no_link() -> None:
    counters = LinkCounters(Routes(load_system("t3000").grid, load_system("t3000").links).fabric)

    with pytest.raises(MeshError, match=r"no link from chip 4 to chip 7; expected one of \[0, 5\]"):
        counters.send((0, 4, 7), 1)
    assert counters.loads() == {}


def test_listeners_hear_what_crossed() -> None:
    counters = LinkCounters(Routes(load_system("t3000").grid, load_system("t3000").links).fabric)
    heard: list[Record] = []
    stop = signals.listen(heard.append)
    try:
        counters.send((4, 0, 3), 9)
        counters.to_host([3], 9)
    finally:
        stop()
    counters.send((4, 0), 1)

    assert heard == [LinkTransfer(4, 0, 9), LinkTransfer(0, 3, 9), LinkTransfer(3, -1, 9)]


def test_threads_lose_no_bytes() -> None:
    counters = LinkCounters(Routes(load_system("n300").grid, load_system("n300").links).fabric)

    def work() -> None:
        for _ in range(2000):
            counters.send((0, 1), 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert counters.get_bytes(0, 1) == 8000
