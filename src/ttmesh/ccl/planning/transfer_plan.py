"""Plans: who sends which chunk to whom, round by round. Pure values; nothing here knows of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class ChipGroup:
    """The members of a collective as a grid, row-major; a line of n is (1, n). `closes`: which axes form rings."""

    shape: tuple[int, int]
    closes: tuple[bool, bool] = (False, False)

    @property
    def size(self) -> int:
        """How many members."""
        return self.shape[0] * self.shape[1]

    @property
    def is_line(self) -> bool:
        """Whether the members stand in one line."""
        return 1 in self.shape

    @property
    def is_ring(self) -> bool:
        """Whether the members stand in one line that closes."""
        return self.is_line and self.closes[1 if self.shape[0] == 1 else 0]


@dataclass(frozen=True)
class Transfer:
    """One chunk from one member to another; there it is added to what is there, or replaces it."""

    source: int
    target: int
    chunk: int
    reduce: bool = False


Round = tuple[Transfer, ...]


@dataclass(frozen=True)
class TransferPlan:
    """Rounds of transfers. What a round sends is what its sources held before the round.

    The data of a collective is cut into `chunks` equal parts; piece p (what member p ends with in a reduce_scatter, or
    brings to an all_gather) is the p-th run of chunks // members of them. Several reductions into one chunk in one
    round are one sum in member order, rounded once.
    """

    members: int
    chunks: int
    rounds: tuple[Round, ...]

    @property
    def parts(self) -> int:
        """How many chunks a piece has."""
        return max(self.chunks // self.members, 1)

    def transfers(self) -> Iterator[Transfer]:
        """Every transfer, in order."""
        return (transfer for round_ in self.rounds for transfer in round_)

    def concat(self, other: TransferPlan) -> TransferPlan:
        """This plan, then another one over the same members and chunks."""
        assert (self.members, self.chunks) == (other.members, other.chunks), "plans over different data"
        return TransferPlan(self.members, self.chunks, self.rounds + other.rounds)

    def sent(self, size_bytes: int) -> dict[tuple[int, int], int]:
        """Bytes by (source, target) when the data has this size."""
        total: dict[tuple[int, int], int] = {}
        for transfer in self.transfers():
            hop = (transfer.source, transfer.target)
            total[hop] = total.get(hop, 0) + chunk_bytes(size_bytes, self.chunks, transfer.chunk)
        return total


def chunk_bytes(size_bytes: int, chunks: int, chunk: int) -> int:
    """The size of one chunk; the sizes of all chunks add up to the whole."""
    return size_bytes * (chunk + 1) // chunks - size_bytes * chunk // chunks


def rounds_of(transfers: Iterable[tuple[int, Transfer]]) -> tuple[Round, ...]:
    """Transfers by the number of their round."""
    rounds: dict[int, list[Transfer]] = {}
    for number, transfer in transfers:
        rounds.setdefault(number, []).append(transfer)
    return tuple(tuple(rounds[number]) for number in sorted(rounds))


def forward_along_paths(members: int, chunks: int, paths: Mapping[int, Sequence[int]]) -> TransferPlan:
    """Chunks that travel along paths of members, one hop a round."""
    hops = (
        (number, Transfer(a, b, chunk)) for chunk, path in paths.items() for number, (a, b) in enumerate(pairwise(path))
    )
    return TransferPlan(members, chunks, rounds_of(hops))


def run_side_by_side(plans: Sequence[TransferPlan], members: int, chunks: int) -> TransferPlan:
    """Plans that run side by side: round i is round i of each."""
    hops = ((i, t) for plan in plans for i, round_ in enumerate(plan.rounds) for t in round_)
    return TransferPlan(members, chunks, rounds_of(hops))
