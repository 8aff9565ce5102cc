"""Where the runtime says what happened and answers questions, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable

from ttmesh.base.records import Record

Listener = Callable[[Record], None]


class Signals:
    """One bus per process; the hot paths test one attribute before they build a record.

    `listening`: somebody wants what happens to memory; `timing`: somebody also wants every command and crossing.
    """

    __slots__ = ("_listeners", "_providers", "listening", "timing")

    def __init__(self) -> None:
        self.listening = False
        self.timing = False
        self._listeners: tuple[tuple[Listener, bool], ...] = ()
        self._providers: dict[str, Callable[[], object]] = {}

    def listen(self, listener: Listener, *, commands: bool = False) -> Callable[[], None]:
        """Call `listener` with every record from now on, with `commands` also Enqueued, Finished and Crossed.

        Returns a function that stops it.
        """
        entry = (listener, commands)
        self._set((*self._listeners, entry))
        return lambda: self._set(tuple(known for known in self._listeners if known is not entry))

    def emit(self, record: Record) -> None:
        """Hand a record about memory to every listener, in the order they came."""
        for listener, _ in self._listeners:
            listener(record)

    def emit_command(self, record: Record) -> None:
        """Hand a record about a command or a crossing to those who asked for them."""
        for listener, commands in self._listeners:
            if commands:
                listener(record)

    def provide(self, name: str, answer: Callable[[], object]) -> None:
        """Say who answers a question such as "holdings"; the last one to say so wins."""
        self._providers[name] = answer

    def ask(self, name: str) -> object | None:
        """The answer to a question, or None when nobody provides it."""
        answer = self._providers.get(name)
        return answer() if answer else None

    def _set(self, listeners: tuple[tuple[Listener, bool], ...]) -> None:
        self._listeners = listeners
        self.listening = bool(listeners)
        self.timing = any(commands for _, commands in listeners)


signals = Signals()
