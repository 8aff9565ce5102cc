"""TT_VISIBLE_DEVICES: boards come whole, chips are renumbered, links between those left remain."""

from __future__ import annotations

import pytest

from ttmesh.base.errors import SystemDescriptionError
from ttmesh.chip.catalogue import load_system, system_names
from ttmesh.chip.visible import restrict_to_visible


@pytest.mark.parametrize("name", system_names())
def test_everything_visible_is_the_system(name: str) -> None:
    system = load_system(name)

    assert restrict_to_visible(system, [str(i) for i in system.ids]) == system


def test_one_device_of_a_t3000_is_its_board() -> None:
    part = restrict_to_visible(load_system("t3000"), ["1"])

    assert part.grid == ((1, 0),)  # the remote chip stands left of its board's PCIe chip, as on the whole box
    assert part.links == {(0, 1): 2}
    assert (part.mmio, part.remote, part.boards) == ((0,), {1}, ((0, 1),))


def test_two_boards_side_by_side_are_a_square() -> None:
    part = restrict_to_visible(load_system("t3000"), ["0", "1"])

    assert part.grid == ((2, 0), (3, 1))
    assert part.links == {(0, 2): 2, (1, 3): 2, (0, 1): 2, (2, 3): 2}
    assert part.mmio == (0, 1)


def test_a_row_stays_a_row() -> None:
    part = restrict_to_visible(load_system("t3000"), [0, 3])

    assert part.grid == ((2, 0, 1, 3),)


def test_chips_that_fill_no_rectangle_form_a_row() -> None:
    part = restrict_to_visible(load_system("t3000"), [0, 2])

    assert part.grid == ((2, 0, 1, 3),)
    assert part.links == {(0, 2): 2, (1, 3): 2}


@pytest.mark.parametrize(("system", "devices"), [("t3000", ["0", "1"]), ("galaxy", ["5"])])
def test_a_device_that_is_named_twice_counts_once(system: str, devices: list[str]) -> None:  # TT-NN 0.81.1 too
    once = restrict_to_visible(load_system(system), devices)

    assert restrict_to_visible(load_system(system), [*devices, *devices]) == once


def test_a_galaxy_shows_single_chips() -> None:
    assert restrict_to_visible(load_system("galaxy"), ["5"]).grid == ((0,),)


def test_half_a_torus_is_no_torus_along_the_cut() -> None:
    torus = load_system("galaxy_torus_xy")

    half = restrict_to_visible(torus, [chip for row in torus.grid[:4] for chip in row])

    assert half.wrap_axes == (1,)


@pytest.mark.parametrize("device", ["8", "-1", "x", 9])
def test_unknown_devices_are_refused(device: int | str) -> None:
    text = (
        rf"Invalid chip ID in TT_VISIBLE_DEVICES: {device}\. "
        r"Valid ID needs to be in range of actual chip IDs in the cluster\."
    )
    with pytest.raises(SystemDescriptionError, match=text + r" Expected some of \[0, 1, 2, 3, 4, 5, 6, 7\]"):
        restrict_to_visible(load_system("t3000"), [0, device])


def test_pcie_addresses_do_not_exist_here() -> None:
    with pytest.raises(SystemDescriptionError, match=r"Invalid BDF in TT_VISIBLE_DEVICES: 0000:01:00\.0\."):
        restrict_to_visible(load_system("t3000"), ["0000:01:00.0"])


def test_nothing_visible_is_refused() -> None:
    with pytest.raises(SystemDescriptionError, match="TT_VISIBLE_DEVICES names no device"):
        restrict_to_visible(load_system("t3000"), [])
