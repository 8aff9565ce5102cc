"""Whom the server works for next: every owner gets the same share, and the queries of those who ask little come first."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ANSWERS = 8  # in the making at the same time, each of some MB, and as many for owners who ask little
LEAD_S = 0.25  # of work that queries of owners who ask little may be ahead of records; other queries get half the time
ASKS_LITTLE_S = 0.5  # of work, halved every second

Client = TypeVar("Client")


class Owner(Generic[Client]):
    """A process, or a host over TCP: its connections with work to do, oldest first."""

    __slots__ = ("answered_s", "asking", "has_begun", "processed_s", "sending", "spent_s")

    def __init__(self) -> None:
        self.asking: dict[Client, None] = {}  # one after the other: the first is answered to its end
        self.sending: dict[Client, None] = {}  # in turns
        self.has_begun = False  # whether the first query is being answered, for which memory is held
        self.spent_s = 0.0  # of work for it, halved every second
        self.answered_s = self.processed_s = 0.0  # work for queries and for records; an idle owner saves nothing up

    @property
    def asks_little(self) -> bool:
        """Whether a person may be waiting for the answer, rather than a program that asks all the time."""
        return self.spent_s < ASKS_LITTLE_S


class ServerSchedule(Generic[Client]):
    """Connections with work to do, by their owners; choosing one takes a step for every owner, not every connection."""

    def __init__(self) -> None:
        self._owners: dict[object, Owner[Client]] = {}
        self._lead_s = 0.0  # of queries: the work for them less that for records, within LEAD_S
        self._answered_s = self._processed_s = 0.0  # of the owner that was chosen last

    def __bool__(self) -> bool:
        return any(owner.asking or owner.sending for owner in self._owners.values())

    def add(self, client: Client, owner: object, *, asks: bool, has_begun: bool) -> None:
        """A connection has work to do; `has_begun`: its query is being answered already."""
        entry = self._owners.setdefault(owner, Owner())
        if not asks:
            if not entry.sending:
                entry.processed_s = max(entry.processed_s, self._processed_s)
            entry.sending[client] = None
            return
        if not entry.asking:
            entry.answered_s = max(entry.answered_s, self._answered_s)
        entry.sending.pop(client, None)  # it said only now that it is a monitor
        if not has_begun and next(iter(entry.asking), None) is client:
            del entry.asking[client]  # its next query comes after those of the owner's other connections
        entry.asking[client] = None
        if next(iter(entry.asking)) is client:
            entry.has_begun = has_begun

    def discard(self, client: Client, owner: object) -> None:
        """A connection has no work to do, or is closed."""
        entry = self._owners.get(owner)
        if entry is None:
            return
        if next(iter(entry.asking), None) is client:
            entry.has_begun = False
        entry.asking.pop(client, None)
        entry.sending.pop(client, None)

    def choose(self) -> Client:
        """The connection to work for; there must be one."""
        asker = min(self._list_ready(), key=_order_of_asker, default=None)
        sender = min((owner for owner in self._owners.values() if owner.sending), key=_order_of_sender, default=None)
        if asker and (sender is None or self._lead_s < (LEAD_S if asker.asks_little else 0.0)):
            self._answered_s = max(self._answered_s, asker.answered_s)
            return next(iter(asker.asking))
        assert sender
        self._processed_s = max(self._processed_s, sender.processed_s)
        client = next(iter(sender.sending))
        sender.sending[client] = sender.sending.pop(client)
        return client

    def charge(self, owner: object, took_s: float, *, asks: bool) -> None:
        """Count work that was done for an owner."""
        entry = self._owners.setdefault(owner, Owner())
        entry.spent_s += took_s
        if asks:
            entry.answered_s += took_s
        else:
            entry.processed_s += took_s
        self._lead_s = min(LEAD_S, max(-LEAD_S, self._lead_s + (took_s if asks else -took_s)))

    def tick(self) -> None:
        """Once per second: earlier work counts half, and owners without work are forgotten."""
        for name, owner in list(self._owners.items()):
            owner.spent_s /= 2
            if owner.spent_s < 0.001 and not owner.asking and not owner.sending:
                del self._owners[name]

    def _list_ready(self) -> list[Owner[Client]]:
        """Owners whose query is being answered or may be begun."""
        asking = [owner for owner in self._owners.values() if owner.asking]
        begun = {True: 0, False: 0}
        for owner in asking:
            begun[owner.asks_little] += owner.has_begun
        return [owner for owner in asking if owner.has_begun or begun[owner.asks_little] < MAX_ANSWERS]


def _order_of_asker(owner: Owner[Client]) -> tuple[bool, float]:
    return not owner.asks_little, owner.answered_s


def _order_of_sender(owner: Owner[Client]) -> float:
    return owner.processed_s
