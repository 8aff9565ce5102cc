"""Where the runtime says what happened and answers questions, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

from ttmesh.base.records import Record

Listener = Callable[[Record], None]


class Signals:
    """One bus per process. `listening` is the single attribute the hot path tests before it builds a record."""

    __slots__ = ("_listeners", "_providers", "listening")

    def __init__(self) -> None:
        self.listening = False
        self._listeners: tuple[Listener, ...] = ()
        self._providers: dict[str, Callable[[], object]] = {}

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every record from now on; returns a function that stops it."""
        self._listeners = (*self._listeners, listener)
        self.listening = True

        def stop() -> None:
            self._listeners = tuple(known for known in self._listeners if known is not listener)
            self.listening = bool(self._listeners)

        return stop

    def emit(self, record: Record) -> None:
        """Hand a record to every listener, in the order they came."""
        for listener in self._listeners:
            listener(record)

    def provide(self, name: str, answer: Callable[[], object]) -> None:
        """Say who answers a question such as "holdings"; the last one to say so wins."""
        self._providers[name] = answer

    def ask(self, name: str) -> object | None:
        """The answer to a question, or None when nobody provides it."""
        answer = self._providers.get(name)
        return answer() if answer else None


signals = Signals()
