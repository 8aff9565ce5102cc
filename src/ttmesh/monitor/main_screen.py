"""The first screen of the live terminal: devices with bars, and processes."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Footer, Input, Static

from ttmesh.monitor.device_screen import DeviceScreen
from ttmesh.monitor.line_table import LineTable
from ttmesh.monitor.polling import PollingScreen
from ttmesh.monitor.rows import STAR, Widths, device_cells, fit_widths, process_cells
from ttmesh.monitor.source import Source
from ttmesh.monitor.text_drawing import COLOURS
from ttmesh.monitor.view import SORTS, Choice, View, class_name, format_count, nothing_shown
from ttmesh.tracking.state import DeviceKey

LEGEND = ("DRAM", "TRACE", "L1", "L1_SMALL", "CB", "KERNEL", "SYSTEM_L1")
FIT_S = 10


class MainScreen(PollingScreen[View]):
    """The screen with all devices and processes."""

    DEFAULT_CSS = """
    #status, #legend { height: 1; padding: 0 1; background: $panel; }
    #problem { height: auto; padding: 0 1; color: $error; display: none; }
    #nothing { height: auto; padding: 1 2; display: none; }
    #devices { height: auto; max-height: 60%; }
    #processes { height: 1fr; border-top: solid $panel; }
    #filter { dock: bottom; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.quit", "Quit"),
        Binding("d", "open_device", "Device"),
        Binding("s", "next_sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("p", "pause", "Pause"),
        Binding("escape", "clear_filter", "Clear", show=False),
    ]

    def __init__(self, source: Source, choice: Choice, *, refresh_ms: int) -> None:
        super().__init__(refresh_ms=refresh_ms)
        self.source = source
        self.choice = choice
        self.view: View | None = None
        self.paused = False
        self._keys: dict[str, DeviceKey] = {}
        self._shown_texts: dict[str, str] = {}
        self._fitted: tuple[object, Widths] | None = None  # for which screen and rows

    def compose(self) -> ComposeResult:
        """A status line, the devices, the processes, the keys."""
        with Vertical():
            yield Static(id="status")
            yield Static(_legend(), id="legend")
            yield Static(id="problem")
            yield Static(id="nothing")
            yield LineTable(id="devices")
            yield LineTable(id="processes")
            yield Input(placeholder="part of a process's name or pid", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Set up the tables and start polling."""
        self.query_one("#devices").focus()
        super().on_mount()

    def on_resize(self) -> None:
        """Choose the columns that fit the new width."""
        if self.view is not None:
            self.show(self.view, "")

    def ask(self) -> View | None:
        """The view to show; the last one while the display is paused."""
        return self.view if self.paused else self.source.view(self.choice, trends=True)

    def show(self, answer: View | None, problem: str) -> None:
        """Show a view; a problem is shown above the last view."""
        notes = [problem] if problem else list(answer.notes) if answer is not None else []
        self._show_text("#problem", "\n".join(notes))
        if answer is not None:
            self.view = view = answer
            self.query_one("#status", Static).update(self._status(view), layout=False)
            is_empty = not (view.devices and view.processes) and not self.choice.text
            self._show_text("#nothing", nothing_shown(view) if is_empty else "")
            widths = self._fit(view)
            self._keys = {"/".join(map(str, d.key)): d.key for d in view.devices}
            devices = {"/".join(map(str, d.key)): device_cells(d, widths) for d in view.devices}
            processes = {f"{p.host}/{p.pid}": process_cells(p, widths) for p in view.processes}
            self.query_one("#devices", LineTable).fill(widths.device_columns(), devices)
            self.query_one("#processes", LineTable).fill(widths.process_columns(), processes)

    def _fit(self, view: View) -> Widths:
        """Column widths for this screen, computed again for new rows, and now and then as numbers grow."""
        keys = (self.size.width, [d.key for d in view.devices], [p.title for p in view.processes], view.time_s // FIT_S)
        if self._fitted is None or self._fitted[0] != keys:
            self._fitted = (keys, fit_widths(view, self.size.width))
        return self._fitted[1]

    def _show_text(self, where: str, text: str) -> None:
        """Show a text, or nothing; a new layout of the screen is expensive, so only when the text changes."""
        if self._shown_texts.get(where, "") != text:
            self._shown_texts[where] = text
            notice = self.query_one(where, Static)
            notice.update(Text(text))
            notice.display = bool(text)

    def action_next_sort(self) -> None:
        """Sort the processes by the next column."""
        following = SORTS[(SORTS.index(self.choice.sort) + 1) % len(SORTS)]
        self.choice = Choice(self.choice.devices, following, self.choice.text)
        self.look()

    def action_pause(self) -> None:
        """Pause or resume the display."""
        self.paused = not self.paused
        self.look()

    def action_filter(self) -> None:
        """Open the input line for a filter on names."""
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    def action_clear_filter(self) -> None:
        """Show every process again."""
        entry = self.query_one("#filter", Input)
        entry.value = ""
        self._leave_filter(entry)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.choice = Choice(self.choice.devices, self.choice.sort, event.value)
        self.look()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go back to the tables."""
        self._leave_filter(event.input)

    def _leave_filter(self, entry: Input) -> None:
        entry.display = False
        self.query_one("#devices").focus()

    def on_line_table_selected(self, event: LineTable.Selected) -> None:
        """Enter on a device opens it."""
        if event.table.id == "devices":
            self.open_device(self._keys[event.key])

    def action_open_device(self) -> None:
        """Open the device under the cursor."""
        self.query_one("#devices", LineTable).action_select_cursor()

    def open_device(self, key: DeviceKey) -> None:
        """A screen with one device."""
        self.app.push_screen(DeviceScreen(self.source, key, refresh_ms=self.refresh_ms))

    def _status(self, view: View) -> Text:
        clock = time.strftime("%H:%M:%S", time.localtime(view.time_s))
        text = Text(f"{clock}  {format_count(len(view.devices), 'device')}  {format_count(view.buffers, 'buffer')}  ")
        text.append(f"{format_count(len(view.processes), 'process')}, sorted by {self.choice.sort}  ")
        text.append(format_count(view.records, "record"))
        if view.missed:
            text.append(f"  {view.missed} missed", style="yellow")
        if self.choice.text:
            text.append(f"  filter: {self.choice.text}", style="bold")
        if self.paused:
            text.append("  PAUSED", style="bold reverse")
        return text


def _legend() -> Text:
    text = Text()
    for kind in LEGEND:
        text.append("■ ", style=COLOURS[kind]).append(f"{class_name(kind)}  ")
    return text.append("★ ", style=STAR).append("coordinator")
