"""Real programs, a real server, real sockets."""

from __future__ import annotations

import os
import signal
import socket

import pytest
from tracked import RunningServer, ServerProcess, eventually, on_all, used

from ttmesh.tracking import wire
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor, UnreachableError

MB100 = 104857600


def test_seed_001_shows_two_buffers_on_each_of_eight_devices_then_baseline(server, monitor, start):
    program = start()
    program.do("open")
    program.do(f"allocate {MB100} 2")
    state = eventually(monitor.state, lambda s: used(s) == on_all(2 * MB100))

    assert sum(d.usage["DRAM"].buffers for d in state.devices) == 16
    server.server.ask_statistics()
    eventually(server.text.getvalue, lambda text: "Active allocations: 16" in text)
    program.do("free 1")
    program.do("free 2")
    eventually(monitor.state, lambda s: used(s) == on_all(0))
    text = server.stop()
    assert f"✓ [PID {program.pid}] Allocated {MB100} bytes of DRAM on device 0 (buffer_id=1)" in text
    assert "  Device 0:\n    Buffers: 2\n    DRAM: 209715200 bytes\n    Total: 209715200 bytes\n  Device 1:" in text
    assert f"✗ [PID {program.pid}] Freed buffer 1 on device 7 ({MB100} bytes of DRAM)" in text
    assert text.rstrip().endswith("Active allocations: 0")


def test_server_started_late_knows_everything_and_counts_what_it_missed(address, monitor, start):
    program = start()
    program.do("open")
    program.do("churn 100")
    program.do("allocate 1000 3")
    eventually(lambda: program.do("unsent"), lambda records: records == 0)  # given up, as there is nobody to tell

    late = ServerProcess(address)
    state = eventually(monitor.state, lambda s: used(s) == on_all(3000))

    (process,) = state.processes
    assert (process.pid, process.missed, process.records) == (program.pid, 204, 204)
    late.stop()


def test_killed_server_comes_back_and_is_exact_again(address, monitor, start):
    first = ServerProcess(address)
    program = start()
    program.do("open")
    program.do("allocate 1000 5")
    eventually(monitor.state, lambda s: used(s) == on_all(5000))
    first.kill()
    program.do("allocate 1 1")
    program.do("free 1")

    second = ServerProcess(address)

    monitor.close()
    eventually(monitor.state, lambda s: used(s) == on_all(4001))
    second.stop()


def test_a_stranger_at_the_servers_address_does_no_harm(address, monitor, start):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(address.path)
        stranger.listen()
        program = start()
        program.do("open")
        program.do("allocate 1000 5")
        for reply in (b"HTTP/1.1 400 Bad Request", wire.frame(wire.REFUSED, "?"), wire.frame(wire.RESYNC)):
            connection, _ = stranger.accept()
            connection.sendall(reply)
            connection.close()
        program.do("free 1")

    real = ServerProcess(address)

    eventually(monitor.state, lambda s: used(s) == on_all(4000))
    real.stop()


def test_stopped_server_does_not_hold_the_program_up(address, monitor, start):
    stopped = ServerProcess(address, "-q")
    program = start()
    program.do("open")
    eventually(monitor.state, lambda s: len(s.processes) == 1)
    stopped.process.send_signal(signal.SIGSTOP)

    program.do("churn 100000")  # far more than the socket's buffer and the queue take
    program.do("allocate 700 1")
    eventually(lambda: program.do("dropped"), bool)
    stopped.process.send_signal(signal.SIGCONT)

    wanted = (on_all(700), 200_002)  # a snapshot may tell of the buffer before its record comes
    state = eventually(monitor.state, lambda s: (used(s), s.processes[0].records) == wanted)
    assert state.processes[0].missed > 0
    stopped.stop()


def test_server_answers_while_nobody_reads_its_output(address, monitor, start):
    unread = ServerProcess(address)
    program = start()
    program.do("open")

    program.do("churn 5000")  # 5 MB of lines into a pipe of 64 KB
    program.do("allocate 700 1")

    eventually(monitor.state, lambda s: used(s) == on_all(700))
    assert "Active allocations: 8" in unread.stop()


