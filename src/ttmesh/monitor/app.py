"""The live terminal."""

from __future__ import annotations

from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from ttmesh.monitor.main_screen import MainScreen
from ttmesh.monitor.source import Source
from ttmesh.monitor.view import Choice


class MonitorApp(App[None]):
    """`ttmesh monitor` on a terminal: a page with everything, and one for each device."""

    TITLE = "ttmesh monitor"
    # Textual would ask first; here Ctrl-C quits at once, also from the filter's input line.
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "Quit", show=False, priority=True)]

    def __init__(self, source: Source, choice: Choice, *, refresh_ms: int) -> None:
        super().__init__()
        self._first = MainScreen(source, choice, refresh_ms=refresh_ms)

    def get_default_screen(self) -> MainScreen:
        """The page with everything."""
        return self._first
