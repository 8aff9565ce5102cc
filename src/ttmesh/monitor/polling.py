"""Polling the server from a screen, in a thread, one query at a time."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

from textual import work
from textual.screen import Screen

from ttmesh.base.errors import MeshError

Answer = TypeVar("Answer")
SHARE = 0.028  # of a processor, at most, for a screen that polls every second or less often
LONGEST_S = 3.0  # between two polls because of it


class PollingScreen(Screen[None], Generic[Answer]):
    """A screen that polls every `refresh_ms`; the next query waits until the last one is answered."""

    def __init__(self, *, refresh_ms: int) -> None:
        super().__init__()
        self.refresh_ms = refresh_ms
        self._asking = self._wanted = False
        self._not_before_s = self._used_s = 0.0

    def ask(self) -> Answer | None:
        """Ask the server; runs in a thread."""
        raise NotImplementedError

    def show(self, answer: Answer | None, problem: str) -> None:
        """Show the answer, or the problem."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Poll now and every `refresh_ms`, or less often where drawing takes long."""
        self.set_interval(self.refresh_ms / 1000, self._look_if_cheap)
        self.look()

    def _look_if_cheap(self) -> None:
        now_s, used_s = time.monotonic(), time.process_time()
        if self.refresh_ms < 1000 or now_s >= self._not_before_s:
            self._not_before_s = now_s + min(LONGEST_S, choose_pause(used_s - self._used_s))
            self._used_s = used_s
            self.look()

    def look(self) -> None:
        """Query and show, now or as soon as the last query is answered."""
        if self._asking:
            self._wanted = True
        else:
            self._asking = True
            self._ask_in_thread()

    @work(thread=True)
    def _ask_in_thread(self) -> None:
        try:
            answer, problem = self.ask(), ""
        except MeshError as error:
            answer, problem = None, str(error)
        self.app.call_from_thread(self._show_answer, answer, problem)

    def _show_answer(self, answer: Answer | None, problem: str) -> None:
        self._asking = False
        if self.is_attached and self.children:  # otherwise the app is closing
            self.show(answer, problem)
            if self._wanted:
                self._wanted = False
                self.look()


def choose_pause(used_s: float) -> float:
    """How long to wait after a poll that took so much processor time."""
    return used_s / SHARE
