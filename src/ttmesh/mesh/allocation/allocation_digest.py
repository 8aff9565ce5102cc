"""The digest that ranks compare at barriers: a hash of a mesh's allocations, and enough of them to name a difference.

Frees are not in the hash: the garbage collector may free at different moments on different ranks, and a free that
matters shows by the address of what is allocated after it. What an operation takes and gives back within a call is not in it
either: the result's address shows what matters of that too.
"""

from __future__ import annotations

from collections import deque

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import RankError
from ttmesh.fabric.messaging.transport import Transport

KEPT = 50_000  # allocations since the last equal comparison that can be named; older ones are only in the hash
BATCH = 4096
MASK = (1 << 63) - 1

Entry = tuple[int, BufferType, int, int, str]  # running hash, buffer type, address, bytes per bank, label


class Digest:
    """The allocations of one mesh since ranks last compared them."""

    __slots__ = ("_fresh", "_hash", "_recent", "count")

    def __init__(self) -> None:
        self.count = 0  # allocations in the hash
        self._hash = 0
        self._recent: deque[Entry] = deque(maxlen=KEPT)
        self._fresh: list[tuple[BufferType, int, int, str]] = []

    def add(self, buffer_type: BufferType, address: int, bank_bytes: int, label: str) -> None:
        """Add an allocation; hashing comes later, in batches, because every operation calls this."""
        self._fresh.append((buffer_type, address, bank_bytes, label))
        if len(self._fresh) == BATCH:
            self._hash_fresh()

    def _hash_fresh(self) -> None:
        for buffer_type, address, bank_bytes, label in self._fresh:
            # Numbers only: Python salts the hashes of texts differently in every process.
            self._hash = hash((self._hash, buffer_type.value, address, bank_bytes)) & MASK
            self._recent.append((self._hash, buffer_type, address, bank_bytes, label))
        self.count += len(self._fresh)
        self._fresh.clear()

    def compare(self, group: Transport, mesh: str) -> None:
        """Raise on every rank when their allocations differ; every rank of the mesh calls it."""
        self._hash_fresh()
        rows = group.all_gather_ints([self.count, self._hash])
        if all(row == rows[0] for row in rows):
            self._recent.clear()
            return
        shared = min(count for count, _ in rows)
        number = self._find_first_difference(group, shared)
        own = self._find_entry(number)
        reports = group.all_gather_bytes(_describe_entry(own).encode())
        what = "; ".join(f"rank {rank}: {text.decode()}" for rank, text in zip(group.ranks, reports, strict=True))
        raise RankError(
            f"ranks allocated differently on {mesh}: allocation {number} is {what}",
            expected="the same allocations in the same order on every rank, so that addresses agree",
            fix="Look before that allocation for code that depends on the rank.",
            ranks=group.ranks,
        )

    def _find_first_difference(self, group: Transport, shared: int) -> int:
        """The number of the first allocation whose running hashes differ, found by bisecting what all ranks kept."""
        oldest = max(row[0] for row in group.all_gather_ints([self.count - len(self._recent)]))
        low, high = oldest, shared + 1  # allocation `low` is equal on all ranks (or no longer kept), `high` is not
        while high - low > 1:
            middle = (low + high) // 2
            entry = self._recent[middle - (self.count - len(self._recent)) - 1] if middle <= shared else None
            hashes = group.all_gather_ints([entry[0] if entry else -1])
            if all(row == hashes[0] for row in hashes):
                low = middle
            else:
                high = middle
        return high

    def _find_entry(self, number: int) -> Entry | None:
        index = number - (self.count - len(self._recent)) - 1
        return self._recent[index] if 0 <= index < len(self._recent) else None


def _describe_entry(entry: Entry | None) -> str:
    if entry is None:
        return "none"
    _, buffer_type, address, bank_bytes, label = entry
    return f"{bank_bytes} B per bank in {buffer_type.name} at {address} for {label or 'a buffer'}"
