"""What the server does with sockets, files and peers that misbehave."""

from __future__ import annotations

import os
import socket
import stat

import pytest
from tracked import Program, RunningServer, eventually, on_all, used

from ttmesh.tracking import wire
from ttmesh.tracking.address import Address, AddressError, connect, parse, parse_tcp
from ttmesh.tracking.listening import ServerError


def test_socket_is_private_and_gone_afterwards(address):
    running = RunningServer(address)
    mode = stat.S_IMODE(os.stat(address.path).st_mode)
    running.stop()

    assert mode == 0o600
    assert not os.path.exists(address.path)


def test_second_server_at_one_address_is_refused(server, address):
    with pytest.raises(ServerError, match=r"a server listens at .* already"):
        RunningServer(address)


def test_a_dead_servers_socket_is_taken_over(address):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(address.path)
    stale.close()

    RunningServer(address).stop()


def test_a_file_that_is_no_socket_is_left_alone(address):
    with open(address.path, "w") as file:
        file.write("mine")

    with pytest.raises(ServerError, match="is not a socket"):
        RunningServer(address)
    with open(address.path) as file:
        assert file.read() == "mine"


def test_tcp_without_a_token_is_refused():
    with pytest.raises(ServerError, match=r"listening on 127\.0\.0\.1:0 needs a token"):
        RunningServer(Address(host="127.0.0.1"))


def test_addresses_that_nobody_can_listen_on_are_refused(tmp_path):
    with pytest.raises(ServerError, match=r"192\.0\.2\.1:7000 is not possible: Cannot assign requested address"):
        RunningServer(Address(host="192.0.2.1", port=7000), token="secret")
    with pytest.raises(ServerError, match=r"s\.sock cannot be made: No such file or directory"):
        RunningServer(Address(path=str(tmp_path / "none" / "s.sock")))
    with pytest.raises(AddressError, match="'nonsense' has no port number; expected HOST:PORT"):
        parse_tcp("nonsense")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a frame begins with b'GE'"),
        (wire.HEADER.pack(b"TM", wire.VERSION, wire.HELLO, 1 << 20), "1048576 bytes is announced; at most 16384"),
        (wire.frame(wire.EVENTS, (0, 0, [])), "the first message is not a hello"),
        (wire.frame(wire.HELLO, ("monitor", 1, 1, "", "")) + wire.frame(wire.BYE, (1,)), "a monitor sent records"),
        (wire.frame(wire.HELLO, ("program", 1, 1, "", ""))[:-3], "it stopped"),
    ],
)
def test_a_bad_peer_is_closed_with_a_logged_reason_and_nobody_else_notices(server, monitor, start, data, reason):
    program = start()
    program.do("allocate 10 1")
    eventually(monitor.state, lambda s: used(s) == on_all(10))
    with connect(server.address, timeout_s=180) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(4096):
            pass

    eventually(server.text.getvalue, lambda text: reason in text)
    assert used(monitor.state()) == on_all(10)


def test_a_peer_that_asks_without_reading_does_not_fill_the_servers_memory(server, monitor):
    query = wire.frame(wire.QUERY, ("state",))
    with connect(server.address, timeout_s=180) as greedy:
        greedy.sendall(wire.frame(wire.HELLO, ("monitor", 1, 1, "", "")))
        greedy.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(10_000_000):
                greedy.send(query * 1000)

        eventually(monitor.state, lambda s: s.server.connections == 2)

        connections = list(server.server.connections)
        assert sum(len(c.out) for c in connections) < 1 << 16
        assert all(c.session.frames.incomplete_bytes <= 1 << 20 for c in connections)


def test_the_pid_is_the_kernels_not_the_peers(server, monitor):
    with connect(server.address, timeout_s=180) as liar:
        liar.sendall(wire.frame(wire.HELLO, ("program", 1, 1, "init", "")))

        state = eventually(monitor.state, lambda s: len(s.processes) == 1)

        assert state.processes[0].pid == os.getpid()


def test_a_second_connection_of_one_process_takes_over_from_the_first(server, monitor):
    def joined(size: int) -> socket.socket:
        row = (4, 1, size, (0,), "DRAM", 0, size, size, 1, 1, "", 1)
        sock = connect(server.address, timeout_s=180)
        sock.sendall(wire.frame(wire.HELLO, ("program", 1, 1, "", "")))
        sock.sendall(wire.frame(wire.SNAPSHOT, (1, 0, 0, True, [row])))
        eventually(monitor.state, lambda s: used(s) == {0: size})
        return sock

    with joined(10) as first, joined(20):
        first.close()
        eventually(monitor.state, lambda s: s.server.connections == 2)

        assert used(monitor.state()) == {0: 20}
    eventually(monitor.state, lambda s: not s.devices)


def test_quiet_server_prints_statistics_only_when_asked(address, start):
    running = RunningServer(address, quiet=True)
    program: Program = start()
    program.do("allocate 10 1")
    eventually(lambda: running.server.ledger.records_seen, lambda n: n == 1)

    text = running.stop()

    assert "Allocated" not in text
    assert "Active allocations: 8" in text


def test_addresses_are_paths_or_host_and_port():
    assert parse("/tmp/x:1") == Address(path="/tmp/x:1")
    assert parse("server.sock") == Address(path="server.sock")
    assert parse("box:7000") == Address(host="box", port=7000)
    assert parse("[::1]:7000") == Address(host="::1", port=7000)
    with pytest.raises(AddressError, match="'box:http' has no port number; expected HOST:PORT"):
        parse("box:http")
    with pytest.raises(AddressError, match="too long"):
        parse("/" + "x" * 107)
