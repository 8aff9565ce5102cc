"""Ranks connected by torch.distributed: gloo between CPUs, NCCL between GPUs; started by torchrun or `ttmesh launch`."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore, distributed_c10d  # type: ignore[attr-defined]

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.rank_job import Done, Job, run_in_thread
from ttmesh.fabric.messaging.rank_joining import LOOK_S, wait_for_first
from ttmesh.fabric.messaging.rank_store import open_liveness, ring
from ttmesh.fabric.messaging.transport import WORLD, Transport

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# torch 2.13 renamed these two and warns about the old names
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
GRACE_S = 10.0  # gloo's deadline is later than ours: when it fires, gloo drops every connection without naming a rank
SLICE = timedelta(milliseconds=20)
FOREVER = timedelta(days=30)  # messages have no deadline in gloo; ours decide


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or a similar launcher started this process."""
    return all(variable in environ for variable in VARIABLES)


def connect(timeout_s: float) -> Transport:
    """The group of all ranks; uses the program's torch.distributed if it is already initialised."""
    ready = dist.is_initialized()
    if ready:
        rank, size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group(list(range(size)), timeout=timedelta(seconds=timeout_s + GRACE_S))

        def broadcast(text: str) -> str:
            box = [text]
            dist.broadcast_object_list(box, src=0, group=group, device=torch.device("cpu"))
            return box[0]

        liveness, keep, _ = open_liveness(rank, size, broadcast, timeout_s)
        job = Job(liveness, keep)
    else:
        missing = [variable for variable in VARIABLES if variable not in os.environ]
        if missing:
            raise RankError(
                f"the engine 'torchdist' lacks {', '.join(missing)}",
                expected="a program started by torchrun or `ttmesh launch`",
                fix="Start it with one of them, or unset TTMESH_ENGINE.",
            )
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        group, job = _join(rank, size, timeout_s)
    return TorchTransport(group, job, WORLD, tuple(range(size)), rank, timeout_s, not ready)


def _join(rank: int, size: int, timeout_s: float) -> tuple[Any, Job]:
    """Start heartbeats at torch's rendezvous address, then make the groups, which wait for every rank."""
    limit = timedelta(seconds=timeout_s + GRACE_S)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself keeps a store there
    groups: list[Any] = []

    def exchange(text: str) -> str:
        answers = [text] if rank == 0 and not has_agent else []

        def ask_agent() -> None:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = PrefixStore(f"ttmesh {attempt}", TCPStore(address, port, is_master=False, timeout=limit))
            if rank == 0:
                store.set("where", text)
            answers.append(store.get("where").decode())

        def ask_first_rank() -> None:
            give_up = time.monotonic() + timeout_s
            while not answers and time.monotonic() < give_up:
                answers.extend(filter(None, [ring(address, port)]))
                time.sleep(LOOK_S)

        # In a thread of its own: the program's must see a SIGTERM, and the deadline, whatever a socket waits for.
        over = run_in_thread(ask_agent if has_agent else ask_first_rank)
        wait_for_first(lambda: over() and bool(answers), f"{address}:{port}", rank, timeout_s)
        return answers[0]

    liveness, keep, where = open_liveness(rank, size, exchange, timeout_s, bell_port=0 if has_agent else port)

    stores: list[Any] = []
    over = run_in_thread(lambda: stores.append(where.reach()))
    wait_for_first(over, f"{address}:{port}", rank, timeout_s)
    stores[0].set_timeout(limit)

    def join() -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", find_interface(address))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=stores[0], rank=rank, world_size=size, timeout=limit)
        groups.append(dist.new_group(list(range(size)), timeout=limit))

    job = Job(liveness, keep)
    job.join(partial(run_in_thread, join), timeout_s)
    return groups[0], job


