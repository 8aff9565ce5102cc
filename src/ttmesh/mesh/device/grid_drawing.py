"""A grid of devices as text: one box per device, lines of text inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def draw_grid(grid: Sequence[Sequence[int]], notes: Mapping[int, Sequence[str]] | None = None) -> str:
    """A drawing of the chips with their physical ids; `notes` adds lines below some ids."""
    lines = {chip: [f"Dev. ID: {chip}", *(notes or {}).get(chip, ())] for row in grid for chip in row}
    width = max(len(line) for cell in lines.values() for line in cell) + 4
    bar = "─" * width
    text = ["┌" + "┬".join(bar for _ in grid[0]) + "┐"]
    for number, row in enumerate(grid):
        if number:
            text.append("├" + "┼".join(bar for _ in row) + "┤")
        for i in range(max(len(lines[chip]) for chip in row)):
            cells = (lines[chip][i] if i < len(lines[chip]) else "" for chip in row)
            text.append("│" + "│".join(cell.center(width) for cell in cells) + "│")
    text.append("└" + "┴".join(bar for _ in grid[0]) + "┘")
    return "\n".join(text)
