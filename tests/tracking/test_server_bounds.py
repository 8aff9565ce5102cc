"""What peers can make the server hold and do: counted in bytes and pieces of work, and true."""

from __future__ import annotations

import gc
import itertools
import tracemalloc
import weakref

import pytest

from ttmesh.base.records import Allocated, ChipFacts, Closed, Event, Freed, Marked, Opened, Reserved
from ttmesh.tracking import answers as answers_module
from ttmesh.tracking import holders, leftovers, process_table, wire
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.process_table import LedgerError
from ttmesh.tracking.session import Peer, Session
from ttmesh.tracking.state import ServerState
from ttmesh.tracking.weights import weigh
from ttmesh.tracking.wire import Query, Who

WIDE = "\U0001f600" * 500
NOBODY = ServerState(1, 1, 0.0, 10.0, 0, 0, 0)


def buffer(number: int, *, chips=(0,), kind="DRAM", size=1000, label="", site="", mesh=1, address=0) -> Allocated:
    return Allocated(mesh, number, chips, kind, address, size, 300, 700, 900, label, 0, site)


def opened(number: int, chips: range, *, name: str = "t3000") -> Opened:
    facts = tuple(ChipFacts(c, c, (0, c), name[:32], 12, 1 << 30, 64, 1 << 20, False) for c in chips)
    return Opened(number, None, (1, len(chips)), name, facts, 0)


def decode(records: list[Event]) -> list[Event]:
    """As they come over the wire: nothing is shared with the test."""
    return wire.message(wire.EVENTS, wire._encode((0, 0, records))).records


SHAPES: dict[str, list[Event]] = {
    "plain buffers": [buffer(1000 + n, chips=tuple(range(8)), label="matmul", size=10**9 + n) for n in range(4000)],
    "long sites": [buffer(n, site=f"{n}{WIDE}"[:4096]) for n in range(500)],
    "one site": [buffer(n, site=WIDE * 8, label=WIDE) for n in range(1000)],
    "meshes": [opened(n, range(256), name=f"{n % 2}{WIDE}"[:64]) for n in range(20)],
    "groups": [buffer(n, chips=tuple(range(n, n + 200))) for n in range(100)],
    "reservations": [Reserved(1, tuple(range(300)), "L1", 5 + n, f"{n}{WIDE}", 0) for n in range(50)],
    "marks": [Marked(f"{n}{WIDE}", 10**18) for n in range(500)],
    "leftovers": [e for n in range(100) for e in (buffer(n, mesh=n, site=f"{n}{WIDE}" * 8), Closed(n, 0))],
    "freed": [*(buffer(n) for n in range(5000)), *(Freed(1, n) for n in range(5000))],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bytes_counted_are_the_bytes_held(shape, monkeypatch):
    monkeypatch.setattr(holders, "MAX_SERIES", 0)  # histories belong to devices and are counted apart
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    ledger.events(process, 0, [opened(1, range(512))])
    before = process.size_bytes
    records = decode(SHAPES[shape])
    lots = [records[at : at + 50] for at in range(0, len(records), 50)]
    del records
    gc.collect()
    tracemalloc.start()
    lots = [decode(lot) for lot in lots]

    for number in range(len(lots)):
        ledger.events(process, process.next, lots[number])
        lots[number] = []
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    counted = process.size_bytes - before
    devices = sum(400 + weigh(d.facts) + weigh(d.system) for d in ledger.devices.values())  # not the process's
    assert held <= counted + devices, shape
    assert counted <= 2 * held + 65_536, shape
    assert ledger.bytes_held == process.counted_bytes == process.size_bytes


@pytest.mark.parametrize("shape", SHAPES)
def test_who_leaves_takes_all_of_it_along(shape):
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    ledger.snapshot(process, 0, decode(SHAPES[shape]))
    ledger.events(process, 0, decode(SHAPES[shape]))

    ledger.leave(process, orderly=False, now_s=1.0)

    assert ledger.bytes_held == 0
    assert ledger.departures.ended_bytes <= process_table.ENDED_BYTES
    assert not any(a.used or a.count for d in ledger.devices.values() for a in d.accounts.values())
    assert not any(d.users or d.coordinates for d in ledger.devices.values())


def test_when_all_is_taken_the_largest_gives_way_and_the_others_stay_exact(monkeypatch):
    monkeypatch.setattr(process_table, "MAX_BYTES", 1 << 20)
    ended: list[object] = []
    ledger = Ledger(evict=lambda owner, reason: ended.append((owner, reason)))
    honest = [ledger.join(Who("", pid, 1), "honest", 0.0) for pid in range(8)]
    for process in honest:
        ledger.events(process, 0, [buffer(n, size=7) for n in range(20)])
    hostile = ledger.join(Who("", 99, 1), "hostile", 0.0)
    hostile.owners.add("its connection")

    with pytest.raises(LedgerError, match="all processes together take more than 1048576 bytes, and this one the most"):
        for number in itertools.count():
            ledger.events(hostile, number, [buffer(number)])
    ledger.leave(hostile, orderly=False, now_s=0.0)
    other = ledger.join(Who("", 98, 1), "hostile", 0.0)
    other.owners.add("another")
    ledger.events(other, 0, [buffer(n) for n in range(1500)])
    while "another" not in [owner for owner, _ in ended]:
        ledger.events(honest[0], honest[0].next, [buffer(honest[0].next, size=7)])

    wanted = sum(r.size_bytes for process in honest for r in process.held.values())
    assert ledger.devices["", "", 0].accounts["DRAM"].used == wanted
    assert ledger.bytes_held <= 1 << 20
    assert len(ledger.processes) == 8


def test_texts_without_room_are_left_out_and_the_buffers_are_not(monkeypatch):
    monkeypatch.setattr(holders, "MAX_TEXTS_BYTES", 10_000)
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)

    ledger.events(process, 0, [buffer(n, site=f"{n}" * 500) for n in range(100)])

    assert ledger.devices["", "", 0].accounts["DRAM"].count == 100
    assert 0 < sum(bool(r.site) for r in process.held.values()) < 20
    ledger.events(process, 100, [Freed(1, n) for n in range(100)])
    assert process.texts.size_bytes == 0


