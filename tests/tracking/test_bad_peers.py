"""Bad peers hurt only themselves: a real server, real sockets, one kind of malice each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from tracked import RunningServer, environment, eventually, on_all, used

from ttmesh.tracking import allocation_server, wire
from ttmesh.tracking.address import Address, connect
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.query import Monitor

HELLO = wire.frame(wire.HELLO, ("program", 1, 1, "", ""))
ASKING = wire.frame(wire.HELLO, ("monitor", 1, 1, "", ""))


def row(number: int, size: int, *, site: str = "") -> tuple[object, ...]:
    return (4, 1, number, (0,), "DRAM", 0, size, size, 1, 1, "", 1, site)


def read_to_end(peer: socket.socket) -> bytes:
    found = b""
    try:
        while data := peer.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.fixture
def honest(server, monitor, start):
    program = start()
    program.do("open")
    program.do("allocate 10 1")
    eventually(monitor.state, lambda s: used(s) == on_all(10))
    yield program
    program.do("allocate 5 1")
    eventually(monitor.state, lambda s: used(s) == on_all(15))


def test_an_error_nobody_thought_of_ends_one_connection(server, honest, monkeypatch):
    take = Ledger.take_events

    def fail_for_us(ledger, process, *args, **options):
        if process.who.pid == os.getpid():
            raise ZeroDivisionError("nobody thought of this")
        return take(ledger, process, *args, **options)

    monkeypatch.setattr(Ledger, "take_events", fail_for_us)
    with connect(server.address, timeout_s=180) as peer:
        peer.sendall(HELLO + wire.frame(wire.EVENTS, (0, 0, [row(1, 1)])))
        told = read_to_end(peer)

    assert b"the server cannot take this message: ZeroDivisionError" in told
    eventually(server.text.getvalue, lambda text: "nobody thought of this" in text)


@pytest.mark.parametrize(
    "records",
    [
        [row(n, 2**62) for n in range(5)],
        [(1, 1, None, (1, 1), "x", [(0, 0, (0,), "x", 2**62, 2**62, 1, 1, False)], 0)],
        [(4, 1, 1, (0,), "DRAM", 2**62, 1, 2**62, 1, 1, "", 1, "")],
    ],
)
def test_numbers_whose_sums_fit_no_64_bits_are_refused(server, honest, records):
    with connect(server.address, timeout_s=180) as peer:
        peer.sendall(HELLO + wire.frame(wire.SNAPSHOT, (0, 0, 0, True, records)))

        assert b"malformed" in read_to_end(peer)


def test_a_token_that_is_no_text_is_compared_like_any_other():
    running = RunningServer(Address(host="127.0.0.1"), token="\udcff\udcfe")
    with connect(running.address, timeout_s=180) as peer:
        peer.sendall(wire.frame(wire.HELLO, ("monitor", 1, 1, "", "h", "guess")))
        assert b"the token is wrong" in read_to_end(peer)

    with Monitor(running.address, token="\udcff\udcfe", timeout_s=180) as monitor:
        assert monitor.state().processes == []
    running.stop()


def test_strangers_over_tcp_take_no_room_from_others(monkeypatch):
    running = RunningServer(Address(host="127.0.0.1"), token="secret")
    monkeypatch.setattr(allocation_server, "MAX_STRANGERS", 4)
    strangers = [connect(running.address, timeout_s=180) for _ in range(40)]

    with Monitor(running.address, token="secret", timeout_s=180) as monitor:
        eventually(monitor.state, lambda s: s.server.refused >= 36)
        assert len(running.server.connections) <= 5
    assert read_to_end(strangers[0]) == b""
    for stranger in strangers:
        stranger.close()
    running.stop()


def test_unfinished_messages_are_bounded_and_the_slowest_is_dropped(server, honest, monkeypatch):
    monkeypatch.setattr(allocation_server, "INPUT_BYTES", 1 << 20)
    unfinished = wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.EVENTS, 1 << 20) + bytes(300_000)
    peers = []
    for _ in range(8):
        peers.append(connect(server.address, timeout_s=180))
        peers[-1].sendall(ASKING + unfinished)

    assert b"unfinished messages, and it is the slowest" in read_to_end(peers[0])
    eventually(lambda: server.server.input_bytes, lambda held: 0 < held <= 1 << 20)
    for peer in peers:
        peer.close()
    eventually(lambda: server.server.input_bytes, lambda held: held == 0)


def test_replies_that_nobody_reads_are_bounded_and_the_slowest_is_dropped(server, honest, monkeypatch):
    monkeypatch.setattr(allocation_server, "OUTPUT_BYTES", 3 << 20)
    holder = connect(server.address, timeout_s=180)
    rows = [row(n, 1, site="f" * 900 + str(n)) for n in range(3000)]
    holder.sendall(
        HELLO + b"".join(wire.frame(wire.EVENTS, (at, 0, rows[at : at + 500])) for at in range(0, 3000, 500))
    )
    eventually(lambda: server.server.ledger.records_seen, lambda seen: seen >= 3000)
    deaf = []
    for _ in range(6):
        deaf.append(connect(server.address, timeout_s=180))
        deaf[-1].sendall(ASKING + wire.frame(wire.QUERY, ("buffers", -1, "", 20_000)))

    eventually(server.text.getvalue, lambda text: "replies of 3145728 bytes wait for readers" in text)
    eventually(lambda: server.server.output_bytes, lambda held: held <= 3 << 20)  # a reply may be on its way right now
    for peer in (*deaf, holder):
        peer.close()
    eventually(lambda: server.server.output_bytes, lambda held: held == 0)


FLOOD = """
import os, sys
from ttmesh.tracking import wire
from ttmesh.tracking.address import Address, connect
sock = connect(Address(path=sys.argv[1]), timeout_s=180)
sock.sendall(wire.frame(wire.HELLO, ("program", 1, 1, "", "")))
sock.sendall(wire.frame(wire.SNAPSHOT, (0, 0, 0, True, [(4, 1, 1, (0,), "DRAM", 0, 7, 7, 1, 1, "", 1, "")])))
if os.fork() == 0:
    try:
        while True:
            sock.sendall(wire.frame(wire.TRAFFIC, ([],)) * 1000)
    except OSError:
        os._exit(0)
