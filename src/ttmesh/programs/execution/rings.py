"""A circular buffer on one core while a program runs: the pages that its producer and its consumer may use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ttmesh.programs.circular_buffers import BufferPlacement, CircularBufferError
from ttmesh.programs.execution.ordering import Actor, Clock, Site
from ttmesh.programs.execution.scheduler import Task, Wait


class PageRing:
    """A ring of pages, counted from the start of the program: `_pushed` and `_popped` are the totals so far."""

    __slots__ = (
        "_capacity", "_consumer", "_consumers", "_last_wait", "_packed", "_packs_into", "_popped", "_pops",
        "_producer", "_producers", "_pushed", "_pushes", "_reserved", "_seen", "_unpacked", "_wake", "_written", "placement",
    )  # fmt: skip

    def __init__(self, placement: BufferPlacement, wake: Callable[[list[Task]], None]) -> None:
        self.placement, self._wake = placement, wake
        self._capacity = placement.size_bytes // placement.page_bytes
        self._pushed = self._popped = self._reserved = 0
        self._seen: dict[int, int] = {}  # by actor: the page up to which it has waited; others it must not touch
        self._packed = 0  # pages that the packer filled since the last push
        self._written: set[int] = set()  # the numbers of pages that were packed and not pushed yet
        self._packs_into = False
        self._unpacked: Site | None = None  # where a compute kernel pushed a page that it had not packed
        self._pushes: deque[tuple[int, Clock]] = deque()  # pages pushed so far, and what the producer knew then
        self._pops: deque[tuple[int, Clock]] = deque()
        self._producer: Actor | None = None
        self._consumer: Actor | None = None
        self._last_wait: Site | None = None
        self._producers: list[Task] = []
        self._consumers: list[Task] = []

    @property
    def _filled_pages(self) -> int:
        return self._pushed - self._popped

    def reserve_back(self, pages: int, actor: Actor) -> Wait:
        """Await room for this many pages."""
        if not 0 < pages <= self._capacity:
            raise self._make_error(f"cb_reserve_back of {pages} pages never ends", f"at most {self._capacity} pages")
        self._producer = self._check_single(self._producer, actor, "fill")

        def on_ready() -> None:
            self._reserved = max(self._reserved, pages)
            _learn_until(self._pops, self._pushed + pages - self._capacity, actor)

        return Wait(
            lambda: self._capacity - self._filled_pages >= pages,
            self._producers,
            lambda: (
                f"{pages} free pages in cb {self.placement.index} ({self._filled_pages} of {self._capacity} filled)"
            ),
            on_ready,
        )

    def wait_front(self, pages: int, actor: Actor) -> Wait:
        """Await this many filled pages."""
        if not 0 < pages <= self._capacity:
            raise self._make_error(f"cb_wait_front of {pages} pages never ends", f"at most {self._capacity} pages")
        site = actor.site()
        return Wait(
            lambda: self._filled_pages >= pages,
            self._consumers,
            lambda: f"{pages} pages in cb {self.placement.index} ({self._filled_pages} of {self._capacity} filled)",
            lambda: self._see(pages, actor, site),
        )

    def push_back(self, pages: int, actor: Actor, *, packs: bool) -> None:
        """Pass reserved pages to the consumer; a kernel that `packs` must have packed them."""
        self._producer = self._check_single(self._producer, actor, "fill")
        if not 0 <= pages <= self._reserved:
            raise self._make_error(
                f"cb_push_back of {pages} pages overflows: {self._reserved} are reserved",
                "pages that an awaited cb_reserve_back gave",
            )
        if packs:
            self._check_packed(pages, actor)
        self._reserved -= pages
        self._packed = 0
        self._pushed += pages
        self._pushes.append((self._pushed, actor.release()))
        _drop_until(self._pops, self._pushed - self._capacity)
        if self._consumers:
            self._wake(self._consumers)

    def pop_front(self, pages: int, actor: Actor) -> None:
        """Return filled pages to the producer."""
        self._consumer = self._check_single(self._consumer, actor, "empty")
        seen = self._seen.get(actor.id, 0) - self._popped
        if pages < 0 or pages > max(seen, 0):
            raise self._make_error(
                f"cb_pop_front of {pages} pages underflows: {self._filled_pages} are filled, {max(seen, 0)} were waited for",
                "pages that an awaited cb_wait_front saw",
            )
        self._popped += pages
        self._pops.append((self._popped, actor.release()))
        _drop_until(self._pushes, self._popped)
        if self._producers:
            self._wake(self._producers)

    def pages_available(self, pages: int, actor: Actor) -> bool:
        """Whether this many pages are filled now; if so, they need no waiting."""
        if self._filled_pages < pages:
            return False
        self._see(pages, actor, actor.site())
        return True

    def pages_reservable(self, pages: int) -> bool:
        """Whether this many pages are free now."""
        return self._capacity - self._filled_pages >= pages

    def read_address(self) -> int:
        """The L1 address of the oldest filled page."""
        return self.placement.address + self._popped % self._capacity * self.placement.page_bytes

    def write_address(self) -> int:
        """The L1 address of the next page to fill."""
        return self.placement.address + self._pushed % self._capacity * self.placement.page_bytes

    def advance_packer(self, pages: int) -> int:
        """Advance the packer by some pages; the first of them, counted from the write pointer."""
        first = self._packed
        self._packed += pages
        return first

    def span(self, first: int, pages: int, actor: Actor, *, to_write: bool) -> int:
        """The L1 address of some waited-for (or reserved) pages counted from the ring's own end; they must not wrap."""
        if to_write:
            have, at, verb = self._reserved, self._pushed, "reserved"
        else:
            have, at, verb = max(self._seen.get(actor.id, 0) - self._popped, 0), self._popped, "waited for"
        if first < 0 or first + pages > have:
            raise self._make_error(
                f"tiles {first} to {first + pages - 1} are used but {have} are {verb}", f"{verb} pages"
            )
        start = (at + first) % self._capacity
        if start + pages > self._capacity:
            raise self._make_error(
                f"{pages} pages from page {start} run over the end of the buffer", "a size that blocks divide"
            )
        if to_write:
            self._packs_into = True
            self._written.update(range(at + first, at + first + pages))
        return self.placement.address + start * self.placement.page_bytes

    def next_pages(self, pages: int, *, to_push: bool) -> list[tuple[int, int]]:
        """Address and size of the pages that a push or a pop of this many passes on: one span, or two at the end."""
        at = (self._pushed if to_push else self._popped) % self._capacity
        base, size = self.placement.address, self.placement.page_bytes
        whole = min(pages, self._capacity - at)
        found = [(base + at * size, whole * size)]
        return found if whole == pages else [*found, (base, (pages - whole) * size)]

    def finish(self) -> None:
        """Check, when all kernels have ended, that every pushed page was waited for."""
        if self._unpacked is not None and (self._packs_into or self._last_wait is None):
            raise self._make_unpacked_error(self._unpacked)
        if self._last_wait is None:
            return
        left = self._pushed - max(self._popped, *self._seen.values())
        if left > 0:
            raise CircularBufferError(
                f"{self._last_wait} left {left} of {self._pushed} pages of cb {self.placement.index} that were pushed "
                "without ever waiting for them",
                expected="a consumer that takes every page",
                fix="Call cb_pop_front after using a page, or the same page is seen again; push no more than is taken.",
            )

    def _see(self, pages: int, actor: Actor, site: Site) -> None:
        self._seen[actor.id] = max(self._seen.get(actor.id, 0), self._popped + pages)
        self._last_wait = site
        _learn_until(self._pushes, self._popped + pages, actor)

    def _check_packed(self, pages: int, actor: Actor) -> None:
        numbers = range(self._pushed, self._pushed + pages)
        if self._written.issuperset(numbers):
            self._written.difference_update(numbers)
        elif self.placement.backed:
            self._unpacked = actor.site()  # a shard that already holds its data may be pushed without packing
        else:
            raise self._make_unpacked_error(actor.site())

    def _make_unpacked_error(self, site: Site) -> CircularBufferError:
        return CircularBufferError(
            f"{site} pushes a page of cb {self.placement.index} that it has not packed",
            expected="pack_tile for every page between cb_reserve_back and cb_push_back",
            fix="Call pack_tile before cb_push_back.",
        )

    def _check_single(self, known: Actor | None, actor: Actor, verb: str) -> Actor:
        if known is not None and known is not actor:
            raise self._make_error(
                f"{known.name} and {actor.name} both {verb} it, and each processor has a pointer of its own",
                f"one kernel to {verb} it",
            )
        return actor

    def _make_error(self, wrong: str, expected: str) -> CircularBufferError:
        return CircularBufferError(
            f"cb {self.placement.index} of {self._capacity} pages: {wrong}",
            expected=expected,
            fix="Check the pages per call, `await` before waits and reservations, or enlarge the buffer.",
        )


def _learn_until(events: deque[tuple[int, Clock]], total: int, actor: Actor) -> None:
    """Give an actor the clock of the first event that reached a total."""
    for reached, released in events:
        if reached >= total:
            if total > 0:
                actor.learn(released)
            return


def _drop_until(events: deque[tuple[int, Clock]], total: int) -> None:
    """Drop events that no kernel can wait for any more."""
    while events and events[0][0] <= total:
        events.popleft()