def test_killed_program_holds_nothing_at_once(server, monitor, start):
    program, survivor = start(), start()
    program.do("open")
    program.do("allocate 1000 2")
    survivor.do("allocate 10 1")
    eventually(monitor.state, lambda s: used(s) == on_all(2010))

    program.kill()

    eventually(monitor.state, lambda s: used(s) == on_all(10))
    ended = monitor.leaks().ended[0]
    assert (ended.who.pid, ended.orderly) == (program.pid, False)
    assert [(h.label, h.buffers, h.size_bytes) for h in ended.held] == [("matmul", 2, 16000)]
    removed = f"Removed 16 buffers (16 KB) from PID {program.pid}"
    eventually(server.text.getvalue, lambda text: removed in text)


def test_program_that_ends_in_order_sends_its_last_records(server, monitor, start):
    program = start()
    program.do("open")
    program.do("allocate 1000 1")
    program.do("churn 2000")
    program.exit()

    leaks = eventually(monitor.leaks, lambda found: len(found.ended) == 1)

    assert leaks.ended[0].orderly
    assert leaks.ended[0].next == 4002
    assert leaks.ended[0].missed == 0


def test_forked_child_is_a_client_of_its_own_and_does_not_hold_its_parents_memory(server, monitor, start):
    program = start()
    program.do("open")
    program.do("allocate 1000 1")
    child = program.do("fork 50")

    state = eventually(
        monitor.state, lambda s: used(s) == on_all(1050) and all("t3000" in p.usage for p in s.processes)
    )

    held = {p.pid: p.usage["t3000"][0]["DRAM"].used_bytes for p in state.processes}
    assert held == {program.pid: 1000, child: 50}
    program.kill()  # the child lives on; were the parent's socket open in it, this would not be seen
    eventually(monitor.state, lambda s: used(s) == on_all(50))
    os.kill(child, signal.SIGKILL)
    eventually(monitor.state, lambda s: not s.devices)


def test_worker_of_multiprocessing_ends_in_order_with_its_last_records(server, monitor, start):
    program = start()
    program.do("open")
    worker = program.do("worker 50")

    (ended,) = eventually(lambda: monitor.leaks().ended, lambda ends: len(ends) == 1)

    assert (ended.who.pid, ended.orderly, ended.next) == (worker, True, 1)
    assert [h.size_bytes for h in ended.held] == [8 * 50]


def test_forked_child_that_allocates_nothing_does_not_connect(server, monitor, start):
    program = start()
    program.do("open")
    child = program.do("fork")
    program.do("allocate 10 1")

    state = eventually(monitor.state, lambda s: used(s) == on_all(10))

    assert [p.pid for p in state.processes] == [program.pid]
    os.kill(child, signal.SIGKILL)


def test_marks_and_call_sites_reach_the_monitor(server, monitor, start):
    program = start(TTMESH_TRACK_STACKS="1")
    program.do("open")
    program.do("mark step 3")
    program.do("allocate 10 1")

    buffers = eventually(lambda: monitor.buffers(), lambda found: [b.site for b in found.buffers] not in ([], [""]))

    assert "emitting_program.py:" in buffers.buffers[0].site
    assert buffers.buffers[0].label == "matmul"
    eventually(monitor.state, lambda s: [m.label for m in s.processes[0].marks] == ["step 3"])


def test_system_reservations_are_shown_but_not_counted_as_buffers(server, monitor, start):
    program = start()
    program.do("open")
    program.do("reserve 74752")

    state = eventually(monitor.state, lambda s: used(s, "SYSTEM_L1") == on_all(74752))

    assert all(d.usage["SYSTEM_L1"].buffers == 0 for d in state.devices)
    assert all(d.pools["L1"].used_bytes == 74752 for d in state.devices)
    assert [d.physical_id for d in state.devices if d.is_coordinator] == [4]


def test_tcp_needs_the_token(start):
    running = RunningServer(Address(host="127.0.0.1"), token="secret")
    program = start(TTMESH_SOCKET=str(running.address), TTMESH_TOKEN="secret")
    program.do("open")
    program.do("allocate 10 1")

    with (
        Monitor(running.address, token="secret", timeout_s=180) as good,
        Monitor(running.address, token="guess") as bad,
    ):
        eventually(good.state, lambda s: used(s) == on_all(10))
        with pytest.raises(UnreachableError, match=r"the token is wrong|does not answer"):
            bad.state()
    assert "the token is wrong" in running.stop()
