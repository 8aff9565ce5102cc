"""The rows of `make bench`: what was measured, what it is compared with, and whether it reaches its aim."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

FILE = "BENCH_ROWS"  # names the file that a benchmark appends its rows to; unset: nobody collects them


@dataclass(frozen=True)
class BenchRow:
    """One figure; less is better."""

    name: str
    unit: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict)  # the same work by others, in the same unit
    limit: float | None = None  # what the machine allows, or what is promised
    limit_name: str = ""
    peer_aim: float | None = None  # at most so many times the best peer
    limit_aim: float | None = None  # at most so many times the limit
    group: str = ""  # the benchmark and the numerics that it ran with

    @property
    def best_peer(self) -> tuple[str, float] | None:
        """The fastest of the others."""
        return min(self.peers.items(), key=lambda peer: peer[1]) if self.peers else None

    @property
    def peer_ratio(self) -> float | None:
        """Our time as a multiple of the best peer's."""
        return None if self.best_peer is None else self.ours / self.best_peer[1]

    @property
    def limit_ratio(self) -> float | None:
        """Our time as a multiple of the limit."""
        return None if self.limit is None else self.ours / self.limit

    @property
    def has_aim(self) -> bool:
        """Whether the row is judged at all."""
        return self.peer_aim is not None or self.limit_aim is not None

    @property
    def is_met(self) -> bool:
        """Whether the row reaches its aims; one without the peer that it is to beat does not."""
        pairs = ((self.peer_ratio, self.peer_aim), (self.limit_ratio, self.limit_aim))
        return all(aim is None or (ratio is not None and ratio <= aim) for ratio, aim in pairs)


def note(*rows: BenchRow) -> None:
    """Hand rows to the table that is being made, if one is."""
    if FILE in os.environ:
        with Path(os.environ[FILE]).open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


def read_rows(file: Path, group: str) -> list[BenchRow]:
    """The rows that one benchmark has noted."""
    lines: Iterable[str] = file.read_text().splitlines() if file.exists() else ()
    return [BenchRow(**{**json.loads(line), "group": group}) for line in lines]
