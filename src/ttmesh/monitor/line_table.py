"""A table of the live terminal that draws only the lines that changed: Textual's own table redraws every cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

Row = list[Text]

FEW_LINES = 4  # more that change are cheaper drawn with all the others


class LineTable(ScrollView, can_focus=True):
    """Rows of one line each below a header that stays; the cursor is a row."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"line-table--header", "line-table--cursor"}
    DEFAULT_CSS = """
    LineTable { height: auto; }
    LineTable > .line-table--header { text-style: bold; background: $panel; color: $foreground; }
    LineTable > .line-table--cursor { background: $surface-lighten-1; }
    LineTable:focus > .line-table--cursor { background: $primary-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Select", show=False),
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move(-10)", "Page up", show=False),
        Binding("pagedown", "move(10)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
    ]

    class Selected(Message):
        """A row was chosen with Enter or the mouse."""

        def __init__(self, table: LineTable, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

        @property
        def control(self) -> LineTable:
            """The table."""
            return self.table

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.rows: dict[str, Row] = {}
        self.cursor_row = 0
        self._titles: Sequence[str] = ()
        self._widths: list[int] = []
        self._strips: list[Strip] = []

    def fill(self, titles: Sequence[str], rows: dict[str, list[object]]) -> None:
        """Show these rows; the cursor stays where it is."""
        made = {
            key: [cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells] for key, cells in rows.items()
        }
        known = list(self.rows.values())
        columns = zip(titles, *([cell.plain for cell in row] for row in made.values()), strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        is_same_frame = widths == self._widths and list(titles) == list(self._titles) and len(made) == len(known)
        self.rows, self._titles, self._widths = made, titles, widths
        self.cursor_row = max(0, min(self.cursor_row, len(made) - 1))
        if is_same_frame:
            changed = [(i, row) for i, row in enumerate(made.values()) if row != known[i]]
            for i, row in changed:
                self._strips[i] = self._draw(row)
                if len(changed) <= FEW_LINES:
                    self._refresh_row(i)
            if len(changed) > FEW_LINES:
                self.refresh()
        else:
            self._strips = [self._draw(row) for row in made.values()]
            self.virtual_size = Size(sum(widths) + 2 * len(widths), len(made) + 1)
            self.refresh(layout=True)

    def render_line(self, y: int) -> Strip:
        """The header, or the row that is scrolled there."""
        left, top = self.scroll_offset
        i = y - 1 + top
        base = self.rich_style
        if y == 0:
            base += self.get_component_rich_style("line-table--header")
            strip = self._draw([Text(title) for title in self._titles])
        elif i < len(self._strips):
            strip = self._strips[i]
            if i == self.cursor_row:
                base += self.get_component_rich_style("line-table--cursor")
        else:
            strip = Strip.blank(self.size.width, base)
        return strip.crop_extend(left, left + self.size.width, base).apply_style(base)

    def action_move(self, rows: int) -> None:
        """Move the cursor, and scroll to it."""
        before = self.cursor_row
        self.cursor_row = max(0, min(before + rows, len(self.rows) - 1))
        for i in (before, self.cursor_row):
            self._refresh_row(i)
        self.scroll_to_region(Region(0, self.cursor_row, 1, 2), animate=False, force=True)  # with the header above it

    def action_select_cursor(self) -> None:
        """Choose the row under the cursor."""
        if self.rows:
            self.post_message(self.Selected(self, list(self.rows)[self.cursor_row]))

    def on_click(self, event: Click) -> None:
        """Choose the row under the mouse."""
        row = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and row < len(self.rows):
            self.action_move(row - self.cursor_row)
            self.action_select_cursor()

    def _refresh_row(self, i: int) -> None:
        y = i + 1 - self.scroll_offset.y
        if 0 < y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def _draw(self, row: Row) -> Strip:
        segments: list[Segment] = []
        for cell, width in zip(row, self._widths, strict=True):
            pad = " " * (width - cell_len(cell.plain))
            before, after = (pad, "") if cell.justify == "right" else ("", pad)
            segments += [Segment(f" {before}"), *_segments(cell), Segment(f"{after} ")]
        return Strip(segments)


def _segments(text: Text) -> list[Segment]:
    """The text in pieces of one style each; its spans are in order and do not overlap."""
    found, at = [], 0
    style = Style.parse(text.style) if isinstance(text.style, str) else text.style
    for start, end, span_style in text.spans:
        if start > at:
            found.append(Segment(text.plain[at:start], style))
        own = Style.parse(span_style) if isinstance(span_style, str) else span_style
        found.append(Segment(text.plain[start:end], style + own))
        at = end
    if at < len(text.plain):
        found.append(Segment(text.plain[at:], style))
    return found
