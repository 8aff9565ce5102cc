"""Whom the server works for next."""

from __future__ import annotations

from collections import Counter

from ttmesh.tracking.server_schedule import ASKS_LITTLE_S, LEAD_S, MAX_ANSWERS, ServerSchedule

STEP_S = 0.001


def work(schedule: ServerSchedule[str], steps: int) -> list[str]:
    """The owners that are served; everybody always has more to do. A name that begins with q is a query's."""
    served = []
    for _ in range(steps):
        client = schedule.choose()
        owner = client.split(".")[0]
        asks = owner.startswith("q")
        schedule.charge(owner, STEP_S, asks=asks)
        schedule.add(client, owner, asks=asks, has_begun=asks)
        served.append(owner)
    return served


def add(schedule: ServerSchedule[str], *clients: str) -> None:
    for client in clients:
        owner = client.split(".")[0]
        schedule.add(client, owner, asks=owner.startswith("q"), has_begun=False)


def test_owners_share_equally_however_many_connections_they_have():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "a.1", *(f"b.{n}" for n in range(100)))

    assert Counter(work(schedule, 100)) == {"a": 50, "b": 50}


def test_all_connections_of_an_owner_send_in_turns():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "a.1", "a.2", "a.3")

    assert [schedule.choose() for _ in range(4)] == ["a.1", "a.2", "a.3", "a.1"]


def test_a_query_comes_before_records_until_queries_are_far_ahead_then_they_alternate():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "a.1", "q.1")

    served = work(schedule, 1000)

    ahead = round(LEAD_S / STEP_S)
    assert served[:ahead] == ["q"] * ahead
    assert Counter(served[2 * ahead :])["a"] >= 0.5 * len(served[2 * ahead :])


def test_an_owner_who_asked_for_much_comes_after_one_who_asks_little():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "q1.1")
    work(schedule, round(ASKS_LITTLE_S / STEP_S))
    schedule.charge("a", 2 * LEAD_S, asks=False)
    add(schedule, "q2.1")

    assert work(schedule, 5) == ["q2"] * 5
    for _ in range(10):
        schedule.tick()  # what was long ago counts no more
    assert set(work(schedule, 10)) == {"q1", "q2"}


def test_an_owner_who_was_idle_does_not_get_everything_at_first():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "a.1", "b.1")
    work(schedule, 100)
    add(schedule, "c.1")

    assert Counter(work(schedule, 30)) == {"a": 10, "b": 10, "c": 10}


def test_an_owners_queries_are_answered_one_after_the_other():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "q.1", "q.2")

    assert schedule.choose() == "q.1"
    schedule.add("q.1", "q", asks=True, has_begun=True)
    assert schedule.choose() == "q.1"
    schedule.add("q.1", "q", asks=True, has_begun=False)  # answered, and it has asked again
    assert schedule.choose() == "q.2"
    schedule.discard("q.2", "q")
    assert schedule.choose() == "q.1"


def test_answers_in_the_making_are_bounded_but_those_who_ask_little_have_room_of_their_own():
    schedule: ServerSchedule[str] = ServerSchedule()
    for n in range(MAX_ANSWERS + 1):
        schedule.charge(f"q{n}", ASKS_LITTLE_S, asks=True)
        schedule.add(f"q{n}.1", f"q{n}", asks=True, has_begun=n < MAX_ANSWERS)

    served = set(work(schedule, 50 * MAX_ANSWERS))
    assert f"q{MAX_ANSWERS}" not in served  # it waits until another is answered
    add(schedule, "q.1")
    assert work(schedule, 3) == ["q"] * 3
    schedule.discard("q.1", "q")
    schedule.discard("q0.1", "q0")
    assert f"q{MAX_ANSWERS}" in work(schedule, 50 * MAX_ANSWERS)


def test_nothing_is_left_of_those_who_have_gone():
    schedule: ServerSchedule[str] = ServerSchedule()
    add(schedule, "a.1", "q.1")
    work(schedule, 10)
    schedule.discard("a.1", "a")
    schedule.discard("q.1", "q")
    schedule.discard("never", "seen")

    assert not schedule
    for _ in range(20):
        schedule.tick()
    assert schedule._owners == {}
