"""Ranks connected by MPI through mpi4py; started by mpirun or `ttmesh launch`. Tensors on a GPU go through the host."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.rank_job import Done, Job, run_in_thread
from ttmesh.fabric.messaging.rank_joining import JobFile, wait_for_first, wait_to_join
from ttmesh.fabric.messaging.rank_store import open_liveness
from ttmesh.fabric.messaging.transport import WORLD, Transport

THREAD_MULTIPLE = 3  # mpi.h of Open MPI and MPICH
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # Open MPI; MPICH and Intel MPI


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether mpirun started this process."""
    return any(variable in environ for variable in RANK_VARIABLES)


def connect(timeout_s: float) -> Transport:
    """The group of all ranks."""
    few = os.environ.get("OMPI_COMM_WORLD_SIZE", "") in ("2", "3", "4")
    if (
        few
    ):  # ring: 110 against 210 µs for 1 MiB between two ranks (benchmarks/engines.py); too many steps for many ranks
        os.environ.setdefault("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "1")
    connected: list[Any] = []

    def join() -> None:
        _initialise()
        MPI = _load()
        world = MPI.COMM_WORLD.Dup()
        # Without this an engine error ends the process before an error can name a rank.
        world.Set_errhandler(MPI.ERRORS_RETURN)
        connected.extend((MPI, world))

    job = _meet(timeout_s)
    if job is None:
        wait_to_join(run_in_thread(join), timeout_s)
        MPI, world = connected
        liveness, keep, _ = open_liveness(
            world.rank, world.size, lambda text: str(world.bcast(text, root=0)), timeout_s
        )
        job = Job(liveness, keep)
    else:
        job.join(partial(run_in_thread, join), timeout_s)
        MPI, world = connected
    return MpiTransport(MPI, world, job, WORLD, tuple(range(world.size)), timeout_s)


def _meet(timeout_s: float) -> Job | None:
    """Heartbeats before MPI connects the ranks, through a file of the job; None if not all ranks can see one."""
    environ = os.environ
    rank, size, local = (int(environ.get(f"OMPI_COMM_WORLD_{name}", -1)) for name in ("RANK", "SIZE", "LOCAL_SIZE"))
    folder = Path(environ.get("OMPI_FILE_LOCATION", "")).parent  # of this run on this host; mpirun removes it
    if rank < 0 or local != size or not folder.is_absolute() or not folder.is_dir() or _library().is_running():
        return None
    file = JobFile(folder / "ttmesh-ranks")

    def exchange(text: str) -> str:
        if rank == 0:
            file.write(text)
            return text
        wait_for_first(lambda: bool(file.read()), str(file.path), rank, timeout_s)
        return file.read()

    liveness, keep, _ = open_liveness(rank, size, exchange, timeout_s)
    return Job(liveness, keep)


class _Library:
    """MPI functions called without Python's lock; mpi4py holds it, so that no other thread runs while they wait."""

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)

    def is_running(self) -> bool:
        """Whether MPI is initialised and not finalised, by us or by the program."""
        began, ended = ctypes.c_int(), ctypes.c_int()
        self._functions.MPI_Initialized(ctypes.byref(began))
        self._functions.MPI_Finalized(ctypes.byref(ended))
        return bool(began.value) and not ended.value

    def initialise(self) -> None:
        """Initialise MPI for several threads: each queue has a worker with its own communicator."""
        given = ctypes.c_int()
        self._functions.MPI_Init_thread(None, None, THREAD_MULTIPLE, ctypes.byref(given))

    def finalise(self) -> None:
        """Finalise MPI; waits for every rank."""
        self._functions.MPI_Finalize()


def _initialise() -> None:
    if not _library().is_running():
        _library().initialise()


@functools.cache
def _library() -> _Library:
    return _Library(str(_load_package().origin))


def _load() -> Any:
    _load_package()
    return importlib.import_module("mpi4py.MPI")


def _load_package() -> ModuleSpec:
    """mpi4py, configured to leave initialising and finalising to us, and the path of its C extension."""
    try:
        mpi4py = importlib.import_module("mpi4py")
        # Finalising waits for every rank, also for a dead one, so only `_free` does it, after a last barrier.
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        spec = importlib.util.find_spec("mpi4py.MPI")
        if spec is None or spec.origin is None:
            raise ImportError("mpi4py has no module MPI")
        return spec
    except (ImportError, RuntimeError) as cause:
        raise RankError(
            f"the engine 'mpi' cannot be loaded ({cause})",
            expected="mpi4py and an MPI library",
            fix="Run: pip install 'ttmesh[mpi]'.",
        ) from cause


class MpiTransport(Transport):
    """Non-blocking MPI calls, polled until they end or their deadline passes."""

    name = "mpi"
    in_place = False  # 154 against 101 µs for 256 KiB
    spins = 200  # most small operations end within them

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

    def _persistent_all_reduce(self, memory: torch.Tensor) -> Callable[[], Done] | None:
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

    def _split(self, group_ranks: tuple[int, ...], name: str) -> Transport:
        chosen = self._comm.Get_group().Incl(group_ranks)
        comm = self._comm.Create_group(chosen)
        comm.Set_errhandler(self._MPI.ERRORS_RETURN)
        ranks = tuple(self.ranks[m] for m in group_ranks)
        return MpiTransport(self._MPI, comm, self._job, name, ranks, self.timeout_s)

    def _free(self) -> None:
        for request in self._requests:
            request.Free()
        self._comm.Free()
        if self.group == WORLD:
            _library().finalise()
