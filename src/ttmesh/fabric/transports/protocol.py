"""What every engine offers: collectives and messages between the ranks of a group, each with a deadline.

An engine is a file in this folder with `started(environ) -> bool` (did its launcher start this process?) and
`connect(timeout_s) -> Transport`. It implements the underscored primitives on contiguous tensors; dtypes, shapes,
pieces, deadlines and the naming of culprits are solved here once.

Order of additions: with two ranks every engine gives a + b. With more, the engine chooses (Open MPI: recursive doubling
for short messages, ring or reduce-scatter for long ones; gloo: ring by segments), so float32 sums may differ in the last
bits between engines and sizes; every rank gets the same bits. `ordered=True` adds in rank order, 0 first, in every engine,
at the traffic of an all_gather. bfloat16, float16 and fp8 are added in float32 and rounded once; narrow integers wrap as
torch's do.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch

from ttmesh.base.errors import RankError, ShapeError
from ttmesh.fabric.transports._job import Done, Job, apart
from ttmesh.fabric.transports._layout import (
    COMBINE,
    ENGINE_DTYPES,
    PIECE_BYTES,
    as_bytes,
    check_out,
    deliver,
    paired,
    pieces,
    room,
    sum_dtype,
)
from ttmesh.fabric.transports._standing import Standing, StandingSums

Tensor = torch.Tensor
WORLD = "world"
PAUSE_S = 0.0001  # between two looks of a thread that waits for messages while others compute


class Transport(ABC):
    """One group of ranks; `rank` and `size` count within it, `ranks` are the world's numbers."""

    name: str  # the engine
    in_place = True  # whether reducing into the source's own memory is the quicker way
    spins = 0  # so many quick looks at an operation before the clock is asked

    def __init__(self, job: Job, group: str, ranks: tuple[int, ...], rank: int, timeout_s: float) -> None:
        self.group = group
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.timeout_s = timeout_s
        self._job = job
        self._place = job.place(f"group {group!r}", ranks, ranks[rank], self.spins)
        self._children: list[Transport] = []
        finish = partial(self._job.run, self._place, "all_reduce", limit_s=timeout_s)
        self._standing = StandingSums(self._standing_all_reduce, self._all_reduce_from, finish)
        self._borrows = False  # the communicator belongs to another object
        self._closed = False

    @property
    def world_rank(self) -> int:
        """This process among all."""
        return self.ranks[self.rank]

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return when every rank of the group has come here."""
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
        dtype = sum_dtype(tensor.dtype, op)
        check_out(out, tensor.shape, tensor)
        if ordered:
            rows = self.all_gather(tensor, timeout_s=timeout_s)
            total = rows[0].to(dtype, copy=True)
            for row in rows[1:]:
                COMBINE[op](total, row.to(dtype))
            return deliver(total, tensor.shape, tensor, out)
        source = self._staged(tensor)
        if source.dtype is not dtype:
            source = source.to(dtype)
        private = out is None and source is not tensor and source.data_ptr() != tensor.data_ptr()
        if out is None:
            into = source if private else torch.empty_like(source)  # contiguous, and quicker than naming everything
        else:
            into = room(out, source.shape, dtype, source.device)
        for given, result in paired(source, into):
            self._run("all_reduce", partial(self._start_all_reduce, given, result, op), timeout_s)
        return deliver(into, tensor.shape, tensor, out)

    def standing_sum(self, shape: Sequence[int], dtype: torch.dtype, result: torch.dtype) -> Standing | None:
        """Memory whose sum over the ranks is wanted again and again, and the engine's quickest way to it.

        None where the engine works best in the memory that it is given, and for what is too large to be kept. Every rank
        asks at the same point.
        """
        return None if self.in_place else self._standing.make(shape, dtype, result)

    def all_reduce_given(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """The same of memory that nobody else looks at (it may change): a short way where the engine takes it as it is."""
        if (
            not tensor.is_cpu
            or tensor.dtype not in ENGINE_DTYPES
            or not tensor.is_contiguous()
            or not 0 < tensor.nbytes <= PIECE_BYTES
        ):
            return self.all_reduce(tensor, op, out=tensor if self.in_place else None)
        into = tensor if self.in_place else torch.empty_like(tensor)
        start = partial(self._start_all_reduce, tensor, into, op)
        self._job.run(self._place, "all_reduce", start, self.timeout_s)
        return into

    def all_gather(self, tensor: Tensor, *, out: Tensor | None = None, timeout_s: float | None = None) -> Tensor:
        """Every rank's tensor, stacked: [size, *shape]."""
        shape = (self.size, *tensor.shape)
        check_out(out, shape, tensor)
        source = self._staged(tensor)
        flat = as_bytes(source)
        stacked = room(out, shape, tensor.dtype, source.device)
        rows = as_bytes(stacked).view(self.size, flat.numel())
        for a, b in pieces(flat):
            whole = b - a == flat.numel()
            piece = rows if whole else rows.new_empty((self.size, b - a))
            self._run("all_gather", partial(self._start_all_gather, flat[a:b], piece.view(-1)), timeout_s)
            if not whole:
                rows[:, a:b] = piece
        return deliver(stacked, shape, tensor, out)

    def all_gather_ints(self, values: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers (equally many), in rank order."""
        rows: list[list[int]] = self.all_gather(torch.tensor([*values], dtype=torch.int64)).tolist()
        return rows

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in rank order; they may differ in length."""
        lengths = [row[0] for row in self.all_gather_ints([len(data)])]
        padded = torch.tensor([*data.ljust(max(lengths), b"\0")], dtype=torch.uint8)
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
        dtype = sum_dtype(tensor.dtype, op)
        check_out(out, tensor.shape[1:], tensor)
        rows = self._staged(tensor).to(dtype).view(self.size, tensor.numel() // self.size)
        into = room(out, tensor.shape[1:], dtype, rows.device)
        row = into.view(-1)
        for a, b in pieces(row):
            part = rows[:, a:b].contiguous().view(-1)
            self._run("reduce_scatter", partial(self._start_reduce_scatter, part, row[a:b], op), timeout_s)
        return deliver(into, tensor.shape[1:], tensor, out)

    def broadcast(self, tensor: Tensor, root: int, *, timeout_s: float | None = None) -> Tensor:
        """The root's tensor on every rank; the others pass one of the same shape and dtype, which is filled."""
        self._check_member(root)
        staged = self._staged(tensor)
        flat = as_bytes(staged)
        for a, b in pieces(flat):
            self._run("broadcast", partial(self._start_broadcast, flat[a:b], root), timeout_s)
        return tensor if self.rank == root else deliver(staged, tensor.shape, tensor, tensor)

    def send(
        self,
        tensor: Tensor,
        dest: int,
        *,
        tag: int = 0,
        timeout_s: float | None = None,
        until_received: bool = False,
        operation: str = "send",
    ) -> None:
        """Hand a tensor to a rank of the group; may wait until that rank receives it, and does with `until_received`."""
        self._check_member(dest)
        flat = as_bytes(self._staged(tensor))
        operation = f"{operation} to rank {self.ranks[dest]}"
        for a, b in pieces(flat):
            start = partial(self._start_send, flat[a:b], dest, tag, until_received)
            self._run(operation, start, timeout_s, (self.ranks[dest],))

    def recv(
        self, out: Tensor, source: int, *, tag: int = 0, timeout_s: float | None = None, operation: str = "recv"
    ) -> Tensor:
        """Fill `out` with what a rank of the group sends under this tag."""
        self._check_member(source)
        staged = self._staged(out)
        flat = as_bytes(staged)
        operation = f"{operation} from rank {self.ranks[source]}"
        for a, b in pieces(flat):
            self._run(operation, partial(self._start_recv, flat[a:b], source, tag), timeout_s, (self.ranks[source],))
        return deliver(staged, out.shape, out, out)

    def send_bytes(self, data: bytes, dest: int, *, tag: int = 0, timeout_s: float | None = None) -> None:
        """Hand bytes to a rank of the group."""
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        self.send(flat, dest, tag=tag, timeout_s=timeout_s)

    def recv_bytes(self, size: int, source: int, *, tag: int = 0, timeout_s: float | None = None) -> bytes:
        """So many bytes from a rank of the group."""
        out = self.recv(torch.empty(size, dtype=torch.uint8), source, tag=tag, timeout_s=timeout_s)
        return bytes(out.numpy())

    def for_messages(self, name: str, members: tuple[int, ...]) -> Transport:
        """The same communicator under another name in errors, for messages between some ranks that may wait long.

        For one thread beside others; ranks are numbered as here.
        """
        beside = copy.copy(self)
        ranks = tuple(self.ranks[m] for m in sorted(members))
        beside._place = self._job.place(name, ranks, self.world_rank, self.spins, PAUSE_S)
        beside._children, beside._borrows = [], True
        return beside

    def start_send(self, tensor: Tensor, dest: int, *, tag: int, until_received: bool, operation: str) -> Done:
        """Begin a send and return whether it is over; whoever asks may raise the engine's own error: see `finish`."""
        flat = as_bytes(self._staged(tensor))
        self._job.begin(self._place, f"{operation} to rank {self.ranks[dest]}", (self.ranks[dest],))
        return _together([self._start_send(flat[a:b], dest, tag, until_received) for a, b in pieces(flat)], flat)

    def start_recv(self, out: Tensor, source: int, *, tag: int, operation: str) -> Done:
        """Begin to receive into a contiguous tensor on the host."""
        flat = as_bytes(out)
        self._job.begin(self._place, f"{operation} from rank {self.ranks[source]}", (self.ranks[source],))
        return _together([self._start_recv(flat[a:b], source, tag) for a, b in pieces(flat)], flat)

    def finish(self, done: Done, peer: int, *, operation: str, timeout_s: float | None = None) -> None:
        """Wait for what was begun; what goes wrong becomes an error that names the rank."""
        ranks = (self.ranks[peer],)
        self._run(f"{operation} rank {ranks[0]}", lambda: done, timeout_s, ranks)

    def rest(self) -> None:
        """Everything begun here has ended."""
        self._place.inside = False

    def hurry(self, waiting: bool) -> None:
        """Whether somebody waits for the running operation now; one that nobody waits for may take as long as it likes."""
        self._place.expect_by(self.timeout_s if waiting else math.inf)

    def subgroup(self, members: Sequence[int], name: str) -> Transport:
        """A group of some ranks (numbered as here) with its own communicator; every member calls it, no one else."""
        for member in members:
            self._check_member(member)
        if list(members) != sorted(set(members)) or self.rank not in members:
            raise RankError(
                f"rank {self.rank} asked for group {name!r} of ranks {list(members)}",
                expected="ranks in ascending order, the caller's among them",
                fix="Sort them, and call subgroup on the members only.",
            )
        made: list[Transport] = []
        ranks = tuple(self.ranks[m] for m in members)
        start = partial(apart, lambda: made.append(self._split(tuple(members), name)))
        self._run(f"subgroup {name!r}", start, None, ranks)
        self._children += made
        return made[0]

    def abort(self, reason: str) -> None:
        """Make the running and later operations of every rank fail with this reason."""
        self._job.fail(
            RankError(
                f"rank {self.world_rank} aborted: {reason}",
                expected="every rank to carry on",
                fix=f"Look at the output of rank {self.world_rank}.",
                ranks=(self.world_rank,),
            )
        )

    def close(self) -> None:
        """Leave: the whole job when this is the world, where all ranks meet once more; else only this group."""
        if self._closed:
            return
        self._closed = True
        if self._borrows:
            self._job.forget(self._place)
            return
        ended_well = self._job.broken is None
        if self.group == WORLD:
            ended_well = self._job.leave(self._place, self._start_barrier)
        # Freeing is collective: in a failed job, or with a message on its way, it would wait for ever.
        if ended_well and not self._job.in_use():
            for child in self._children:
                child.close()
            self._free()
        self._children.clear()

    def _run(
        self,
        operation: str,
        start: Callable[[], Done],
        timeout_s: float | None,
        partners: tuple[int, ...] | None = None,
    ) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        self._job.run(self._place, operation, start, limit_s, partners)

    def _staged(self, tensor: Tensor) -> Tensor:
        """The values, contiguous, where the engine can read them; the tensor itself when it already is so."""
        return tensor.detach().cpu().contiguous() if tensor.requires_grad or not tensor.is_cpu else tensor.contiguous()

    def _check_member(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise RankError(
                f"group {self.group!r} has no rank {rank}",
                expected=f"0 to {self.size - 1}",
                fix="Ranks count within their group.",
            )

    @abstractmethod
    def _start_barrier(self) -> Done: ...

    @abstractmethod
    def _start_all_reduce(self, source: Tensor, out: Tensor, op: str) -> Done: ...

    def _standing_all_reduce(self, memory: Tensor) -> Callable[[], Done] | None:
        """What starts the sum of this memory over the ranks, in place, as often as it is called."""
        return None

    def _all_reduce_from(self, memory: Tensor) -> Callable[[Tensor], Done]:
        """What starts the sum of this memory over the ranks, into the tensor it is called with."""
        return lambda into: self._start_all_reduce(memory, into, "sum")

    @abstractmethod
    def _start_all_gather(self, source: Tensor, out: Tensor) -> Done: ...

    @abstractmethod
    def _start_reduce_scatter(self, source: Tensor, out: Tensor, op: str) -> Done: ...

    @abstractmethod
    def _start_broadcast(self, data: Tensor, root: int) -> Done: ...

    @abstractmethod
    def _start_send(self, data: Tensor, dest: int, tag: int, until_received: bool) -> Done: ...

    @abstractmethod
    def _start_recv(self, data: Tensor, source: int, tag: int) -> Done: ...

    @abstractmethod
    def _split(self, members: tuple[int, ...], name: str) -> Transport: ...

    @abstractmethod
    def _free(self) -> None: ...


def _together(parts: list[Done], tensor: Tensor) -> Done:
    """Whether all parts are over; holds the memory that the engine works on."""
    first = parts[0]
    if len(parts) == 1:

        def over() -> bool:
            return first() if tensor is not None else True

        return over
    left = list(parts)

    def all_over() -> bool:
        while left and left[0]():
            left.pop(0)
        return not left and tensor is not None

    return all_over
