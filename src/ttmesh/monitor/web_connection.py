"""Closes idle connections of the live page: those that send no request, and those that do not read."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0  # time for the first request
STALLED_S = 10.0  # time for reading a reply


class DeadlineConnection(H11Protocol):
    """A connection with deadlines for the first request and for every reply; at most 64 KB wait for a reader."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_S, self._close_if_silent)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._keep()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the deadline for reading."""
        super().pause_writing()
        self._keep()
        self._deadline = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the deadline for reading."""
        self._keep()
        super().resume_writing()

    def _keep(self) -> None:
        if self._deadline:
            self._deadline.cancel()

    def _close_if_silent(self) -> None:
        if self.cycle is None:
            self.transport.abort()
