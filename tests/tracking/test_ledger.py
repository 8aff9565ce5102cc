"""The ledger with plain values: no sockets, no clocks."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.records import Allocated, ChipFacts, Closed, Freed, Marked, Opened, Reserved
from ttmesh.tracking import free_space, holders, process_table
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.history import History
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.process_table import LedgerError
from ttmesh.tracking.spans import Free, Span, holes
from ttmesh.tracking.state import ServerState
from ttmesh.tracking.wire import Query, Who

ME = Who("", 100, 1)
YOU = Who("", 200, 1)


def buffer(number: int, size: int = 1000, *, chips=(0, 1), kind="DRAM", address=0, mesh=1, site="") -> Allocated:
    return Allocated(mesh, number, chips, kind, address, size, size // 2, 2, 16, "op", number, site)


def mesh(number: int = 1, chips=(3, 0), parent: int | None = None, system: str = "n300") -> Opened:
    facts = tuple(
        ChipFacts(chip, i, (0, i), "wormhole_b0", 2, 10_000, 4, 4_000, False, l1_base=1000, l1_small_bytes=500)
        for i, chip in enumerate(chips)
    )
    return Opened(number, parent, (1, len(chips)), system, facts, 0)


def run(steps: Generator[None, None, object]) -> object:
    """What a generator with pauses returns."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def used(ledger: Ledger, chip: int = 0, kind: str = "DRAM", host: str = "", system: str = "") -> tuple[int, int]:
    account = ledger.devices[host, system, chip].accounts[kind]
    return account.used, account.count


def state(ledger: Ledger):
    return Answers(ledger).state(ServerState(1, 1, 0.0, 0.0, 0, 0, 0))


def test_two_processes_at_one_address_are_two_buffers():
    ledger = Ledger()
    for who in (ME, YOU):
        ledger.events(ledger.join(who, "p", 0.0), 0, [buffer(1)])

    assert used(ledger) == (2000, 2)
    assert [p.usage[""][0]["DRAM"].used_bytes for p in state(ledger).processes] == [1000, 1000]


def test_a_pid_used_again_is_another_process():
    ledger = Ledger()
    before = ledger.join(ME, "p", 0.0)
    ledger.events(before, 0, [buffer(1)])
    after = ledger.join(Who("", 100, 2), "p", 0.0)
    ledger.events(after, 0, [buffer(1, 5)])

    ledger.leave(before, orderly=False, now_s=1.0)

    assert used(ledger) == (5, 1)


def test_the_same_device_id_on_another_host_is_another_device():
    ledger = Ledger()
    ledger.events(ledger.join(ME, "p", 0.0), 0, [buffer(1)])
    ledger.events(ledger.join(Who("far", 100, 1), "p", 0.0), 0, [buffer(1, 7)])

    assert used(ledger) == (1000, 1)
    assert used(ledger, host="far") == (7, 1)


def test_a_record_told_twice_counts_once():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.snapshot(process, 1, [buffer(1)])

    assert ledger.events(process, 1, [buffer(1), buffer(2), Freed(1, 2), Freed(1, 2), Freed(1, 77)])

    assert used(ledger) == (1000, 1)


def test_records_sent_again_are_skipped():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.snapshot(process, 0, [])
    ledger.events(process, 0, [buffer(1), Freed(1, 1), buffer(2)])

    ledger.events(process, 1, [Freed(1, 1), buffer(2), buffer(3)])

    assert used(ledger) == (2000, 2)
    assert (process.next, process.missed) == (4, 0)


def test_a_gap_is_counted_and_a_snapshot_mends_it():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.snapshot(process, 0, [])

    in_step = ledger.events(process, 10, [buffer(5)])
    ledger.snapshot(process, 12, [buffer(6), buffer(7, 1)])

    assert not in_step
    assert (process.missed, process.in_step) == (11, True)
    assert used(ledger) == (1001, 2)


