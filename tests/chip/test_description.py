"""A user's own system file is read, and everything wrong with it is said."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ttmesh.base.errors import SystemDescriptionError
from ttmesh.chip.catalogue import System, load_system

GOOD = """
name: desk
chip: wormhole_8x8
grid:
  - [3, 0, 1]
  - [4, 2, 5]
links: 2
wrap: [1]
extra_links: [[3, 5, 1]]
boards: [[0, 3]]
remote: [3]
"""


def _load(tmp_path: Path, text: str) -> object:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return load_system(str(path))


def test_a_file_describes_a_system(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)

    system = load_system(str(tmp_path / "mine.yaml"))

    assert system.name == "desk"
    assert system.grid == ((3, 0, 1), (4, 2, 5))
    assert system.link_count(3, 1) == 2  # wraps along the row
    assert system.link_count(3, 5) == 1
    assert system.wrap_axes == (1,)
    assert system.boards == ((0, 3), (1,), (2,), (4,), (5,))
    assert system.mmio == (0, 1, 2, 4, 5)


def test_a_shape_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("chip: blackhole_11x10\nshape: [2, 2]\nlinks: 4\n")

    system = load_system(str(tmp_path / "mine.yaml"))

    assert (system.name, system.grid) == ("mine", ((0, 1), (2, 3)))


def test_figures_of_the_chip_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("chip: {base: wormhole_8x8, dram_bank_bytes: 1048576}\nshape: [1, 2]\n")

    chip = load_system(str(tmp_path / "mine.yaml")).chip

    assert chip.dram_bank_bytes == 1048576
    assert chip.l1_bank_bytes == 1393472


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "is not a description but list"),
        (GOOD + "colour: red\n", r"unknown key 'colour'; expected one of \['boards', 'chip'"),
        (GOOD.replace("links:", "lnks:"), r"unknown key 'lnks'.*Did you mean links"),
        (GOOD.replace("[4, 2, 5]", "[4, 0, 5]"), "has chip id 0 more than once in grid; expected every chip once"),
        (GOOD.replace("[[3, 5, 1]]", "[[3, 9, 1]]"), r"links 3 to 9, but there is no chip 9; expected one of \[0, 1"),
        (GOOD.replace("[[3, 5, 1]]", "[[3, 3, 1]]"), "links chip 3 to itself"),
        (
            GOOD.replace("[[3, 5, 1]]", "[[3, 5]]"),
            r"has extra_links\[0\] \[3, 5\]; expected a list of \[chip, chip, number",
        ),
        (GOOD.replace("[4, 2, 5]", "[4, 2]"), r"has grid rows of \[3, 2\] chips; expected rows of equal length"),
        (
            GOOD.replace("[4, 2, 5]", "[4, 2, -5]"),
            r"has grid\[1\]\[2\] -5; expected a list of rows, each a list of chip ids from 0",
        ),
        (GOOD + "shape: [3, 2]\n", r"has shape \[3, 2\] but a grid of \[2, 3\]"),
        ("chip: wormhole_8x8\nshape: [0, 2]\n", r"has shape\[0\] 0; expected two positive numbers"),
        ("chip: wormhole_8x8\n", "has neither a grid nor a shape"),
        ("chip: wormhole_8x8\ngrid: 4\n", "has grid 4; expected a list of rows"),
        (GOOD.replace("wormhole_8x8", "wormhole"), "has no chip named 'wormhole'; expected one of .*Did you mean worm"),
        ("chip: {base: wormhole_8x8, l1: 3}\nshape: [1, 1]\n", "has an unknown chip figure 'l1'"),
        ("chip: {base: wormhole_8x8, l1_bytes: x}\nshape: [1, 1]\n", "has l1_bytes 'x'; expected a positive number"),
        (GOOD.replace("links: 2", "links: two"), "has links 'two'"),
        (GOOD.replace("wrap: [1]", "wrap: [0]"), "wraps axis 0 of 2 chips; expected more than two chips"),
        (GOOD.replace("wrap: [1]", "wrap: [2]"), r"has wrap\[0\] 2; expected a list of 0"),
        (GOOD.replace("wrap: [1]", "wrap: 1"), "has wrap 1; expected a list"),
        (GOOD.replace("[[0, 3]]", "[[0, 8]]"), "names chip 8 in boards, which is not on the grid"),
        (GOOD.replace("[[0, 3]]", "[[0, 3], [3]]"), "has chip id 3 more than once in boards"),
        (GOOD.replace("[[0, 3]]", "[0, 3]"), "expected a list of boards"),
        (GOOD.replace("remote: [3]", "remote: [4]"), r"has board \[4\] with remote chips only"),
        (GOOD.replace("remote: [3]", "remote: [a]"), "expected a list of chip ids"),
        (GOOD + "visible_by: tray\n", r"has visible_by 'tray'; expected one of \['board', 'chip'\]"),
        ("grid: [", "is not YAML"),
        (GOOD + "links: 3\n", "key 'links' is duplicate"),
        ("chip: wormhole_8x8\nshape: [100000, 100000]\n", "describes 100000 x 100000 chips; expected at most 4096"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nchip: *c\nshape: [1, 1]\n", "unknown key 'a'|has chip"),
        ("shape: " + "[" * 5000, "is nested too deeply|is not YAML"),
        ("links: " + "9" * 5000, "is not YAML"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SystemDescriptionError, match=message) as caught:
        _load(tmp_path, text)

    assert "mine.yaml" in str(caught.value)
    assert "docs/systems.md" in str(caught.value)


def test_what_is_no_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"chip: \xff\xfe")
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    with (tmp_path / "large.yaml").open("wb") as large:
        large.truncate(1 << 33)

    for name, message in {
        "binary": "is not text (byte 0xff at 6)",
        "folder": "is not a regular file",
        "pipe": "is not a regular file",
        "large": "is larger than",
    }.items():
        with pytest.raises(SystemDescriptionError, match=re.escape(message)):
            load_system(str(tmp_path / f"{name}.yaml"))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(
        SystemDescriptionError, match=r"'nowhere/box\.yaml' cannot be read \(No such file or directory\)"
    ):
        load_system("nowhere/box.yaml")


DOCUMENT = Path(__file__).parents[2] / "docs" / "systems.md"


@pytest.mark.parametrize("number", [0, 1])
def test_the_documented_examples_load(tmp_path: Path, number: int) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)

    assert len(examples) == 2
    assert isinstance(_load(tmp_path, examples[number]), System)
