"""Connections of the live page that nobody uses are cut: silent ones, and readers that do not read."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # a connection asks for something in this time
STALLED_S = 10.0  # and takes what it asked for in this time


class ImpatientConnection(H11Protocol):
    """A connection with deadlines for the first request and for every reply; what waits for a reader is 64 KB."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A browser, or anybody."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_S, self._cut_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone by itself."""
        self._keep()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """It does not read."""
        super().pause_writing()
        self._keep()
        self._deadline = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It does after all."""
        self._keep()
        super().resume_writing()

    def _keep(self) -> None:
        if self._deadline:
            self._deadline.cancel()

    def _cut_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()