def test_a_process_thought_dead_goes_on_where_it_was():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [buffer(1), buffer(2)])
    ledger.leave(process, orderly=False, now_s=1.0)

    again = ledger.join(ME, "p", 2.0)
    ledger.snapshot(again, 5, [buffer(1)])

    assert not ledger.departures.ended
    assert again.missed == 3
    assert used(ledger) == (1000, 1)


def test_a_closed_mesh_holds_nothing_and_what_it_held_is_remembered_by_place():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    held = [buffer(1, site="a.py:1 in f"), buffer(2, site="a.py:1 in f"), buffer(3, 10, mesh=2)]
    ledger.events(process, 0, [mesh(), Reserved(1, (0,), "L1", 64, "dispatch", 0), *held, Closed(1, 9)])

    assert used(ledger) == (10, 1)
    assert used(ledger, system="n300") == used(ledger, kind="SYSTEM_L1", system="n300") == (0, 0)
    (left,) = process.leftovers
    assert (left.end, left.site, left.buffers, left.size_bytes) == ("close", "a.py:1 in f", 2, 4000)


def test_a_reservation_told_twice_is_replaced():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [Reserved(1, (0,), "L1", 64, "dispatch", 0), Reserved(1, (0,), "L1", 80, "dispatch", 1)])
    ledger.events(process, 2, [Reserved(1, (0,), "DRAM", 5, "dispatch", 1)])

    assert used(ledger, kind="SYSTEM_L1") == (80, 0)
    assert used(ledger, kind="SYSTEM_DRAM") == (5, 0)


def test_peaks_survive_frees_ticks_and_the_deaths_of_others():
    ledger = Ledger()
    process, other = ledger.join(ME, "p", 0.0), ledger.join(YOU, "p", 0.0)
    ledger.events(other, 0, [mesh()])
    ledger.events(process, 0, [mesh(), buffer(1), buffer(2), Freed(1, 1), Freed(1, 2)])
    ledger.tick(1.0)
    ledger.events(process, 5, [buffer(3)])
    ledger.leave(process, orderly=True, now_s=2.0)

    assert state(ledger).devices[0].pools["DRAM"].peak_bytes == 2000
    assert used(ledger, system="n300") == (0, 0)


def test_devices_of_another_system_are_other_devices():
    ledger = Ledger()
    ledger.events(ledger.join(ME, "p", 0.0), 0, [mesh(), buffer(1, 1000)])
    ledger.events(ledger.join(YOU, "p", 0.0), 0, [mesh(system="galaxy"), buffer(1, 7)])

    found = {d.system: d.usage["DRAM"].used_bytes for d in state(ledger).devices if d.physical_id == 0}

    assert found == {"n300": 1000, "galaxy": 7}
    assert [b.size_bytes for b in Answers(ledger).buffers(Query("buffers", 0, system="galaxy")).buffers] == [7]


@pytest.mark.parametrize("end", ["close", "exit", "another"])
def test_devices_go_with_their_meshes_and_peaks_with_them(end):
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [mesh(1, (0, 1), system="galaxy"), buffer(1, 5000), Freed(1, 1)])
    ledger.tick(1.0)
    if end == "exit":
        ledger.leave(process, orderly=True, now_s=2.0)
    else:
        ledger.events(process, 3, [Closed(1, 0)])
    if end == "exit":
        process = ledger.join(YOU, "p", 3.0)
    ledger.events(process, process.next, [mesh(2, (0, 1), system="galaxy" if end == "another" else "n300")])
    ledger.events(process, process.next, [buffer(2, 10, mesh=2)])

    devices = state(ledger).devices
    assert {(d.system, d.physical_id) for d in devices} == {
        ("galaxy" if end == "another" else "n300", i) for i in (0, 1)
    }
    assert {d.pools["DRAM"].peak_bytes for d in devices} == {10}
    found = Answers(ledger).histories(Query("history", window_s=60), 4.0)
    before = [one for one in found.series if one.pool == "DRAM" and one.system == "galaxy"]
    assert {found.points_of(one)[0].high for one in before} == {5000}  # it stays


