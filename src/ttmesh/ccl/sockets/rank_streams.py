"""Ends of sockets whose other end is in another rank: which thread moves their messages, and how failures are reported.

Operations of the engine are started in the program's thread and polled there while the program waits, so that a small
message wakes no other thread. Each end also has a thread of its own, which takes over operations that have not ended
after a moment, waits for them with a deadline, and continues in the background.
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

ATTENTION_S = 0.0005  # a program that polled more recently is expected to poll again
LINGER = 20  # idle rounds of the watch before it sleeps: waking it costs a message 30 µs

_live: weakref.WeakSet[RankStream] = weakref.WeakSet()


class RankStream:
    """One end: its connection, its thread, and the error that ended it."""

    remote = True

    def __init__(
        self, link: Transport, peer: int, tag: int, name: str, routes: SocketRoutes, nudge: Callable[[], None]
    ) -> None:
        self.name, self.routes = name, routes
        self.failure: Exception | None = None
        self.last_poll_s = 0.0  # when the program last polled
        self.watched = False
        self._link, self._peer, self._tag, self._nudge = link, peer, tag, nudge
        self._changed = threading.Condition()
        self._progress_lock = threading.Lock()  # held while polling the running operations
        self._trouble: Exception | None = None  # raised in the program's thread; the end's thread finds its cause
        self._handed_over = self._closing = False
        if not _live:
            atexit.unregister(_flush_all)
            atexit.register(_flush_all)  # registered after the ranks connected, so that it runs before they disconnect
        _live.add(self)
        threading.Thread(target=self._work, name=f"ttmesh {name}", daemon=True).start()

    def close(self) -> None:
        """End the thread after all operations have ended."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def busy(self) -> bool:
        """Whether an operation has not ended yet."""
        raise NotImplementedError

    def flush(self) -> None:
        """Wait until everything sent was received, or the stream has failed."""

    def hand_over(self) -> None:
        """Let the stream's thread continue."""
        with self._changed:
            self._handed_over = True
            self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raise the error that ended the stream, in the command that uses it."""
        cause = self.failure
        if isinstance(cause, RankError):
            raise RankError(
                cause.wrong,
                expected=f"{self.name} to carry a message",
                fix="Look at the output of these ranks; TTMESH_TIMEOUT_S sets the time limit.",
                ranks=cause.ranks,
            ) from cause
        if cause is not None:
            raise cause

    def _poll(self) -> None:
        """Handle operations that have ended, in the program's thread, unless the stream's thread does so."""
        self.last_poll_s = time.monotonic()
        if self._handed_over or not self._progress_lock.acquire(blocking=False):
            return
        try:
            self._advance(self._is_done)
        except Exception as problem:  # exception types differ by engine; the stream's thread adds the rank
            self._trouble = problem
            self.hand_over()
        finally:
            self._progress_lock.release()
        if self.busy() and not self.watched:
            _watch.add(self)

    def _is_done(self, done: Done, *, requested: bool) -> bool:
        return done()

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._handed_over or self._closing)
                with self._progress_lock:
                    if self._trouble is not None:
                        self._wait_for(self._raise_trouble, requested=True)
                    self._advance(self._wait_for)
                with self._changed:
                    self._handed_over = (
                        self.busy()
                    )  # something new began after the last one ended: nobody else polls it
                    if self._closing and not self._handed_over:
                        break
                self._nudge()
        except Exception as error:  # raised again by the command that waits for the stream
            self.failure = error
            with self._changed:
                self._changed.notify_all()
        self._nudge()
        self._link.close()

    def _raise_trouble(self) -> bool:
        assert self._trouble is not None, "called after an exception"
        raise self._trouble

    def _wait_for(self, done: Done, *, requested: bool) -> bool:
        raise NotImplementedError

    def _advance(self, ended: Callable[..., bool]) -> None:
        """Handle operations as long as `ended` says that they have ended; called with the progress lock held."""
        raise NotImplementedError


class StreamWatch:
    """A thread that hands over streams that the program no longer polls; it sleeps if there are none."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[RankStream] = weakref.WeakSet()
        self._work = threading.Event()
        self._guard = threading.Lock()
        self._started = False

    def add(self, stream: RankStream) -> None:
        """Watch a stream until it is idle or handed over."""
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
                idle = 0 if self._check_streams() else idle + 1
            self._work.clear()
            if self._check_streams():  # a stream was added after the last check
                self._work.set()

    def _check_streams(self) -> bool:
        abandoned: list[RankStream] = []
        now = time.monotonic()
        with self._guard:
            streams = list(self._streams)
            for stream in streams:
                stream.watched = False  # reset before the check: a stream that becomes busy later adds itself again
                if not stream.busy():
                    self._streams.discard(stream)
                elif now - stream.last_poll_s > ATTENTION_S:
                    self._streams.discard(stream)
                    abandoned.append(stream)
                else:
                    stream.watched = True
        for stream in abandoned:
            stream.hand_over()
        return bool(streams)


_watch = StreamWatch()


def _flush_all() -> None:
    """At a normal exit: wait until all sent messages were received, before this rank disconnects."""
    if getattr(sys, "last_value", None) is None:
        for stream in list(_live):
            stream.flush()
