"""What a client tells, without sockets and threads."""

from __future__ import annotations

from collections.abc import Iterable

from ttmesh.base.records import Allocated, ChipFacts, Freed, LinkTransfer, Marked, Opened, Record, Reserved
from ttmesh.tracking import wire
from ttmesh.tracking.outbox import Outbox


def allocated(number: int, *, label: str = "", mesh: int = 1) -> Allocated:
    return Allocated(mesh, number, tuple(range(32)), "DRAM", 0, 8, 8, 1, 8, label)


def told(frames: Iterable[bytes]) -> list[wire.Message]:
    stream = wire.Frames()
    found = []
    for frame in frames:
        stream.feed(frame)
        taken = stream.take()
        assert taken is not None
        found.append(wire.message(*taken))
    return found


def outbox(held: list[Record], *, sites: dict[tuple[int, int], str] | None = None, first=(0, 0)) -> Outbox:
    return Outbox(lambda: list(held), {} if sites is None else sites, first=first)


def test_records_are_numbered_without_gaps():
    box = outbox([])
    box.queue.extend(allocated(n) for n in range(20_000))

    batches = [batch for _ in range(2) for batch in told(box.take())]

    assert [(b.first, len(b.records)) for b in batches] == [
        *((n, 2048) for n in range(0, 18_432, 2048)),
        (18_432, 1568),
    ]
    assert [r.buffer_id for b in batches for r in b.records] == list(range(20_000))


def test_long_call_sites_and_labels_still_fit_into_frames():
    box = outbox([])
    box.queue.extend(allocated(n, label="é" * 9000) for n in range(1024))
    box.queue.append(allocated(1024, label="é" * 999_999))
    for record in box.queue:
        record.site = "é" * 4000

    batches = told(box.take())

    assert [r.buffer_id for b in batches for r in b.records] == list(range(1025))
    assert [b.first for b in batches][:3] == [0, 32, 64]
    assert len(batches[-1].records[-1].label) == 500


def test_names_that_are_no_text_are_told_with_question_marks():
    box = outbox([])
    odd = "caf\udce9.py"
    first = allocated(1, label=odd)
    first.site = odd
    chips = (ChipFacts(0, 0, (0,), odd, 1, 1, 1, 1, False),)
    box.queue.extend(
        [first, Marked("\ud800", 1), Opened(1, None, (1,), odd, chips, 1), Reserved(1, (0,), "L1", 1, odd, 1)]
    )

    ((batch),) = told(box.take())
    hello = told([wire.frame(wire.HELLO, wire.Hello("program", 1, 1, odd, odd, "t"))])[0]

    allocation, mark, opened, reserved = batch.records
    assert {allocation.label, allocation.site, opened.system, opened.chips[0].arch, reserved.label} == {"caf?.py"}
    assert (mark.label, hello.name, hello.host) == ("?", "caf?.py", "caf?.py")


def test_a_record_that_cannot_be_told_costs_itself_and_leaves_a_gap():
    box = outbox([])
    box.queue.extend([allocated(1), Marked(object(), 1), allocated(2), Freed(2**70, 1), allocated(3)])

    batches = told(box.take())

    assert [(b.first, [r.buffer_id for r in b.records]) for b in batches if b.records] == [(0, [1]), (2, [2]), (4, [3])]
    assert box.next == 5


def test_names_of_a_megabyte_are_cut():
    box = outbox([])
    name = "x" * (1 << 20)
    box.queue.extend([Marked(name, 1), Reserved(1, (0,), "L1", 1, name, 1)])

    mark, reserved = [record for batch in told(box.take()) for record in batch.records]

    assert {len(mark.label), len(reserved.label)} == {500}


def test_discarded_and_lost_records_have_numbers_too():
    box = outbox([])
    box.queue.extend(allocated(n) for n in range(10))
    box.drop()
    box.queue.append(Marked("here", 0))

    (batch,) = told(box.take())

    assert batch.first == 10
    assert box.gap


def test_the_queue_is_bounded_by_dropping_all_of_it(monkeypatch):
    monkeypatch.setattr("ttmesh.tracking.outbox.MOST_QUEUED", 5)
    box = outbox([])
    box.queue.extend(allocated(n) for n in range(5))
    box.limit()
    kept = len(box.queue)
    box.queue.append(allocated(5))
    box.limit()

    (part,) = told(box.snapshot())

    assert kept == 5
    assert box.queue == []
    assert (part.next, box.gap) == (6, False)


def test_what_is_dropped_while_frames_are_sent_is_numbered_after_them(monkeypatch):
    monkeypatch.setattr("ttmesh.tracking.outbox.MOST_QUEUED", 5)
    box = outbox([])
    box.queue.extend(allocated(n) for n in range(4096))
    frames = box.take()
    first = next(frames)
    box.queue.extend(allocated(n) for n in range(6))
    box.limit()

    batches = told([first, *frames])

    assert [b.first for b in batches] == [0, 2048]
    assert box.next == 4102


def test_a_snapshot_comes_in_parts_and_says_which_record_follows():
    box = outbox([allocated(n) for n in range(5000)])
    box.queue.append(Freed(1, 1))
    told(box.take())

    parts = told(box.snapshot())

    assert [(p.next, p.part, p.last, len(p.records)) for p in parts] == [
        (1, 0, False, 2048),
        (1, 1, False, 2048),
        (1, 2, True, 904),
    ]


def test_an_empty_snapshot_is_told_too():
    (part,) = told(outbox([]).snapshot())

    assert (part.last, part.records) == (True, [])


def test_a_record_that_comes_while_the_holdings_are_read_makes_it_look_again():
    looks: list[int] = []
    box = Outbox(lambda: busy(), {})

    def busy() -> list[Record]:
        looks.append(1)
        if len(looks) < 3:
            box.queue.append(allocated(len(looks)))
        return [allocated(n) for n in range(1, len(looks))]

    (part,) = told(box.snapshot())

    assert len(looks) == 3
    assert [r.buffer_id for r in part.records] == [1, 2]


def test_call_sites_are_forgotten_with_their_buffers():
    sites = {(1, n): f"a.py:{n}" for n in range(4)}
    box = outbox([allocated(2)], sites=sites)
    box.queue.extend([allocated(0), Freed(1, 0)])
    told(box.take())
    (part,) = told(box.snapshot())

    assert part.records[0].site == "a.py:2"
    assert sites == {(1, 2): "a.py:2"}


def test_a_forked_child_tells_only_of_its_own():
    system = Reserved(1, (0,), "L1", 8, "ring", 0)
    held: list[Record] = [Opened(1, None, (1, 1), "n150", (), 0), system, allocated(1), allocated(2)]
    box = outbox(held, first=(2, 3))
    before = told(box.snapshot())[0]
    held.append(allocated(3))

    after = told(box.snapshot())[0]

    assert [type(r) for r in before.records] == [Opened]
    assert [r.buffer_id for r in after.records[1:]] == [3]


def test_traffic_is_summed_told_once_and_told_again_to_the_next_server():
    box = outbox([])
    box.crossings.extend([LinkTransfer(0, 1, 10), LinkTransfer(0, 1, 5), LinkTransfer(-1, 0, 7)])

    (traffic,) = told([box.traffic()])
    assert [(link.source, link.target, link.size_bytes) for link in traffic.links] == [(0, 1, 15), (-1, 0, 7)]
    assert box.traffic() == b""
    box.resend_traffic()
    assert box.traffic() != b""
