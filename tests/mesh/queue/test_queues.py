"""Command queues: order, events, ownership, deadlocks, under every schedule."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttmesh.base import settings as ttmesh_settings
from ttmesh.base.geometry import MeshShape
from ttmesh.base.records import Enqueued, Finished
from ttmesh.base.signals import signals
from ttmesh.mesh.device.opening import close_mesh_device, open_mesh_device
from ttmesh.mesh.functions.queue_functions import (
    command_queue,
    event_query,
    event_synchronize,
    record_event,
    synchronize_device,
    synchronize_devices,
    synchronize_mesh_device,
    wait_for_event,
)
from ttmesh.mesh.queue.command_queue import Command

SCHEDULES = ["eager", "async", "adversarial"]


@pytest.fixture(params=SCHEDULES)
def scheduled(request, bytes_on):
    ttmesh_settings.override("TTMESH_SCHEDULE", request.param)
    mesh = open_mesh_device(MeshShape(1, 2), num_command_queues=2)
    yield bytes_on(mesh)
    if mesh.is_open():
        close_mesh_device(mesh)


def run_program(bytes_on, schedule: str, seed: int, steps: int) -> list[int]:
    """A random program on two queues in which every step waits for the one before it."""
    ttmesh_settings.override("TTMESH_SCHEDULE", schedule)
    ttmesh_settings.override("TTMESH_SEED", seed)
    mesh = open_mesh_device(MeshShape(1, 2), num_command_queues=2)
    program, rng = bytes_on(mesh), random.Random(seed)
    buffers = [program.buffer() for _ in range(4)]
    for i, buffer in enumerate(buffers):
        program.write(buffer, i + 1, 0)
    synchronize_device(mesh)
    for _ in range(steps):
        queue = rng.randrange(2)
        a, b, out = (rng.choice(buffers) for _ in range(3))
        if rng.random() < 0.3:
            program.write(out, rng.randrange(256), queue)
        else:
            program.add(a, b, out, queue)
        wait_for_event(1 - queue, record_event(mesh, queue))
    values = [program.read(buffer, rng.randrange(2)) for buffer in buffers]
    close_mesh_device(mesh)
    return values


@settings(
    deadline=None,
    max_examples=15,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 10**6))
def test_a_program_with_all_events_gives_the_same_under_every_schedule(bytes_on, seed: int) -> None:
    results = {schedule: run_program(bytes_on, schedule, seed, 25) for schedule in SCHEDULES}

    assert results["async"] == results["eager"]
    assert results["adversarial"] == results["eager"]


def test_a_forgotten_wait_gives_a_wrong_answer_under_the_adversarial_schedule(bytes_on) -> None:
    ttmesh_settings.override("TTMESH_SCHEDULE", "adversarial")
    mesh = open_mesh_device(MeshShape(1, 2), num_command_queues=2)
    program = bytes_on(mesh)
    source, out = program.buffer(), program.buffer()

    program.write(source, 9, cq_id=1)  # nobody waits for it
    program.add(source, source, out, cq_id=0)
    late = program.read(out, cq_id=0)
    synchronize_device(mesh)
    program.add(source, source, out, cq_id=0)
    program.write(source, 1, cq_id=1)  # overwrites what the addition still has to read
    early = program.read(out, cq_id=0)
    close_mesh_device(mesh)

    assert late == 0
    assert early == 2


def test_a_queue_runs_in_order(scheduled) -> None:
    buffer = scheduled.buffer()

    for value in range(20):
        scheduled.write(buffer, value, 0)

    assert scheduled.read(buffer, 0) == 19


def test_a_queue_waits_for_an_event_of_the_other(scheduled) -> None:
    source, out = scheduled.buffer(), scheduled.buffer()

    scheduled.write(source, 7, 1)
    event = record_event(scheduled.mesh, 1)
    wait_for_event(0, event)
    scheduled.add(source, source, out, 0)

    assert scheduled.read(out, 0) == 14
    assert event_query(event)


def test_event_synchronize_returns_when_the_event_is_set(scheduled) -> None:
    buffer = scheduled.buffer()
    scheduled.write(buffer, 3, 0)
    event = record_event(scheduled.mesh, 0)

    event_synchronize(event)

    assert event.done
    assert repr(event).startswith(f"MeshEvent(id={event.id}, device_id={scheduled.mesh.id()}, cq_id=0")


def test_all_names_of_synchronize_wait_for_everything(scheduled) -> None:
    for wait in (synchronize_device, synchronize_mesh_device, synchronize_devices):
        buffer = scheduled.buffer()
        scheduled.write(buffer, 5, 0)
        scheduled.write(buffer, 6, 0)
        wait(scheduled.mesh)
        assert all(not queue.pending for queue in scheduled.mesh.queues)


def test_waiting_for_what_nobody_will_do_is_a_deadlock_that_says_who_waits_for_what(scheduled) -> None:
    queue = scheduled.mesh.queue(0)
    queue.enqueue(
        Command("recv_async", lambda reads, writes: None, ready=lambda: False, waits_for="a send from mesh 9")
    )

    with pytest.raises(RuntimeError, match=r"deadlock: queue 0 of .*recv_async waits for a send from mesh 9"):
        queue.finish()

    queue.pending.clear()


def test_a_failing_command_raises_where_the_host_waits(scheduled) -> None:
    def fail(reads, writes) -> None:
        raise ValueError("bad lanes")

    with pytest.raises(ValueError, match="bad lanes"):
        scheduled.mesh.queue(0).enqueue(Command("fail", fail))
        scheduled.mesh.queue(0).finish()
    scheduled.mesh.queue(0).pending.clear()


def test_command_queue_chooses_the_queue_for_a_block(program) -> None:
    with command_queue(1):
        assert program.mesh.queue().id == 1
    assert program.mesh.queue().id == 0


def test_a_queue_that_does_not_exist_is_refused(program) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"cq_id 2 is out of range; expected one of \[0, 1\]. Pass 0, or 1 on a mesh with two queues.",
    ):
        program.mesh.queue(2)


def test_a_second_queue_must_wait_before_it_launches_programs(program) -> None:
    mesh = program.mesh

    def launch() -> None:
        mesh.launch(Command("program", lambda reads, writes: None, programs=1))

    launch()
    text = r"Sub device id 0 currently in use by cq 0\. Can't enqueue program from cq 1"
    with pytest.raises(RuntimeError, match=text), command_queue(1):
        launch()
    wait_for_event(1, record_event(mesh, 0))
    with command_queue(1):
        launch()
    synchronize_device(mesh, 1)
    launch()


def test_listeners_see_every_command_only_while_they_listen(program) -> None:
    seen = []
    stop = signals.listen(seen.append, commands=True)
    buffer = program.buffer()
    program.write(buffer, 1)
    stop()
    program.write(buffer, 2)

    names = [(type(r), r.name) for r in seen if isinstance(r, (Enqueued, Finished))]
    assert names == [(Enqueued, "write"), (Finished, "write")]
