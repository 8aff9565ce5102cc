"""Ranks joined by MPI through mpi4py; started by mpirun or `ttmesh launch`. Tensors on a GPU go through the host."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.rank_job import Done, Job
from ttmesh.fabric.messaging.rank_store import open_liveness
from ttmesh.fabric.messaging.transport import WORLD, Transport

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # Open MPI; MPICH and Intel MPI


def started(environ: Mapping[str, str]) -> bool:
    """Whether mpirun started this process."""
    return any(variable in environ for variable in RANK_VARIABLES)


def connect(timeout_s: float) -> Transport:
    """The group of all ranks."""
    few = os.environ.get("OMPI_COMM_WORLD_SIZE", "") in ("2", "3", "4")
    if (
        few
    ):  # ring: 110 against 210 µs for 1 MiB between two ranks (benchmarks/engines.py); too many steps for many ranks
        os.environ.setdefault("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "1")
    MPI = _load()
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)  # queues have a worker each, and each its own communicator
    world = MPI.COMM_WORLD.Dup()
    # Without this an engine error ends the process before anybody is named.
    world.Set_errhandler(MPI.ERRORS_RETURN)
    liveness, keep = open_liveness(world.rank, world.size, lambda text: str(world.bcast(text, root=0)), timeout_s)
    return MpiTransport(MPI, world, Job(liveness, keep), WORLD, tuple(range(world.size)), timeout_s)


def _load() -> Any:
    try:
        mpi4py = importlib.import_module("mpi4py")
        # Finalising waits for every rank, also for a dead one: `_free` does it, when all is well.
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as cause:
        raise RankError(
            f"the engine 'mpi' cannot be loaded ({cause})",
            expected="mpi4py and an MPI library",
            fix="pip install 'ttmesh[mpi]'.",
        ) from cause


class MpiTransport(Transport):
    """Non-blocking MPI calls, tested until they are done or late."""

    name = "mpi"
    in_place = False  # 154 against 101 µs for 256 KiB
    spins = 200  # most small operations are over within them

    def __init__(self, MPI: Any, comm: Any, job: Job, group: str, ranks: tuple[int, ...], timeout_s: float) -> None:
        super().__init__(job, group, ranks, comm.rank, timeout_s)
        self._MPI = MPI
        self._comm = comm
        self._memory = MPI.buffer.fromaddress
        self._requests: list[Any] = []
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._types = {
            torch.float32: MPI.FLOAT,
            torch.float64: MPI.DOUBLE,
            torch.int32: MPI.INT32_T,
            torch.int64: MPI.INT64_T,
            torch.int8: MPI.INT8_T,
            torch.uint8: MPI.UINT8_T,
        }

    def _buffer(self, flat: torch.Tensor) -> list[Any]:
        return [self._memory(flat.data_ptr(), flat.nbytes), self._types[flat.dtype]]

    def _start_barrier(self) -> Done:
        return self._comm.Ibarrier().Test  # type: ignore[no-any-return]

    def _start_all_reduce(self, source: torch.Tensor, out: torch.Tensor, op: str) -> Done:
        given = self._MPI.IN_PLACE if source.data_ptr() == out.data_ptr() else self._buffer(source)
        return self._comm.Iallreduce(given, self._buffer(out), self._ops[op]).Test  # type: ignore[no-any-return]

    def _standing_all_reduce(self, memory: torch.Tensor) -> Callable[[], Done] | None:
        try:
            request = self._comm.Allreduce_init(self._MPI.IN_PLACE, self._buffer(memory), self._MPI.SUM)
        except NotImplementedError:  # before MPI 4
            return None
        self._requests.append(request)
        begin, done = request.Start, request.Test

        def start() -> Done:
            begin()
            return done  # type: ignore[no-any-return]

        return start

    def _all_reduce_from(self, memory: torch.Tensor) -> Callable[[torch.Tensor], Done]:
        start, given, total, at = self._comm.Iallreduce, self._buffer(memory), self._MPI.SUM, self._memory
        size, kind = memory.nbytes, self._types[memory.dtype]
        return lambda into: start(given, [at(into.data_ptr(), size), kind], total).Test  # type: ignore[no-any-return]

    def _start_all_gather(self, source: torch.Tensor, out: torch.Tensor) -> Done:
        return self._comm.Iallgather(self._buffer(source), self._buffer(out)).Test  # type: ignore[no-any-return]

    def _start_all_to_all(self, source: torch.Tensor, out: torch.Tensor) -> Done:
        return self._comm.Ialltoall(self._buffer(source), self._buffer(out)).Test  # type: ignore[no-any-return]

    def _start_reduce_scatter(self, source: torch.Tensor, out: torch.Tensor, op: str) -> Done:
        request = self._comm.Ireduce_scatter_block(self._buffer(source), self._buffer(out), self._ops[op])
        return request.Test  # type: ignore[no-any-return]

    def _start_broadcast(self, data: torch.Tensor, root: int) -> Done:
        return self._comm.Ibcast(self._buffer(data), root).Test  # type: ignore[no-any-return]

    def _start_send(self, data: torch.Tensor, dest: int, tag: int, until_received: bool) -> Done:
        start = self._comm.Issend if until_received else self._comm.Isend
        return start(self._buffer(data), dest, tag).Test  # type: ignore[no-any-return]

    def _start_recv(self, data: torch.Tensor, source: int, tag: int) -> Done:
        return self._comm.Irecv(self._buffer(data), source, tag).Test  # type: ignore[no-any-return]

    def _split(self, members: tuple[int, ...], name: str) -> Transport:
        chosen = self._comm.Get_group().Incl(members)
        comm = self._comm.Create_group(chosen)
        comm.Set_errhandler(self._MPI.ERRORS_RETURN)
        ranks = tuple(self.ranks[m] for m in members)
        return MpiTransport(self._MPI, comm, self._job, name, ranks, self.timeout_s)

    def _free(self) -> None:
        for request in self._requests:
            request.Free()
        self._comm.Free()
        if self.group == WORLD:
            self._MPI.Finalize()
