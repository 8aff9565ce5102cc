"""Ends of sockets whose other end is in another rank: who moves their messages, and what happens when that fails.

Operations of the engine are started where they arise, in the program's thread, and looked at there as long as the program
waits: a small message wakes no thread. Each end has a thread as well, which takes over what has not ended after a moment,
waits for it with a deadline, and goes on behind the program's back.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import weakref
from collections.abc import Callable

from ttmesh.base.errors import RankError
from ttmesh.ccl.sockets.socket_config import SocketRoutes
from ttmesh.fabric.messaging.rank_job import Done
from ttmesh.fabric.messaging.transport import Transport

ATTENTION_S = 0.0005  # so long the program may be about to look again itself
LINGER = 20  # turns of the watch without work before it sleeps: waking it costs a message 30 µs

_live: weakref.WeakSet[RankStream] = weakref.WeakSet()


class RankStream:
    """One end: its connection, its thread, and the error that ended it."""

    remote = True

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: SocketRoutes, nudge: Callable[[], None]
    ) -> None:
        self.name, self.routes = name, routes
        self.failure: Exception | None = None
        self.seen_s = 0.0  # when the program last looked
        self.watched = False
        self._link, self._peer, self._tag, self._nudge = link, peer, tag, nudge
        self._changed = threading.Condition()
        self._hands = threading.Lock()  # whoever has it may look at the running operations
        self._trouble: Exception | None = None  # met in the program's thread: the end's own finds out what it means
        self._handed = self._closing = False
        if not _live:
            atexit.unregister(_flush_all)
            atexit.register(_flush_all)  # after the ranks were joined, so that it runs before they part
        _live.add(self)
        threading.Thread(target=self._work, name=f"ttmesh {name}", daemon=True).start()

    def close(self) -> None:
        """End the thread once nothing is left to do."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def busy(self) -> bool:
        """Whether an operation has not ended yet."""
        raise NotImplementedError

    def flush(self) -> None:
        """Return when everything sent was received, or cannot be any more."""

    def hand_over(self) -> None:
        """Let the thread go on."""
        with self._changed:
            self._handed = True
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise what ended the stream, for the command that met it."""
        cause = self.failure
        if isinstance(cause, RankError):
            raise RankError(
                cause.wrong,
                expected=f"{self.name} to carry a message",
                fix="Look at the output of the ranks named; TTMESH_TIMEOUT_S sets the time.",
                ranks=cause.ranks,
            ) from cause
        if cause is not None:
            raise cause

    def _look(self) -> None:
        """Go on with what has ended, in the program's thread, unless the other one is at it."""
        self.seen_s = time.monotonic()
        if self._handed or not self._hands.acquire(blocking=False):
            return
        try:
            self._advance(self._is_over)
        except Exception as problem:  # every engine has its own; the thread names the rank
            self._trouble = problem
            self.hand_over()
        finally:
            self._hands.release()
        if self.busy() and not self.watched:
            _watch.over(self)

    def _is_over(self, done: Done, *, asked_for: bool) -> bool:
        return done()

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._handed or self._closing)
                with self._hands:
                    if self._trouble is not None:
                        self._wait_for(self._raise_trouble, asked_for=True)
                    self._advance(self._wait_for)
                with self._changed:
                    self._handed = False
                    if self._closing and not self.busy():
                        break
                self._nudge()
        except Exception as error:  # raised again by the command that waits for this
            self.failure = error
            with self._changed:
                self._changed.notify_all()
        self._nudge()
        self._link.close()

    def _raise_trouble(self) -> bool:
        assert self._trouble is not None, "there is some"
        raise self._trouble

    def _wait_for(self, done: Done, *, asked_for: bool) -> bool:
        raise NotImplementedError

    def _advance(self, ended: Callable[..., bool]) -> None:
        """Go on as far as `ended` says that operations have; called with the hands."""
        raise NotImplementedError


class StreamWatch:
    """A thread that hands over what the program does not look at any more; it sleeps when there is nothing."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[RankStream] = weakref.WeakSet()
        self._work = threading.Event()
        self._guard = threading.Lock()
        self._started = False

    def over(self, stream: RankStream) -> None:
        """Watch over a stream until it is idle or handed over."""
        with self._guard:
            self._streams.add(stream)
            stream.watched = True
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="ttmesh socket watch", daemon=True).start()
        if not self._work.is_set():
            self._work.set()

    def _run(self) -> None:
        while self._work.wait():
            idle = 0
            while idle < LINGER:
                time.sleep(ATTENTION_S)
                idle = 0 if self._turn() else idle + 1
            self._work.clear()
            if self._turn():  # came between the last turn and the sleep
                self._work.set()

    def _turn(self) -> bool:
        forsaken: list[RankStream] = []
        now = time.monotonic()
        with self._guard:
            streams = list(self._streams)
            for stream in streams:
                stream.watched = False  # before the question: who becomes busy after it asks to be watched again
                if not stream.busy():
                    self._streams.discard(stream)
                elif now - stream.seen_s > ATTENTION_S:
                    self._streams.discard(stream)
                    forsaken.append(stream)
                else:
                    stream.watched = True
        for stream in forsaken:
            stream.hand_over()
        return bool(streams)


_watch = StreamWatch()


def _flush_all() -> None:
    """At the end of a program that ends well: what was sent reaches its receiver before this rank leaves."""
    if getattr(sys, "last_value", None) is None:
        for stream in list(_live):
            stream.flush()