def test_the_history_of_a_device_begins_when_it_is_opened():
    ledger = Ledger()
    ledger.events(ledger.join(ME, "p", 99.5), 0, [mesh(), buffer(1)])
    ledger.tick(100.0)

    found = Answers(ledger).histories(Query("history", window_s=86_400), 104.0)

    assert {(one.physical_id, one.pool, found.points_of(one)[0].time_s) for one in found.series} == {
        (chip, pool, 100) for chip in (0, 1, 3) for pool in ("DRAM", "L1")
    }
    assert len(found.curves) == 2  # chips that hold the same share one


def test_a_reshaped_mesh_keeps_its_peaks():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [mesh(chips=(0, 1)), buffer(1, 5000), Freed(1, 1), mesh(chips=(1, 0))])

    assert {d.pools["DRAM"].peak_bytes for d in state(ledger).devices} == {5000}


def test_the_capacity_of_a_chip_is_its_own_whoever_reserves_some():
    ledger = Ledger()
    for who in (ME, YOU):
        process = ledger.join(who, "p", 0.0)
        ledger.events(process, 0, [mesh(), Reserved(1, (3, 0), "L1", 700, "dispatch", 0)])

        assert {d.pools["L1"].capacity_bytes for d in state(ledger).devices} == {4 * (1000 + 4000 + 500)}
    assert {d.pools["L1"].used_bytes for d in state(ledger).devices} == {1400}


def test_a_buffer_that_comes_before_its_mesh_is_counted_on_the_meshs_system():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    system = Reserved(1, (3, 0), "L1", 700, "dispatch", 0)
    ledger.events(process, 0, [buffer(1, chips=(3, 0)), system])  # as a forked child or one that connects again may

    ledger.snapshot(process, 2, [mesh(), system, buffer(1, chips=(3, 0))])

    assert {(d.system, d.pools["DRAM"].used_bytes, d.pools["L1"].used_bytes) for d in state(ledger).devices} == {
        ("n300", 1000, 700)
    }
    ledger.events(process, 2, [Freed(1, 1)])
    assert used(ledger, system="n300") == used(ledger) == (0, 0)


def test_equal_leftovers_of_many_meshes_are_one():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    for number in range(1, 301):
        ledger.events(
            process, process.next, [mesh(number), buffer(number, site="a.py:1 in f", mesh=number), Closed(number, 0)]
        )

    (left,) = process.leftovers
    assert (left.buffers, left.times, left.size_bytes) == (300, 300, 600_000)
    assert state(ledger).devices == []


def test_history_has_least_most_and_last_of_every_second():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [buffer(1), buffer(2), Freed(1, 1)])
    ledger.tick(100.0)
    ledger.tick(101.0)
    ledger.events(process, 3, [Freed(1, 2), buffer(3, 7)])
    ledger.tick(102.0)

    answer = Answers(ledger).histories(Query("history", 0, window_s=10), 104.0)

    assert [tuple(p) for p in answer.points_of(answer.series[0])] == [
        (100, 0, 2000, 1000),
        (101, 1000, 1000, 1000),
        (102, 0, 1000, 7),
        (103, 7, 7, 7),
        (104, 7, 7, 7),
    ]


def test_history_keeps_an_hour_of_seconds_and_a_day_of_minutes():
    history = History()
    for second in range(0, 100_000, 7):
        history.push(second, second, second, second)

    seconds = history.window(now_s=99_999, length_s=3600).points()
    minutes = history.window(now_s=99_999, length_s=86_400).points()

    assert len(seconds) == 3600
    assert [p.time_s for p in seconds] == list(range(96_400, 100_000))
    assert [p.last for p in seconds] == [t - t % 7 for t in range(96_400, 100_000)]
    assert len(minutes) == 1440
    assert all(p.low // 60 == p.high // 60 == p.time_s // 60 for p in minutes)


def test_histories_are_summed_up_to_the_points_asked_for_and_lose_no_extreme():
    history = History()
    for second in range(1000, 5000):
        history.push(second, second % 100, second % 1000, second % 100)

    few = history.window(now_s=5100.5, length_s=86_400).points(100)
    hour = history.window(now_s=5100.5, length_s=3600).points(100)
    part = history.window(now_s=5100.5, length_s=30).points(100)

    assert len(few) <= 100
    assert max(p.high for p in few) == 999
    assert few[-1].last == 99
    assert 50 < len(hour) <= 100
    assert (min(p.low for p in hour), max(p.high for p in hour)) == (0, 999)
    assert hour[0].time_s == 1501 <= hour[1].time_s
    assert [p.last for p in part] == [99] * 31


def test_the_coordinator_is_the_first_chip_of_the_root_mesh():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [mesh(1, (3, 0)), mesh(2, (0,), parent=1)])

    assert {d.physical_id: d.is_coordinator for d in state(ledger).devices} == {0: False, 3: True}


