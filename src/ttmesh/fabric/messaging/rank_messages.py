"""Messages between two ranks of a group: to be waited for, or begun here and looked at later."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.rank_job import Done, Job, Place
from ttmesh.fabric.messaging.wire_layout import as_bytes, deliver, pieces

Tensor = torch.Tensor


class Messages:
    """The part of a transport that sends and receives."""

    group: str
    ranks: tuple[int, ...]
    rank: int
    size: int
    timeout_s: float
    spins: int
    _job: Job
    _place: Place
    _start_send: Callable[[Tensor, int, int, bool], Done]
    _start_recv: Callable[[Tensor, int, int], Done]

    @property
    def world_rank(self) -> int:
        """This process among all."""
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


def _together(parts: list[Done], tensor: Tensor) -> Done:
    """Whether all parts are over (an empty tensor has none); holds the memory that the engine works on."""
    left = list(parts)

    def over() -> bool:
        while left and left[0]():
            left.pop(0)
        return not left and tensor is not None

    return over
