"""The key-value store in rank 0 for the ranks' heartbeats: torch's TCPStore, with every engine."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.liveness import ABSENT, SILENCE_S, Liveness
from ttmesh.fabric.messaging.rank_joining import wait_for_first

TRY_S, PAUSE_S = 2.0, 0.05  # for one connection, and between two
ANSWER = timedelta(seconds=5)


class RendezvousPort:
    """The rendezvous: a port of rank 0 that tells ranks that join where the store is.

    A stopped process takes connections, too: torch would wait for its answer for ever, with Python's lock held. So the
    store is only asked after this port has answered.
    """

    def __init__(self, port: int) -> None:
        both = socket.has_dualstack_ipv6()
        try:
            family = socket.AF_INET6 if both else socket.AF_INET
            self._listener = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)
        except OSError as problem:
            raise RankError(
                f"rank 0 cannot listen on port {port}, where ranks meet ({problem.strerror})",
                expected="a free port",
                fix="Choose another one: --rdzv HOST:PORT, or MASTER_PORT.",
                ranks=(0,),
            ) from None
        self.port = int(self._listener.getsockname()[1])

    def answer(self, text: str) -> None:
        """Say this from now on."""
        threading.Thread(target=self._serve, args=(text.encode(),), daemon=True, name="ttmesh-bell").start()

    def _serve(self, text: bytes) -> None:
        while True:
            try:
                with self._listener.accept()[0] as caller:
                    caller.sendall(text)
            except OSError:  # that caller went away; a listener that was closed ends with the process
                if self._listener.fileno() < 0:
                    return


def ring(address: str, port: int) -> str:
    """What a bell says, or '' where none answers in time."""
    try:
        with socket.create_connection((address, port), timeout=TRY_S) as line:
            line.settimeout(TRY_S)
            return b"".join(iter(lambda: line.recv(4096), b"")).decode()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True)
class StoreAddress:
    """Where the store of a job and its bell are."""

    port: int
    bell: int
    job: str
    addresses: tuple[str, ...]

    @staticmethod
    def read(text: str) -> StoreAddress:
        """From what rank 0 says."""
        port, bell, job, *addresses = text.split()
        return StoreAddress(int(port), int(bell), job, tuple(addresses))

    def __str__(self) -> str:
        return f"{self.port} {self.bell} {self.job} {' '.join(self.addresses)}"

    def reach(self) -> Any:
        """A connection to the store; an address may lead to another job's, as bridges repeat on every host."""
        give_up = time.monotonic() + SILENCE_S
        while time.monotonic() < give_up:
            for address in self.addresses:
                if self.job in ring(address, self.bell).split():
                    return TCPStore(address, self.port, is_master=False, wait_for_workers=False, timeout=ANSWER)
            time.sleep(PAUSE_S)
        raise ConnectionError(f"no store of this job at {list(self.addresses)} port {self.port}")


def open_liveness(
    rank: int, size: int, exchange: Callable[[str], str], timeout_s: float, *, bell_port: int = 0
) -> tuple[Liveness, object, StoreAddress]:
    """Start heartbeats between all ranks; returns them, what must be kept alive (rank 0's store), and where it is.

    `exchange` returns rank 0's text on every rank; it must not wait for any other rank.
    """
    keep: tuple[TCPStore, RendezvousPort] | None = None
    text = ""
    if rank == 0:
        bell = RendezvousPort(bell_port)
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        for other in range(size):
            store.set(f"sign/{other}", f"0 {ABSENT}")
        text = str(StoreAddress(store.port, bell.port, secrets.token_hex(8), tuple(list_addresses())))
        bell.answer(text)
        keep = store, bell
    where = StoreAddress.read(exchange(text))
    liveness = Liveness(where.reach, rank, size)
    liveness.begin()
    wait_for_first(lambda: liveness.has_begun, f"{list(where.addresses)} port {where.port}", rank, timeout_s)
    if liveness.is_lost:
        raise RankError(
            f"rank 0 died, stopped or was cut off: rank {rank} cannot reach it at any of {list(where.addresses)} "
            f"port {where.port}",
            expected=f"rank 0's store to answer within {SILENCE_S:g} s",
            fix="Check names, routes and firewalls between the hosts.",
            ranks=(0,),
        )
    return liveness, keep, where


def list_addresses() -> list[str]:
    """This host's addresses, loopback first (ranks of one host meet there)."""
    found = [a.address for cards in psutil.net_if_addrs().values() for a in cards if a.family == socket.AF_INET]
    return ["127.0.0.1", *sorted(a for a in set(found) if not a.startswith("127."))]