def test_largest_free_block_and_fragmentation_come_from_the_holes():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    low, high = buffer(1, 2000, address=2000), buffer(2, 2000, address=6000)
    ledger.events(process, 0, [mesh(chips=(0, 1)), low, high, buffer(3, 1000, kind="CB", address=1000)])

    dram, l1 = state(ledger).devices[0].pools["DRAM"], state(ledger).devices[0].pools["L1"]

    assert (dram.capacity_bytes, dram.used_bytes) == (20_000, 4000)
    assert (dram.free_in_bank_bytes, dram.largest_free_in_bank_bytes) == (8000, 3000)
    assert dram.fragmentation == pytest.approx(1 - 3000 / 8000)
    assert l1.capacity_bytes == 4 * 5500
    assert (l1.free_in_bank_bytes, l1.largest_free_in_bank_bytes, l1.fragmentation) == (3500, 3500, 0.0)


def test_limits_are_refusals_with_a_reason(monkeypatch):
    monkeypatch.setattr(process_table, "MAX_PROCESS_BYTES", 20_000)
    monkeypatch.setattr(holders, "MAX_DEVICES", 4)
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)

    with pytest.raises(LedgerError, match="one process takes more than 20000 bytes"):
        ledger.events(process, 0, [buffer(number) for number in range(100)])
    with pytest.raises(LedgerError, match="device 6 would be one more than the 4 that are kept"):
        ledger.events(process, process.next, [*(Freed(1, n) for n in range(100)), buffer(4, chips=(4, 5, 6))])


def test_marks_are_kept_in_order_and_not_for_ever():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [Marked(f"step {i}", i) for i in range(150)])

    assert [m.label for m in state(ledger).processes[0].marks][-2:] == ["step 148", "step 149"]
    assert len(process.marks) == 100


def test_a_mesh_that_is_reshaped_has_new_coordinates_and_keeps_its_buffers():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    ledger.events(process, 0, [mesh(chips=(3, 0)), Reserved(1, (3,), "L1", 64, "dispatch", 0), buffer(1, chips=(3, 0))])

    ledger.events(process, 3, [mesh(chips=(0, 3)), Reserved(1, (0,), "L1", 64, "dispatch", 1)])

    devices = {d.physical_id: d for d in state(ledger).devices}
    assert {chip: d.coord for chip, d in devices.items()} == {0: (0, 0), 3: (0, 1)}
    assert {chip: d.is_coordinator for chip, d in devices.items()} == {0: True, 3: False}
    assert {chip: d.usage["DRAM"].used_bytes for chip, d in devices.items()} == {0: 1000, 3: 1000}
    assert {chip: d.usage["SYSTEM_L1"].used_bytes for chip, d in devices.items()} == {0: 64, 3: 0}


def test_a_submesh_does_not_change_the_coordinates_of_its_chips():
    ledger = Ledger()
    ledger.events(ledger.join(ME, "p", 0.0), 0, [mesh(1, (3, 0)), mesh(2, (0,), parent=1)])

    assert {d.physical_id: d.coord for d in state(ledger).devices} == {0: (0, 1), 3: (0, 0)}


