"""A name server that does not answer holds neither the program nor a monitor up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from tracked import eventually

from ttmesh.base.records import Freed
from ttmesh.tracking import outbox
from ttmesh.tracking.address import Address, connect, look_up
from ttmesh.tracking.client import Client
from ttmesh.tracking.query import Monitor, UnreachableError


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A look-up that lasts until the event is set."""
    answered = threading.Event()

    def wait(*args: object, **options: object) -> list[object]:
        answered.wait()
        raise socket.gaierror(socket.EAI_NONAME, "nobody knows")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield answered
    answered.set()


def test_the_queue_stays_bounded_and_the_end_does_not_wait(silence, monkeypatch):
    monkeypatch.setattr(outbox, "MOST_QUEUED", 10)
    client = Client(Address(host="silent.example", port=7000), token="", stacks=False)
    client.begin(lazily=False)
    eventually(lambda: [t.name for t in threading.enumerate()], lambda names: "ttmesh-look-up" in names)

    client.outbox.queue.extend(Freed(1, n) for n in range(20))

    eventually(lambda: len(client.outbox.queue), lambda waiting: waiting == 0)
    client.end()
    assert not client._thread.is_alive()


def test_a_look_up_is_limited_in_time_and_asked_once(silence):
    address = Address(host="silent.example", port=7001)

    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"looking up silent\.example takes more than 0\.01 s"):
            look_up(address, timeout_s=0.01)
    threads = [t for t in threading.enumerate() if t.name == "ttmesh-look-up" and t._address == address]
    silence.set()

    assert len(threads) == 1
    with pytest.raises(OSError, match="nobody knows"):
        connect(address, timeout_s=180)
    with pytest.raises(UnreachableError, match="nobody knows"):
        Monitor(address, timeout_s=180).state()


def test_a_name_that_is_none_is_an_error_like_any_other():
    with pytest.raises(OSError, match=r"is not a name of a host|not known|failure"):
        connect(Address(host="a" * 70, port=1), timeout_s=180)