def test_devices_that_nobody_uses_make_room_and_are_forgotten():
    ledger = Ledger()
    gone = ledger.join(Who("bad", 1, 1), "p", 0.0)
    ledger.events(gone, 0, [opened(1, range(1024))])
    ledger.leave(gone, orderly=True, now_s=10.0)
    honest = ledger.join(Who("", 2, 1), "p", 0.0)

    ledger.events(honest, 0, [opened(1, range(8)), buffer(1, chips=tuple(range(8)))])

    assert len(ledger.devices) == holders.MAX_DEVICES
    assert [key for key in ledger.devices if not key[0]] == [("", "t3000", chip) for chip in range(8)]
    ledger.tick(10.0 + holders.FORGET_S)
    assert len(ledger.devices) == holders.MAX_DEVICES
    ledger.tick(11.0 + holders.FORGET_S)
    assert len(ledger.devices) == 8
    assert ledger.devices.series == 16


def test_a_process_that_names_most_devices_gives_way_to_others():
    ended: list[object] = []
    ledger = Ledger(evict=lambda owner, reason: ended.append(owner))
    greedy = ledger.join(Who("bad", 1, 1), "p", 0.0)
    greedy.owners.add("greedy")
    ledger.events(greedy, 0, [opened(1, range(1024))])

    ledger.events(ledger.join(Who("", 2, 1), "p", 0.0), 0, [opened(1, range(8))])

    assert ended == ["greedy"]
    assert sum(device.users for device in ledger.devices.values()) == 8


def test_histories_are_bounded_and_nothing_else_suffers(monkeypatch):
    monkeypatch.setattr(holders, "MAX_SERIES", 10)
    ledger = Ledger()

    ledger.events(ledger.join(Who("", 1, 1), "p", 0.0), 0, [buffer(1, chips=tuple(range(30)))])

    assert ledger.devices.series == sum(device.series for device in ledger.devices.values()) == 10
    assert all(device.accounts["DRAM"].used == 1000 for device in ledger.devices.values())


def test_a_turn_is_a_bounded_piece_of_work_whatever_the_records():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    first, second = tuple(range(256)), tuple(reversed(range(256)))
    buffers = [buffer(n, chips=(first, second)[n % 2]) for n in range(300)]
    frees = [Freed(1, n) for n in range(300)]

    turns, at = 0, 0
    records = [*buffers, *frees]
    while at < len(records):
        at += ledger.take_events(process, at, records[at:])
        turns += 1
        assert ledger._work <= 3 * 2 * 256  # the last record's own

    assert turns > 10
    assert ledger.devices["", "", 7].accounts["DRAM"].used == 0