def test_the_peak_of_a_pool_is_what_its_classes_reached_together():
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    trace = buffer(2, 500, kind="TRACE")
    ledger.events(process, 0, [buffer(1, 1000), Freed(1, 1), trace, buffer(3, 300), Freed(1, 2), Freed(1, 3)])
    ledger.tick(1.0)
    ledger.events(process, 6, [buffer(4, 700)])

    device = state(ledger).devices[0]
    assert {kind: usage.peak_bytes for kind, usage in device.usage.items()} == {"DRAM": 1000, "TRACE": 500}
    assert (device.pools["DRAM"].used_bytes, device.pools["DRAM"].peak_bytes) == (700, 1000)
    ledger.events(process, 7, [buffer(5, 400, kind="TRACE"), Freed(1, 4)])
    assert state(ledger).devices[0].pools["DRAM"].peak_bytes == 1100


def test_a_process_that_leaves_in_the_middle_of_a_batch_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(process_table, "MAX_PROCESS_BYTES", 20_000)
    ledger = Ledger()
    process = ledger.join(ME, "p", 0.0)
    with pytest.raises(LedgerError, match="more than 20000 bytes"):
        ledger.events(process, 0, [buffer(number) for number in range(100)])

    ledger.leave(process, orderly=False, now_s=1.0)

    assert used(ledger) == (0, 0)
    assert state(ledger).devices == []


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 2), st.sampled_from(["DRAM", "L1"]))))
def test_totals_equal_the_tables_after_any_history(steps):
    ledger = Ledger()
    processes = {i: ledger.join(Who("", i, 1), "p", 0.0) for i in range(3)}
    for what, number, who, kind in steps:
        process = processes[who]
        if what == 0:
            ledger.events(process, process.next, [buffer(number, number * 10, kind=kind, chips=(who, who + 1))])
        elif what == 1:
            ledger.events(process, process.next, [Freed(1, number)])
        elif what == 2:
            ledger.snapshot(process, process.next + 2, [buffer(number, 5, kind=kind)])
        elif what == 3:
            ledger.leave(process, orderly=False, now_s=0.0)
            processes[who] = ledger.join(Who("", who, 1), "p", 0.0)
        elif what == 4:  # also one that is open already, as another system
            ledger.events(process, process.next, [mesh(number % 2, range(number), system=kind)])
            ledger.events(process, process.next, [Reserved(number % 2, (0,), kind, 8, "dispatch", 0)])
        else:
            ledger.events(process, process.next, [Closed(number % 2, 0)])

    for chip in range(7):
        here = [device for (_, _, physical_id), device in ledger.devices.items() if physical_id == chip]
        for kind in ("DRAM", "L1"):
            held = [
                r.size_bytes
                for p in processes.values()
                for r in p.held.values()
                if chip in r.chips and r.buffer_type == kind
            ]
            accounts = [device.accounts[kind] for device in here if kind in device.accounts]
            assert (sum(a.used for a in accounts), sum(a.count for a in accounts)) == (sum(held), len(held))
            assert all(account.peak >= account.used for account in accounts)
        for device in here:
            meshes = [
                m for p in processes.values() for m in {m.system: m for m in p.meshes.values() if chip in m.chips}
            ]
            assert device.openers == meshes.count(device.system)
            reserved = [r for p in processes.values() for r in p.reserved.values() if chip in r.chips]
            system = sum(a.used for d in here for name, a in d.accounts.items() if name.startswith("SYSTEM"))
            assert system == sum(r.size_bytes for r in reserved)
    for process in processes.values():
        ledger.leave(process, orderly=True, now_s=1.0)
    assert not any(d.is_open or d.users or d.coordinates for d in ledger.devices.values())


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 40))))
def test_holes_are_exactly_what_nothing_covers(pieces):
    taken = [Span(start, start + length) for start, length in pieces]

    found = holes(Span(10, 100), taken)

    covered = {a for span in taken for a in range(*span)}
    assert {a for hole in found for a in range(*hole)} == set(range(10, 100)) - covered
    merged = run(free_space._union(taken))
    measured = run(free_space._measure(Span(10, 100), merged))
    assert measured == Free(sum(h.length for h in found), max((h.length for h in found), default=0))
