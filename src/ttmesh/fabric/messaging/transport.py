"""What every engine offers: collectives and messages between the ranks of a group, each with a deadline.

An engine is a file in fabric/transports with `is_launched(environ) -> bool` (did its launcher start this process?) and
`connect(timeout_s) -> Transport`. It implements the underscored primitives on contiguous tensors; dtypes, shapes,
pieces, deadlines and errors that name ranks are handled here.

Order of additions: with two ranks every engine gives a + b. With more, the engine chooses (Open MPI: recursive doubling
for short messages, ring or reduce-scatter for long ones; gloo: ring by segments), so float32 sums may differ in the last
bits between engines and sizes; every rank gets the same bits. `ordered=True` adds in rank order, 0 first, in every engine,
at the traffic of an all_gather. bfloat16, float16 and fp8 are added in float32 and rounded once; narrow integers wrap as
torch's do.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ttmesh.base import settings
from ttmesh.base.errors import RankError, ShapeError
from ttmesh.fabric.messaging.persistent_sums import PersistentSum as PersistentSum
from ttmesh.fabric.messaging.persistent_sums import PersistentSums
from ttmesh.fabric.messaging.rank_job import Done, Job, run_in_thread
from ttmesh.fabric.messaging.rank_messages import Messages
from ttmesh.fabric.messaging.wire_layout import (
    COMBINE,
    ENGINE_DTYPES,
    PIECE_BYTES,
    as_bytes,
    check_out,
    deliver,
    get_output_memory,
    pair_pieces,
    split_pieces,
    sum_dtype,
)

Tensor = torch.Tensor
WORLD = "world"
CALL_BYTES = 128  # of the call description that ranks exchange with TTMESH_CHECK_RANKS
PAUSE_S = 0.0001  # between two polls of a thread that waits for messages while others compute


class Transport(Messages, ABC):
    """One group of ranks; `rank` and `size` count within it, `ranks` are the world's numbers."""

    name: str  # the engine
    in_place = True  # whether reducing in place is faster
    spins = 0  # how often an operation is polled before the clock is read

    def __init__(self, job: Job, group: str, ranks: tuple[int, ...], rank: int, timeout_s: float) -> None:
        self.group = group
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.timeout_s = timeout_s
        self._job = job
        self._group_state = job.add_group(f"group {group!r}", ranks, ranks[rank], self.spins)
        self._checks = settings.get_bool("TTMESH_CHECK_RANKS")
        self._children: list[Transport] = []
        finish = partial(self._job.run, self._group_state, "all_reduce", limit_s=timeout_s)
        self._persistent_sums = PersistentSums(self._persistent_all_reduce, self._all_reduce_from, finish)
        self._borrows = False  # the communicator belongs to another object
        self._closed = False

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until every rank of the group has called it."""
        if self._checks:
            self._agree("barrier")
        self._run("barrier", self._start_barrier, timeout_s)

    def all_reduce(
        self,
        tensor: Tensor,
        op: str = "sum",
        *,
        out: Tensor | None = None,
        ordered: bool = False,
        timeout_s: float | None = None,
    ) -> Tensor:
        """The sum (max, min) over the ranks, on every rank; in `out` when given (it may be the tensor itself)."""
        if self._checks:
            self._agree(f"all_reduce ({op})", tensor)
        dtype = sum_dtype(tensor.dtype, op)
        check_out(out, tensor.shape, tensor)
        if ordered:
            rows = self.all_gather(tensor, timeout_s=timeout_s)
            total = rows[0].to(dtype, copy=True)
            for row in rows[1:]:
                COMBINE[op](total, row.to(dtype))
            return deliver(total, tensor.shape, tensor, out)
        source = self._stage(tensor)
        if source.dtype is not dtype:
            source = source.to(dtype)
        private = out is None and source is not tensor and source.data_ptr() != tensor.data_ptr()
        if out is None:
            into = source if private else torch.empty_like(source)  # contiguous, and faster than passing every stride
        else:
            into = get_output_memory(out, source.shape, dtype, source.device)
        for given, result in pair_pieces(source, into):
            self._run("all_reduce", partial(self._start_all_reduce, given, result, op), timeout_s)
        return deliver(into, tensor.shape, tensor, out)

    def make_persistent_sum(
        self, shape: Sequence[int], dtype: torch.dtype, result: torch.dtype
    ) -> PersistentSum | None:
        """A prepared all_reduce for sums that are repeated with this shape.

        None if preparing does not help with this engine, or if the tensor is too large. All ranks call it in the same order.
        """
        return None if self.in_place or self._checks else self._persistent_sums.make(shape, dtype, result)

    def all_reduce_given(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """all_reduce that may overwrite `tensor`; saves copies if the engine can use the tensor's memory directly."""
        if (
            self._checks
            or not tensor.is_cpu
            or tensor.dtype not in ENGINE_DTYPES
            or not tensor.is_contiguous()
            or not 0 < tensor.nbytes <= PIECE_BYTES
        ):
            return self.all_reduce(tensor, op, out=tensor if self.in_place else None)
        into = tensor if self.in_place else torch.empty_like(tensor)
        start = partial(self._start_all_reduce, tensor, into, op)
        self._job.run(self._group_state, "all_reduce", start, self.timeout_s)
        return into

    def all_gather(self, tensor: Tensor, *, out: Tensor | None = None, timeout_s: float | None = None) -> Tensor:
        """Every rank's tensor, stacked: [size, *shape]."""
        if self._checks:
            self._agree("all_gather", tensor)
        shape = (self.size, *tensor.shape)
        check_out(out, shape, tensor)
        source = self._stage(tensor)
        flat = as_bytes(source)
        stacked = get_output_memory(out, shape, tensor.dtype, source.device)
        rows = as_bytes(stacked).view(self.size, flat.numel())
        for a, b in split_pieces(flat):
            whole = b - a == flat.numel()
            piece = rows if whole else rows.new_empty((self.size, b - a))
            self._run("all_gather", partial(self._start_all_gather, flat[a:b], piece.view(-1)), timeout_s)
            if not whole:
                rows[:, a:b] = piece
        return deliver(stacked, shape, tensor, out)

    def all_gather_ints(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers (equally many), in rank order."""
        rows: list[list[int]] = self.all_gather(torch.tensor([*values], dtype=torch.int64, device="cpu")).tolist()
        return rows

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order; they may differ in length."""
        lengths = [row[0] for row in self.all_gather_ints([len(data)])]
        padded = torch.tensor([*data.ljust(max(lengths), b"\0")], dtype=torch.uint8, device="cpu")
        rows = self.all_gather(padded)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]

    def reduce_scatter(
        self, tensor: Tensor, op: str = "sum", *, out: Tensor | None = None, timeout_s: float | None = None
    ) -> Tensor:
        """From [size, *shape] on every rank: the reduced row of this rank."""
        if tensor.dim() == 0 or tensor.shape[0] != self.size:
            raise ShapeError(
                f"reduce_scatter over {self.size} ranks got shape {list(tensor.shape)}",
                expected=f"a first dimension of {self.size}, one row per rank",
                fix="Split the dimension to scatter and move it to the front.",
            )
        if self._checks:
            self._agree(f"reduce_scatter ({op})", tensor)
        dtype = sum_dtype(tensor.dtype, op)
        check_out(out, tensor.shape[1:], tensor)
        rows = self._stage(tensor).to(dtype).view(self.size, tensor.numel() // self.size)
        into = get_output_memory(out, tensor.shape[1:], dtype, rows.device)
        row = into.view(-1)
        for a, b in split_pieces(row):
            piece = rows[:, a:b].contiguous().view(-1)
            self._run("reduce_scatter", partial(self._start_reduce_scatter, piece, row[a:b], op), timeout_s)
        return deliver(into, tensor.shape[1:], tensor, out)

    def all_to_all(self, tensor: Tensor, *, timeout_s: float | None = None) -> Tensor:
        """From [size, *shape] on every rank, one row for each of them: the rows that were for this rank, by sender."""
        if self._checks:
            self._agree("all_to_all", tensor)
        source = self._stage(tensor)
        rows = as_bytes(source).view(self.size, source.nbytes // self.size)
        into = torch.empty_like(source)
        got = as_bytes(into).view(rows.shape)
        for a, b in split_pieces(rows[0]):
            given, piece = rows[:, a:b].contiguous(), rows.new_empty(self.size, b - a)
            self._run("all_to_all", partial(self._start_all_to_all, given.view(-1), piece.view(-1)), timeout_s)
            got[:, a:b] = piece
        return deliver(into, tensor.shape, tensor, None)

    def broadcast(self, tensor: Tensor, root: int, *, timeout_s: float | None = None) -> Tensor:
        """The root's tensor on every rank; the others pass one of the same shape and dtype, which is filled."""
        if self._checks:
            self._agree(f"broadcast from rank {self.ranks[root]}", tensor)
        self._check_member(root)
        staged = self._stage(tensor)
        flat = as_bytes(staged)
        for a, b in split_pieces(flat):
            self._run("broadcast", partial(self._start_broadcast, flat[a:b], root), timeout_s)
        return tensor if self.rank == root else deliver(staged, tensor.shape, tensor, tensor)

    def for_messages(self, name: str, group_ranks: tuple[int, ...]) -> Transport:
        """The same communicator under another name in errors, for messages between some ranks that may wait long.

        For one thread beside others; ranks are numbered as here.
        """
        beside = copy.copy(self)
        ranks = tuple(self.ranks[m] for m in sorted(group_ranks))
        beside._group_state = self._job.add_group(name, ranks, self.world_rank, self.spins, PAUSE_S)
        beside._children, beside._borrows = [], True
        return beside

    def subgroup(self, group_ranks: Sequence[int], name: str) -> Transport:
        """A group of some ranks (numbered as here) with its own communicator; called by exactly these ranks."""
        for rank in group_ranks:
            self._check_member(rank)
        if list(group_ranks) != sorted(set(group_ranks)) or self.rank not in group_ranks:
            raise RankError(
                f"rank {self.rank} asked for group {name!r} of ranks {list(group_ranks)}",
                expected="ranks in ascending order, the caller's among them",
                fix="Sort the ranks, and call subgroup only on those ranks.",
            )
        made: list[Transport] = []
        ranks = tuple(self.ranks[m] for m in group_ranks)
        start = partial(run_in_thread, lambda: made.append(self._split(tuple(group_ranks), name)))
        self._run(f"subgroup {name!r}", start, None, ranks)
        self._children += made
        return made[0]

    def _agree(self, operation: str, tensor: Tensor | None = None) -> None:
        """Raise if ranks call different collectives, before the engine mixes up their data."""
        what = operation if tensor is None else f"{operation} of {list(tensor.shape)} {str(tensor.dtype)[6:]}"
        own = torch.frombuffer(bytearray(what.encode()[:CALL_BYTES].ljust(CALL_BYTES)), dtype=torch.uint8)
        rows = own.new_empty(self.size, CALL_BYTES)
        self._run("check", partial(self._start_all_gather, own, rows.view(-1)), None)
        calls_by_rank = [bytes(row.tolist()).decode(errors="replace").rstrip() for row in rows]
        if any(text != calls_by_rank[0] for text in calls_by_rank):
            calls = "; ".join(f"rank {rank}: {text}" for rank, text in zip(self.ranks, calls_by_rank, strict=True))
            raise RankError(
                f"ranks call different operations on group {self.group!r}: {calls}",
                expected="the same collective with the same shape and dtype on every rank",
                fix="Look for earlier code that depends on the rank.",
                ranks=self.ranks,
            )

    def abort(self, reason: str) -> None:
        """Make the running and later operations of every rank fail with this reason."""
        self._job.fail(
            RankError(
                f"rank {self.world_rank} aborted: {reason}",
                expected="every rank to continue",
                fix=f"Look at the output of rank {self.world_rank}.",
                ranks=(self.world_rank,),
            )
        )

    def close(self, on_error: Callable[[RankError], object] | None = None) -> None:
        """Close the group; closing the world ends the job with a last barrier of all ranks.

        `on_error` gets what went wrong while leaving: at the end of a program no code would catch it.
        """
        if self._closed:
            return
        self._closed = True
        if self._borrows:
            self._job.forget(self._group_state)
        elif self.group == WORLD:
            problem = self._job.leave(self._group_state, self._start_barrier, self._free_all, self.timeout_s)
            if problem is not None and on_error is not None:
                on_error(problem)
            if self._job.broken is not None:
                self._abandon()
            self._job.end()
        elif self._job.broken is None and not self._job.in_use():
            self._run("close", partial(run_in_thread, self._free_all), None)
        self._children.clear()

    def _free_all(self) -> None:
        for child in self._children:
            if not child._closed and not child._borrows:
                child._closed = True
                child._free_all()
        self._free()

    def _abandon(self) -> None:
        """Drop the engine of a failed job without waiting for other ranks."""

    @abstractmethod
    def _start_barrier(self) -> Done: ...

    @abstractmethod
    def _start_all_reduce(self, source: Tensor, out: Tensor, op: str) -> Done: ...

    def _persistent_all_reduce(self, memory: Tensor) -> Callable[[], Done] | None:
        """A function that starts the sum of this memory over the ranks in place, and may be called repeatedly."""
        return None

    def _all_reduce_from(self, memory: Tensor) -> Callable[[Tensor], Done]:
        """A function that starts the sum of this memory over the ranks into the tensor it is called with."""
        return lambda into: self._start_all_reduce(memory, into, "sum")

    @abstractmethod
    def _start_all_gather(self, source: Tensor, out: Tensor) -> Done: ...

    @abstractmethod
    def _start_all_to_all(self, source: Tensor, out: Tensor) -> Done: ...

    @abstractmethod
    def _start_reduce_scatter(self, source: Tensor, out: Tensor, op: str) -> Done: ...

    @abstractmethod
    def _start_broadcast(self, data: Tensor, root: int) -> Done: ...

    @abstractmethod
    def _start_send(self, data: Tensor, dest: int, tag: int, until_received: bool) -> Done: ...

    @abstractmethod
    def _start_recv(self, data: Tensor, source: int, tag: int) -> Done: ...

    @abstractmethod
    def _split(self, group_ranks: tuple[int, ...], name: str) -> Transport: ...

    @abstractmethod
    def _free(self) -> None: ...
