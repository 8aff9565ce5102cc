"""Transfer plans: which chip sends which chunk to which chip, round by round; plain values without tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class ChipGroup:
    """The chips of a collective as a grid, row-major; a line of n is (1, n). `closes`: which axes form rings."""

    shape: tuple[int, int]
    closes: tuple[bool, bool] = (False, False)

    @property
    def size(self) -> int:
        """The number of chips."""
        return self.shape[0] * self.shape[1]

    @property
    def is_line(self) -> bool:
        """Whether the chips form a line."""
        return 1 in self.shape

    @property
    def is_ring(self) -> bool:
        """Whether the chips form a ring."""
        return self.is_line and self.closes[1 if self.shape[0] == 1 else 0]


@dataclass(frozen=True)
class Transfer:
    """One chunk from one chip to another, where it is added to the chip's chunk or replaces it."""

    source: int
    target: int
    chunk: int
    reduce: bool = False


Round = tuple[Transfer, ...]


@dataclass(frozen=True)
class TransferPlan:
    """Rounds of transfers. A round sends what its sources held before the round.

    The data of a collective is split into `chunks` equal chunks; shard i (the result of chip i in a reduce_scatter, or its
    input of an all_gather) is the i-th sequence of chunks // group_size of them. Several reductions into one chunk in
    one round are one sum in chip order, rounded once.
    """

    group_size: int
    chunks: int
    rounds: tuple[Round, ...]

    @property
    def chunks_per_shard(self) -> int:
        """The number of chunks of a shard."""
        return max(self.chunks // self.group_size, 1)

    def transfers(self) -> Iterator[Transfer]:
        """Every transfer, in order."""
        return (transfer for round_ in self.rounds for transfer in round_)

    def concat(self, other: TransferPlan) -> TransferPlan:
        """This plan, then another one over the same chips and chunks."""
        assert (self.group_size, self.chunks) == (other.group_size, other.chunks), "plans over different data"
        return TransferPlan(self.group_size, self.chunks, self.rounds + other.rounds)

    def bytes_by_pair(self, size_bytes: int) -> dict[tuple[int, int], int]:
        """Bytes by (source, target) when the data has this size."""
        total: dict[tuple[int, int], int] = {}
        for transfer in self.transfers():
            hop = (transfer.source, transfer.target)
            total[hop] = total.get(hop, 0) + chunk_bytes(size_bytes, self.chunks, transfer.chunk)
        return total


def chunk_bytes(size_bytes: int, chunks: int, chunk: int) -> int:
    """The size of one chunk; the sizes of all chunks add up to size_bytes."""
    return size_bytes * (chunk + 1) // chunks - size_bytes * chunk // chunks


def group_into_rounds(transfers: Iterable[tuple[int, Transfer]]) -> tuple[Round, ...]:
    """Group transfers by the number of their round."""
    rounds: dict[int, list[Transfer]] = {}
    for number, transfer in transfers:
        rounds.setdefault(number, []).append(transfer)
    return tuple(tuple(rounds[number]) for number in sorted(rounds))


def forward_along_paths(group_size: int, chunks: int, paths: Mapping[int, Sequence[int]]) -> TransferPlan:
    """Send chunks along paths of chips, one hop per round."""
    hops = (
        (number, Transfer(a, b, chunk)) for chunk, path in paths.items() for number, (a, b) in enumerate(pairwise(path))
    )
    return TransferPlan(group_size, chunks, group_into_rounds(hops))


def run_in_parallel(plans: Sequence[TransferPlan], group_size: int, chunks: int) -> TransferPlan:
    """Run plans in parallel: round i is round i of each."""
    hops = ((i, t) for plan in plans for i, round_ in enumerate(plan.rounds) for t in round_)
    return TransferPlan(group_size, chunks, group_into_rounds(hops))