def find_interface(host: str) -> str:
    """The network interface that routes to a host; gloo would resolve the host's name, which often means loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only reads the routing table
        address = probe.getsockname()[0]
    cards = psutil.net_if_addrs().items()
    return next((name for name, known in cards if any(a.address == address for a in known)), "lo")


class TorchTransport(Transport):
    """Asynchronous torch.distributed calls, polled until they end or their deadline passes."""

    name = "torchdist"

    def __init__(
        self,
        group: Any,
        job: Job,
        name: str,
        ranks: tuple[int, ...],
        rank: int,
        timeout_s: float,
        owns_torch: bool = False,
    ) -> None:
        super().__init__(job, name, ranks, rank, timeout_s)
        self._group = group
        self._owns_torch = owns_torch

    def _stage(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.detach().contiguous()
        return flat if flat.device.type in ("cpu", "cuda") else flat.cpu()

    def _start_barrier(self) -> Done:
        # NCCL's barrier would need a GPU even if none is in use; a sum of one number is a barrier too.
        return self._start_all_reduce(
            torch.zeros(1, dtype=torch.float32, device="cpu"), torch.zeros(1, dtype=torch.float32, device="cpu"), "sum"
        )

    def _start_all_reduce(self, source: torch.Tensor, out: torch.Tensor, op: str) -> Done:
        if source.data_ptr() != out.data_ptr():
            out.copy_(source)
        return _wait_in_slices(dist.all_reduce(out, OPS[op], group=self._group, async_op=True), out)

    def _start_all_gather(self, source: torch.Tensor, out: torch.Tensor) -> Done:
        return _wait_in_slices(_gather(out, source, group=self._group, async_op=True), out)

    def _start_all_to_all(self, source: torch.Tensor, out: torch.Tensor) -> Done:
        return _wait_in_slices(dist.all_to_all_single(out, source, group=self._group, async_op=True), out)

    def _start_reduce_scatter(self, source: torch.Tensor, out: torch.Tensor, op: str) -> Done:
        return _wait_in_slices(_scatter(out, source, OPS[op], group=self._group, async_op=True), out)

    def _start_broadcast(self, data: torch.Tensor, root: int) -> Done:
        return _wait_in_slices(dist.broadcast(data, self.ranks[root], group=self._group, async_op=True), data)

    def _start_send(self, data: torch.Tensor, dest: int, tag: int, until_received: bool) -> Done:
        # gloo and NCCL always wait for the receiver.
        return _wait_in_thread(dist.isend(data, self.ranks[dest], group=self._group, tag=tag), data)

    def _start_recv(self, data: torch.Tensor, source: int, tag: int) -> Done:
        return _wait_in_thread(dist.irecv(data, self.ranks[source], group=self._group, tag=tag), data)

    def _split(self, group_ranks: tuple[int, ...], name: str) -> Transport:
        ranks = tuple(self.ranks[m] for m in group_ranks)
        with _named_alike:
            group = dist.new_group(
                list(ranks), timeout=timedelta(seconds=self.timeout_s + GRACE_S), use_local_synchronization=True
            )
        return TorchTransport(group, self._job, name, ranks, group_ranks.index(self.rank), self.timeout_s)

    def _free(self) -> None:
        # Only at the end: torch names a group after its ranks, and a second group with the name of a destroyed one would
        # meet at the addresses that the first left in the store, and hang.
        if self.group == WORLD and self._owns_torch:
            dist.destroy_process_group()

    def _abandon(self) -> None:
        # gloo's destructor waits for operations that never end, so we keep a reference and it never runs.
        for group in list(distributed_c10d._world.pg_map):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class _ConsistentNames:
    """While entered, torch names a group after its ranks and the number of earlier groups of the same ranks.

    torch 2.13 takes the number of all groups that the process knows, which differs between ranks that are members of
    different ones, and then they wait for each other under different names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Counter[tuple[int, ...]] = Counter()
        self._own = getattr(distributed_c10d, "_hash_ranks_to_str", None)

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._own is not None:
            distributed_c10d._hash_ranks_to_str = self._name  # type: ignore[attr-defined]

    def __exit__(self, *problem: object) -> None:
        if self._own is not None:
            distributed_c10d._hash_ranks_to_str = self._own  # type: ignore[attr-defined]
        self._lock.release()

    def _name(self, ranks: list[int]) -> str:
        self._made[tuple(ranks)] += 1
        return f"ttmesh {'_'.join(map(str, ranks))} {self._made[tuple(ranks)]}"


_named_alike = _ConsistentNames()


def _wait_in_slices(work: Any, tensor: torch.Tensor) -> Done:
    """A function that reports whether a collective has ended; it sleeps in torch, as gloo's threads need the CPU."""
    if tensor.is_cuda:
        return work.is_completed  # type: ignore[no-any-return]

    def done() -> bool:
        try:
            work.wait(SLICE)
        except RuntimeError as error:
            if str(error).startswith(
                "Operation timed out"
            ):  # the short wait timed out; gloo's deadline has another text
                return False
            raise
        return True

    return done


def _wait_in_thread(work: Any, tensor: torch.Tensor) -> Done:
    """The same for a message, with a waiting thread: gloo drops every connection when such a wait times out."""
    return work.is_completed if tensor.is_cuda else run_in_thread(lambda: work.wait(FOREVER))  # type: ignore[no-any-return]
