"""The key-value store in rank 0 for the ranks' heartbeats: torch's TCPStore, with every engine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from datetime import timedelta

import psutil
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.liveness import ABSENT, Liveness, Store
from ttmesh.fabric.messaging.rank_joining import wait_for_first


def open_liveness(rank: int, size: int, exchange: Callable[[str], str], timeout_s: float) -> tuple[Liveness, object]:
    """Start heartbeats between all ranks; returns them and an object to keep alive (rank 0's store).

    `exchange` returns rank 0's text on every rank; it must not wait for any other rank.
    """
    keeper: TCPStore | None = None
    where = ""
    if rank == 0:
        keeper = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        job = secrets.token_hex(8)
        for other in range(size):
            keeper.set(f"sign/{other}", f"0 {ABSENT}")
        keeper.set(job, "here")
        where = f"{keeper.port} {job} {' '.join(list_addresses())}"
    port, job, *addresses = exchange(where).split()
    candidates = ["127.0.0.1"] if rank == 0 else addresses

    def connect() -> Store:
        return reach(candidates, int(port), job)

    liveness = Liveness(connect, rank, size)
    liveness.begin()
    wait_for_first(lambda: liveness.has_begun, f"{addresses} port {port}", rank, timeout_s)
    if liveness.is_lost:
        raise RankError(
            f"rank 0 died, stopped or was cut off: rank {rank} cannot reach it at any of {addresses} port {port}",
            expected=f"rank 0's store to answer within {timeout_s:g} s",
            fix="Check names, routes and firewalls between the hosts.",
            ranks=(0,),
        )
    return liveness, keeper


def list_addresses() -> list[str]:
    """This host's addresses, loopback first (ranks of one host meet there)."""
    found = [a.address for cards in psutil.net_if_addrs().values() for a in cards if a.family == socket.AF_INET]
    return ["127.0.0.1", *sorted(a for a in set(found) if not a.startswith("127."))]


def reach(addresses: list[str], port: int, job: str) -> Store:
    """A connection to this job's store; one address may lead to another job, as bridges repeat on every host."""
    for address in addresses:
        try:
            socket.create_connection((address, port), timeout=2.0).close()
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=5))
            if store.check([job]):
                found: Store = store
                return found
        except (OSError, RuntimeError):  # torch's DistNetworkError is a RuntimeError
            continue
    raise ConnectionError(f"no store of this job at {addresses} port {port}")
