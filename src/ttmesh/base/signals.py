"""The bus on which the runtime emits records and answers queries, without knowing the listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ttmesh.base.records import Event, LinkTransfer, Record

Listener = Callable[[Any], None]  # of the kinds of records it asked for


class _Entry(NamedTuple):
    hear: Listener
    commands: bool
    crossings: Callable[[Sequence[LinkTransfer]], None]


class Signals:
    """One bus per process; the hot paths test one attribute before they build a record.

    `listening`: there is a listener for memory records; `timing`: also one for every command.
    `emit(record)` hands a record about memory to every listener, in the order they came. It is an attribute, because
    with one listener it is that listener itself: a tracker that gives the `append` of its list pays for nothing else.
    """

    __slots__ = ("_listeners", "_providers", "emit", "listening", "timing")

    emit: Callable[[Event], None]

    def __init__(self) -> None:
        self._providers: dict[str, Callable[[], object]] = {}
        self._set(())

    def listen(
        self,
        listener: Listener,
        *,
        commands: bool = False,
        crossings: Callable[[Sequence[LinkTransfer]], None] | None = None,
    ) -> Callable[[], None]:
        """Call `listener` with every record from now on, with `commands` also Enqueued and Finished.

        `crossings`, when given, gets what crossed links instead: a sequence at a time, the same one when a collective
        repeats. Returns a function that stops it.
        """

        def hear_each(records: Sequence[LinkTransfer]) -> None:
            for record in records:
                listener(record)

        entry = _Entry(listener, commands, crossings or hear_each)
        self._set((*self._listeners, entry))
        return lambda: self._set(tuple(known for known in self._listeners if known is not entry))

    def emit_crossings(self, records: Sequence[LinkTransfer]) -> None:
        """Pass what crossed some links at once to every listener."""
        for entry in self._listeners:
            entry.crossings(records)

    def emit_command(self, record: Record) -> None:
        """Pass a record about a command to the listeners that asked for commands."""
        for entry in self._listeners:
            if entry.commands:
                entry.hear(record)

    def provide(self, name: str, answer: Callable[[], object]) -> None:
        """Register the function that answers a query such as "holdings"; the last one registered wins."""
        self._providers[name] = answer

    def ask(self, name: str) -> object | None:
        """The answer to a query, or None without a provider."""
        answer = self._providers.get(name)
        return answer() if answer else None

    def _set(self, listeners: tuple[_Entry, ...]) -> None:
        self._listeners = listeners
        self.emit = listeners[0].hear if len(listeners) == 1 else self._emit_to_all
        self.listening = bool(listeners)
        self.timing = any(entry.commands for entry in listeners)

    def _emit_to_all(self, record: Event) -> None:
        for entry in self._listeners:
            entry.hear(record)


signals = Signals()
