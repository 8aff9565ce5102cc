"""The report draws the chips where they are and puts the bytes on the links they crossed."""

from __future__ import annotations

import io

from rich.console import Console

from ttmesh.chip.catalogue import load_system
from ttmesh.fabric.link_report import draw_loads, fabric_report

BOX = load_system("t3000")
LOADS = {(4, 0): 3 * 2**20, (0, 4): 2048, (4, 5): 500, (-1, 0): 2**20, (5, -1): 4096}


def test_the_drawing_shows_both_directions() -> None:
    lines = draw_loads(BOX.grid, BOX.links, LOADS).splitlines()

    assert lines[0].startswith(" [Dev 4] ─→ 3.00 MB─ [Dev 0] ")
    assert "← 2 KB" in lines[1]
    assert lines[2].strip().startswith("↓ 500 B")
    assert [name in lines[4] for name in ("[Dev 5]", "[Dev 1]", "[Dev 2]", "[Dev 6]")] == [True] * 4
    assert max(map(len, lines)) <= 80


def test_links_off_the_grid_are_listed() -> None:
    cube = load_system("p150x8")

    assert draw_loads(cube.grid, cube.links, {(6, 4): 1024}).splitlines()[-1] == "4 → 6: 0, 6 → 4: 1 KB"


def test_chips_without_a_link_are_not_joined() -> None:
    drawing = draw_loads([[0, 1], [2, 3]], {(0, 1): 1}, {})

    assert drawing.count("→") == 1
    assert "↓" not in drawing


def test_the_report_lists_busy_links_and_the_host() -> None:
    console = Console(width=100, record=True, file=io.StringIO())

    console.print(fabric_report(BOX.grid, BOX.links, LOADS, title="after one step"))

    text = console.export_text()
    assert "after one step" in text
    assert "host to chips 1.00 MB, chips to host 4 KB" in text
    rows = [line.split("│") for line in text.splitlines() if line.startswith("│")]
    assert [cell.strip() for cell in rows[0][1:7]] == ["4", "0", "2", "3.00 MB", "1.50 MB", "100%"]
    assert len(rows) == 3
