"""Every system can be loaded by name, and its figures agree with the published facts."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from ttmesh.base.dtypes import Arch
from ttmesh.base.errors import SystemDescriptionError
from ttmesh.base.geometry import MeshShape
from ttmesh.chip.catalogue import chip_names, load_chip, load_system, system_names

FACTS = Path(__file__).parents[2].parent / "shared" / "facts"
# Ours: the same boards, cabled in rings, two side by side or four.
OWN = {"galaxy_torus_x", "galaxy_torus_y", "galaxy_torus_xy", "dual_galaxy", "dual_galaxy_torus_xy", "quad_galaxy"}


def test_t3000_is_the_box_that_was_seen() -> None:
    system = load_system("t3000")

    assert system.grid == ((4, 0, 3, 7), (5, 1, 2, 6))
    assert system.shape == MeshShape(2, 4)
    assert set(system.links.values()) == {2}
    assert len(system.links) == 10
    assert system.link_count(7, 3) == system.link_count(3, 7) == 2
    assert system.link_count(4, 7) == 0
    assert system.mmio == (0, 1, 2, 3)
    assert system.board_of(7) == (3, 7)
    assert system.find_position(6) == (1, 3)
    assert system.wrap_axes == ()


def test_wormhole_memory() -> None:
    chip = load_system("t3000").chip

    assert chip.arch is Arch.WORMHOLE_B0
    assert (chip.l1_banks, chip.l1_bank_bytes, chip.dram_banks, chip.dram_bank_bytes) == (64, 1393472, 12, 1070773184)
    assert chip.l1_total_bytes == 64 * 1393472
    assert chip.dram_total_bytes == 12 * 1070773184


@pytest.mark.parametrize("name", chip_names())
def test_banks_begin_where_the_reserved_part_ends(name: str) -> None:
    chip = load_chip(name)

    assert chip.l1_unreserved_base + chip.l1_bank_bytes == chip.l1_bytes
    assert chip.dram_unreserved_base + chip.dram_bank_bytes == chip.dram_view_bytes
    assert chip.l1_unreserved_base % chip.l1_alignment == 0
    assert chip.dram_unreserved_base % chip.dram_alignment == 0
    assert chip.mem_map_end + chip.max_worker_l1_bytes == chip.l1_bytes


@pytest.mark.parametrize("name", system_names())
def test_every_system_is_whole(name: str) -> None:
    system = load_system(name)

    on_boards = sorted(chip for board in system.boards for chip in board)
    assert list(system.ids) == on_boards == list(range(system.shape.mesh_size()))
    assert {chip for link in system.links for chip in link} <= set(system.ids)
    assert all(a < b for a, b in system.links)
    assert set(system.mmio).isdisjoint(system.remote)
    for row in system.grid:
        for a, b in pairwise(row):
            assert system.link_count(a, b) > 0


@pytest.mark.parametrize(
    ("alias", "name"),
    [("T3K", "t3000"), ("galaxy_wh_6u", "galaxy"), ("galaxy_bh", "bh_galaxy"), ("P150_x4", "p150x4"), ("TG", "galaxy")],
)
def test_aliases_mean_the_same_system(alias: str, name: str) -> None:
    assert load_system(alias) is load_system(name)


def test_galaxies_close_where_their_cables_do() -> None:
    assert load_system("galaxy").wrap_axes == ()
    assert load_system("galaxy_torus_x").wrap_axes == (1,)
    assert load_system("galaxy_torus_y").wrap_axes == (0,)
    assert load_system("galaxy_torus_xy").wrap_axes == load_system("bh_galaxy").wrap_axes == (0, 1)
    assert load_system("bh_galaxy").link_count(7, 31) == 4
    assert load_system("p150x8").wrap_axes == (1,)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 2), (3, 5), (8, 8), (8, 16), (1, 128)])
def test_generic_shapes_are_grids_of_wormholes(rows: int, cols: int) -> None:
    system = load_system(f"{rows}x{cols}")

    assert system.shape == MeshShape(rows, cols)
    assert [chip for row in system.grid for chip in row] == list(range(rows * cols))
    assert len(system.links) == rows * (cols - 1) + cols * (rows - 1)
    assert system.chip is load_system("t3000").chip


@pytest.mark.parametrize("name", ["0x4", "16x16"])
def test_generic_shapes_have_a_limit(name: str) -> None:
    with pytest.raises(SystemDescriptionError, match=r"chips cannot be made; expected 1 to 128 chips\."):
        load_system(name)


def test_wrong_name_lists_the_right_ones() -> None:
    with pytest.raises(
        SystemDescriptionError, match=r"no system named 't300'; expected one of \['n150', .*Did you mean t3000"
    ):
        load_system("t300")


@pytest.mark.skipif(not FACTS.exists(), reason="the fact files are not part of the repository")
def test_the_catalogue_agrees_with_the_facts() -> None:
    facts = json.loads((FACTS / "boards.json").read_text())
    seen = set()
    for name, board in facts["boards"].items():
        system, arch = load_system(name), facts["arch"][board["arch"]]
        chip = system.chip
        seen.add(system.name)
        assert list(system.shape) == board["system_mesh"]
        assert list(chip.compute_grid) == board["compute_grid_xy_default"]
        assert chip.l1_banks == board["l1_banks"]
        assert chip.dram_banks == board["dram_banks"]
        assert chip.dram_bank_bytes == board["dram_bytes_per_bank_allocatable"]
        assert chip.l1_bank_bytes == board["l1_bank_bytes"]
        assert min(system.links.values(), default=0) == board["eth_links_per_neighbour_pair"]
        assert chip.l1_unreserved_base == arch["l1_unreserved"]
        assert chip.dram_unreserved_base == arch["dram_unreserved_base_tracy_default"]
        assert (chip.l1_alignment, chip.dram_alignment) == (arch["l1_align"], arch["dram_align"])
        assert (chip.clock_mhz, chip.eth_ports) == (arch["clock_mhz"], arch["eth_ports"])
    assert seen == set(system_names()) - OWN


@pytest.mark.skipif(not FACTS.exists(), reason="the fact files are not part of the repository")
@pytest.mark.parametrize(
    ("name", "descriptor", "left_out"),
    [
        ("n300", "wormhole_N300", set()),
        ("n300_2x2", "2x2_n300_cluster_desc", set()),
        ("p150x4", "blackhole_4xP150", set()),
        ("p150x8", "blackhole_8xP150", set()),
        ("p300", "blackhole_P300_both_mmio", set()),
        ("bh_galaxy", "blackhole_galaxy", {"2-26", "6-30", "10-18", "14-22"}),
    ],
)
def test_links_are_those_of_the_descriptor(name: str, descriptor: str, left_out: set[str]) -> None:
    facts = json.loads((FACTS / "cluster_descriptors.json").read_text())[descriptor]
    wired = {key: len(ports) for key, ports in facts["links"].items() if key not in left_out}

    assert {f"{a}-{b}": n for (a, b), n in load_system(name).links.items()} == wired
    assert list(load_system(name).mmio) == facts["mmio_chips"]