def test_a_snapshot_is_taken_in_turns_and_ends_exact():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    ledger.events(process, 0, [buffer(n) for n in range(30_000)])
    staged = [buffer(n) for n in range(20_000, 60_000)]
    parts = 0
    while staged:
        del staged[: ledger.stage(process, staged, first_part=not parts)]
        parts += 1

    turns = sum(1 for _ in ledger.apply_staged(process, 90_000))

    assert min(parts, turns) >= 3
    assert process.in_step
    assert ledger.devices["", "", 0].accounts["DRAM"].count == 40_000
    assert ledger.devices["", "", 0].accounts["DRAM"].peak == 40_000_000  # what went was freed before the rest came


def test_a_large_mesh_is_closed_in_turns_before_the_records_behind_it():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    chips = tuple(range(256))
    system = [Reserved(1, chips, "L1", 5, f"{n}", 0) for n in range(100)]
    buffers = [buffer(n, site="a.py:1 in f") for n in range(30_000)]
    ledger.events(process, 0, [opened(1, range(256)), *system, *buffers, buffer(1, size=7, mesh=2)])
    records = [Closed(1, 0), Freed(2, 1)]

    turns = taken = 0
    while taken < len(records) or process.unfinished:
        if process.unfinished:
            ledger.advance(process)
        else:
            taken += ledger.take_events(process, process.next, records[taken:])
        turns += 1
        assert ledger._work <= 3 * 256  # the last reservation's own

    assert turns > 10
    (left,) = process.leftovers
    assert (left.buffers, left.size_bytes) == (30_000, 30_000_000)
    assert not any(account.used or account.count for account in ledger.devices["", "", 0].accounts.values())
    assert list(process.held) == list(process.reserved) == []


def test_a_large_process_leaves_the_totals_at_once_and_is_freed_in_turns():
    gone: list[tuple[object, ...]] = []
    ledger = Ledger(gone=lambda *what: gone.append(what))
    large = ledger.join(Who("", 1, 1), "p", 0.0)
    ledger.events(large, 0, [buffer(n, chips=(0, 1), site="a.py:1 in f") for n in range(30_000)])

    ledger.leave(large, orderly=True, now_s=1.0)

    assert (ledger.bytes_held, ledger.devices["", "", 0].accounts["DRAM"].used) == (0, 0)
    *pauses, answer = Answers(ledger).answer(Query("leaks"), NOBODY)
    turns = len(pauses)
    assert turns > 10
    assert [(left.site, left.buffers) for left in answer.ended[0].held] == [("a.py:1 in f", 30_000)]
    assert gone == [(Who("", 1, 1), 60_000, 60_000_000)]


def test_those_who_leave_in_crowds_are_freed_before_they_pile_up(monkeypatch):
    monkeypatch.setattr(process_table, "LEAVING_BYTES", 10 << 20)
    ledger = Ledger()
    for pid in range(8):
        process = ledger.join(Who("", pid, 1), "p", 0.0)
        ledger.events(process, 0, [buffer(n) for n in range(10_000)])
        ledger.leave(process, orderly=True, now_s=1.0)

        assert ledger.departures._leaving_bytes <= 10 << 20

    assert len(ledger.departures.ended) == 8


def test_places_beyond_those_that_are_summed_up_are_counted_together(monkeypatch):
    monkeypatch.setattr(leftovers, "PLACES_SUMMED", 10)
    sums = leftovers.LeftoverSums("exit")
    for number in range(25):
        sums.add(buffer(number, site=f"{number % 15}"))

    found = sums.list_leftovers()

    assert sum(left.buffers for left in found) == 25
    assert [left.label for left in found][-1] == "more than 0 more places"


