"""Whom the server works for next: every owner gets the same share, and the queries of those who ask little come first."""

from __future__ import annotations

from typing import Generic, TypeVar

MAX_ANSWERS = 8  # in the making at the same time, each of some MB, and as many for owners who ask little
LEAD_S = 0.25  # of work by which queries of owners who ask little may be ahead of everything else
ASKS_LITTLE_S = 0.5  # of work, halved every second
FEW_QUERIES = 4  # that wait at the same time, each on a connection of its own

Client = TypeVar("Client")


class Owner(Generic[Client]):
    """A process, or a host over TCP: its connections with work to do, oldest first."""

    __slots__ = ("asking", "first_s", "has_begun", "rest_s", "sending", "spent_s")

    def __init__(self) -> None:
        self.asking: dict[Client, None] = {}  # one after the other: the first is answered to its end
        self.sending: dict[Client, None] = {}  # in turns
        self.has_begun = False  # whether the first query is being answered, for which memory is held
        self.spent_s = 0.0  # of work for it, halved every second
        self.first_s = self.rest_s = 0.0  # work in each of the two classes; an idle owner saves nothing up

    @property
    def asks_little(self) -> bool:
        """Whether a person may be waiting for the answer, rather than a program that asks all the time."""
        return self.spent_s < ASKS_LITTLE_S and len(self.asking) <= FEW_QUERIES


class ServerSchedule(Generic[Client]):
    """Connections with work to do, by their owners; choosing one takes a step for every owner, not every connection."""

    def __init__(self) -> None:
        self._owners: dict[object, Owner[Client]] = {}
        self._lead_s = 0.0  # the work for owners who ask little less that for the rest, within LEAD_S
        self._first_s = self._rest_s = 0.0  # of the owner that was chosen last

    def __bool__(self) -> bool:
        return any(owner.asking or owner.sending for owner in self._owners.values())

    def add(self, client: Client, owner: object, *, asks: bool, has_begun: bool) -> None:
        """A connection has work to do; `has_begun`: its query is being answered already."""
        entry = self._owners.setdefault(owner, Owner())
        if not entry.asking and not entry.sending:
            entry.first_s, entry.rest_s = max(entry.first_s, self._first_s), max(entry.rest_s, self._rest_s)
        if not asks:
            entry.sending[client] = None
            return
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
        ready = self._list_ready()
        first = min((owner for owner in ready if owner.asks_little), key=_first_s, default=None)
        rest = [owner for owner in self._owners.values() if owner.sending]
        rest += [owner for owner in ready if not owner.asks_little and not owner.sending]
        if first and (not rest or self._lead_s < LEAD_S):
            self._first_s = max(self._first_s, first.first_s)
            return next(iter(first.asking))
        owner = min(rest, key=_rest_s)
        self._rest_s = max(self._rest_s, owner.rest_s)
        if not owner.sending:
            return next(iter(owner.asking))
        client = next(iter(owner.sending))
        owner.sending[client] = owner.sending.pop(client)
        return client

    def spent_s(self, owner: object) -> float:
        """The work for an owner of late."""
        return self._owners[owner].spent_s if owner in self._owners else 0.0

    def spend(self, owner: object, took_s: float) -> None:
        """Count other work for an owner than that for its queries and records."""
        self._owners.setdefault(owner, Owner()).spent_s += took_s

    def charge(self, owner: object, took_s: float, *, asks: bool) -> None:
        """Count work for the query or the records of an owner."""
        self.spend(owner, took_s)
        entry = self._owners[owner]
        if asks and entry.asks_little:
            entry.first_s += took_s
            entry.rest_s = max(entry.rest_s, self._rest_s)  # where it begins if it asks for more
            self._lead_s = min(LEAD_S, self._lead_s + took_s)
        else:
            entry.rest_s += took_s
            self._lead_s = max(-LEAD_S, self._lead_s - took_s)

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


def _first_s(owner: Owner[Client]) -> float:
    return owner.first_s


def _rest_s(owner: Owner[Client]) -> float:
    return owner.rest_s
