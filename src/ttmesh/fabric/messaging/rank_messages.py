"""Messages between two ranks of a group: blocking, or started here and finished later."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.rank_job import Done, GroupState, Job
from ttmesh.fabric.messaging.wire_layout import as_bytes, deliver, split_pieces

Tensor = torch.Tensor


class Messages:
    """The methods of a transport that send and receive."""

    group: str
    ranks: tuple[int, ...]
    rank: int
    size: int
    timeout_s: float
    spins: int
    _job: Job
    _group_state: GroupState
    _start_send: Callable[[Tensor, int, int, bool], Done]
    _start_recv: Callable[[Tensor, int, int], Done]

    @property
    def world_rank(self) -> int:
        """This process's number in the world."""
        return self.ranks[self.rank]

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
        """Send a tensor to a rank of the group; waits until it is received with `until_received`, and may do so without."""
        self._check_member(dest)
        flat = as_bytes(self._stage(tensor))
        operation = f"{operation} to rank {self.ranks[dest]}"
        for a, b in split_pieces(flat):
            start = partial(self._start_send, flat[a:b], dest, tag, until_received)
            self._run(operation, start, timeout_s, (self.ranks[dest],))

    def recv(
        self, out: Tensor, source: int, *, tag: int = 0, timeout_s: float | None = None, operation: str = "recv"
    ) -> Tensor:
        """Receive into `out` what a rank of the group sends with this tag."""
        self._check_member(source)
        staged = self._stage(out)
        flat = as_bytes(staged)
        operation = f"{operation} from rank {self.ranks[source]}"
        for a, b in split_pieces(flat):
            self._run(operation, partial(self._start_recv, flat[a:b], source, tag), timeout_s, (self.ranks[source],))
        return deliver(staged, out.shape, out, out)

    def send_bytes(self, data: bytes, dest: int, *, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send bytes to a rank of the group."""
        flat = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
        self.send(flat, dest, tag=tag, timeout_s=timeout_s)

    def recv_bytes(self, size: int, source: int, *, tag: int = 0, timeout_s: float | None = None) -> bytes:
        """Receive `size` bytes from a rank of the group."""
        out = self.recv(torch.empty(size, dtype=torch.uint8, device="cpu"), source, tag=tag, timeout_s=timeout_s)
        return bytes(out.numpy())

    def start_send(self, tensor: Tensor, dest: int, *, tag: int, until_received: bool, operation: str) -> Done:
        """Start a send; returns a function that reports whether it has ended or raises the engine's error: see `finish`."""
        flat = as_bytes(self._stage(tensor))
        self._job.begin(self._group_state, f"{operation} to rank {self.ranks[dest]}", (self.ranks[dest],))
        return _combine_requests(
            [self._start_send(flat[a:b], dest, tag, until_received) for a, b in split_pieces(flat)], flat
        )

    def start_recv(self, out: Tensor, source: int, *, tag: int, operation: str) -> Done:
        """Start to receive into a contiguous tensor on the host."""
        flat = as_bytes(out)
        self._job.begin(self._group_state, f"{operation} from rank {self.ranks[source]}", (self.ranks[source],))
        return _combine_requests([self._start_recv(flat[a:b], source, tag) for a, b in split_pieces(flat)], flat)

    def finish(self, done: Done, peer: int, *, operation: str, timeout_s: float | None = None) -> None:
        """Wait for a message that was started; a failure becomes an error that names the rank."""
        ranks = (self.ranks[peer],)
        self._run(f"{operation} rank {ranks[0]}", lambda: done, timeout_s, ranks)

    def mark_idle(self) -> None:
        """Record that all messages started here have ended."""
        self._group_state.inside = False

    def hurry(self, waiting: bool) -> None:
        """Set whether the program waits for the running operation; one that it does not wait for has no deadline."""
        self._group_state.expect_by(self.timeout_s if waiting else math.inf)

    def _run(
        self,
        operation: str,
        start: Callable[[], Done],
        timeout_s: float | None,
        partners: tuple[int, ...] | None = None,
    ) -> None:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        self._job.run(self._group_state, operation, start, limit_s, partners)

    def _stage(self, tensor: Tensor) -> Tensor:
        """The values in contiguous memory that the engine can read; the tensor itself if it already is."""
        return tensor.detach().cpu().contiguous() if tensor.requires_grad or not tensor.is_cpu else tensor.contiguous()

    def _check_member(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise RankError(
                f"group {self.group!r} has no rank {rank}",
                expected=f"0 to {self.size - 1}",
                fix="Pass the rank's number within the group, not in the world.",
            )


def _combine_requests(requests: list[Done], tensor: Tensor) -> Done:
    """A function that reports whether all requests (none for an empty tensor) have ended; keeps their memory alive."""
    left = list(requests)

    def over() -> bool:
        while left and left[0]():
            left.pop(0)
        return not left and tensor is not None

    return over