@pytest.mark.parametrize("kind", [wire.QUERY, wire.SNAPSHOT, wire.EVENTS])
def test_sessions_that_end_in_the_middle_leave_no_cycles(kind):
    ledger = Ledger()
    answer = Answers(ledger).answer
    role = "monitor" if kind == wire.QUERY else "program"
    session = Session(ledger, Peer(1, "", ""), clock=lambda: 0.0, answer=lambda query: answer(query, NOBODY))
    bodies = {
        wire.QUERY: Query("buffers"),
        wire.SNAPSHOT: (0, 0, 0, True, [buffer(n) for n in range(9000)]),
        wire.EVENTS: (0, 0, [*(buffer(n) for n in range(9000)), Closed(1, 0)]),
    }
    if kind == wire.QUERY:
        ledger.events(ledger.join(Who("", 2, 1), "p", 0.0), 0, [buffer(n) for n in range(9000)])
    session.frames.feed(wire.frame(wire.HELLO, (role, 1, 1, "", "")))
    session.advance()
    session.frames.feed(wire.frame(kind, bodies[kind]))
    while session._job is None and (session.process is None or session.process.unfinished is None):
        session.advance()
    seen = weakref.ref(session)
    gc.disable()  # as in the server
    try:
        session.end()
        while ledger.departures.has_work:
            ledger.departures.advance()
        del session

        assert seen() is None
    finally:
        gc.enable()


def test_counts_that_a_peer_can_drive_up_stay_encodable():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    for _ in range(5):
        ledger.events(process, 2**62, [])
        ledger.snapshot(process, 0, [opened(1, range(4)), *(buffer(n, size=2**40) for n in range(200))])
    ledger.events(process, 2**62, [*(buffer(n, chips=tuple(range(1000)), size=2**40, mesh=5) for n in range(99))])
    ledger.events(process, process.next, [Closed(5, 0)])
    answers = Answers(ledger)

    for what in ("state", "buffers", "history", "leaks"):
        for answer in answers.answer(Query(what, window_s=3600), NOBODY):
            wire.frame(wire.REPLY, answer)


def test_replies_are_bounded_and_say_what_they_leave_out(monkeypatch):
    monkeypatch.setattr(answers_module, "REPLY_BYTES", 50_000)
    ledger = Ledger()
    for pid in range(40):
        process = ledger.join(Who("", pid, 1), WIDE, 0.0)
        records = [buffer(n, chips=tuple(range(40)), site=f"{n}{WIDE}", mesh=n % 3) for n in range(60)]
        ledger.events(process, 0, [opened(0, range(40)), *records, Closed(1, 0), *(Marked(WIDE, 1) for _ in range(99))])
        process.set_links("t3000", [wire.Link(0, 1, 2**60)] * 1000)
    for pid in range(20):
        ledger.leave(ledger.processes["", pid, 1], orderly=False, now_s=1.0)
    for second in range(5):
        ledger.tick(float(second))
    answers = Answers(ledger)

    state = answers.state(NOBODY)
    buffers = answers.buffers(Query("buffers", 3, limit=20_000, system="t3000"))
    histories = answers.histories(Query("history", window_s=3600), 3600.0)
    leaks = answers.leaks()

    for answer in (state, buffers, histories, leaks):
        assert len(wire.frame(wire.REPLY, answer)) < 2 * 50_000
    assert len(state.processes) + state.left_out == 20
    assert state.left_out > 0
    assert len(buffers.buffers) + buffers.left_out == 20 * 20
    assert histories.left_out > 0
    assert leaks.left_out > 0


def test_the_largest_buffers_are_found_among_many():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    ledger.events(process, 0, [buffer(n, size=(n * 7919) % 30_011, chips=((0,), (1,))[n % 2]) for n in range(30_000)])

    found = Answers(ledger).buffers(Query("buffers", 0, limit=50))

    wanted = sorted((r.size_bytes for r in process.held.values() if 0 in r.chips), reverse=True)
    assert [b.size_bytes for b in found.buffers] == wanted[:50]
    assert found.left_out == 15_000 - 50


def test_free_space_of_many_buffers_is_read_in_turns_and_is_right():
    ledger = Ledger()
    process = ledger.join(Who("", 1, 1), "p", 0.0)
    spread = [buffer(n, chips=((0, 1), (1, 0), (0,))[n % 3], address=n * 1000) for n in range(20_000)]
    ledger.events(process, 0, [opened(1, range(2)), *spread])
    answers = Answers(ledger)

    answers.free_space.refresh(5.0)
    turns = 0
    while answers.free_space.has_work:
        answers.free_space.advance()
        turns += 1

    devices = answers.state(NOBODY).devices
    pools = [device.pools["DRAM"] for device in devices]
    assert turns > 10
    assert [p.free_in_bank_bytes for p in pools] == [(1 << 30) - 20_000 * 300, (1 << 30) - 13_334 * 300]
    assert pools[0].largest_free_in_bank_bytes == (1 << 30) - 19_999 * 1000 - 300