print(flush=True)
sys.stdin.read()
"""


def test_a_dead_parents_socket_is_left_however_much_its_child_writes(server, monitor, honest):
    parent = subprocess.Popen(
        [sys.executable, "-c", FLOOD, server.address.path],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    parent.stdout.readline()
    eventually(monitor.state, lambda s: used(s)[0] == 17)

    parent.kill()

    eventually(monitor.state, lambda s: used(s) == on_all(10))
    parent.communicate(timeout=180)  # its child holds the pipe until the server hangs up


def test_two_connections_of_one_process_end_one_by_one(server, monitor, honest):
    first, second = (connect(server.address, timeout_s=180) for _ in range(2))
    first.sendall(HELLO + wire.frame(wire.SNAPSHOT, (0, 0, 0, True, [])))
    eventually(monitor.state, lambda s: len(s.processes) == 2)
    second.sendall(HELLO + b"no frame")
    read_to_end(second)
    second.close()
    first.sendall(wire.frame(wire.EVENTS, (0, 0, [row(1, 1000)])))
    eventually(monitor.state, lambda s: used(s)[0] == 1010)

    first.close()

    eventually(monitor.state, lambda s: used(s) == on_all(10))


def test_nobody_speaks_for_a_process_of_another_address():
    running = RunningServer(Address(host="127.0.0.1"), token="t")
    hello = wire.frame(wire.HELLO, ("program", 7, 7, "", "far", "t"))
    with connect(running.address, timeout_s=180) as owner, socket.socket() as thief:
        owner.sendall(hello)
        eventually(lambda: len(running.server.ledger.processes), lambda known: known == 1)
        thief.bind(("127.0.0.2", 0))
        thief.connect(("127.0.0.1", running.address.port))
        thief.sendall(hello)

        assert b"process 7 is connected from 127.0.0.1 already" in read_to_end(thief)
        assert len(running.server.ledger.processes) == 1
    running.stop()


def test_a_server_whose_lock_was_cleaned_away_keeps_its_socket(server, address):
    os.unlink(f"{address.path}.lock")

    with pytest.raises(Exception, match=r"a server listens at .* already"):
        RunningServer(address)
    assert os.path.exists(address.path)


def test_an_output_that_cannot_be_written_or_is_ascii_ends_nothing(address):
    code = "import sys; from ttmesh.cli.server import main; sys.exit(main())"
    with open("/dev/full", "w") as full:
        deaf = subprocess.Popen(
            [sys.executable, "-c", code, "--socket", address.path], stdout=full, stderr=full, env=environment()
        )
        with Monitor(address, timeout_s=180) as monitor:
            eventually(lambda: os.path.exists(address.path), bool)
            eventually(lambda: _answers(monitor), bool)
        deaf.terminate()
        assert deaf.wait(180) == 0
    plain = subprocess.Popen(
        [sys.executable, "-c", code, "--socket", address.path],
        stdout=subprocess.PIPE,
        env=environment(PYTHONIOENCODING="ascii"),
    )
    plain.stdout.readline()
    with connect(address, timeout_s=180) as peer:
        peer.sendall(HELLO + wire.frame(wire.EVENTS, (0, 0, [row(1, 5)])))
        assert b"\\u2713" in plain.stdout.readline()
    plain.terminate()
    plain.communicate(timeout=180)


def _answers(monitor: Monitor) -> bool:
    try:
        return bool(monitor.state())
    except RuntimeError:
        return False
