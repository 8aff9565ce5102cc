"""What a mesh axis does to a tensor: copies it, splits it, or leaves a sum to be done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replicate:
    """Every device along the axis holds the same."""

    def __repr__(self) -> str:
        return "PlacementReplicate()"


@dataclass(frozen=True)
class Shard:
    """Device i along the axis holds shard i of tensor dim `dim`."""

    dim: int

    def __repr__(self) -> str:
        return f"PlacementShard({self.dim})"


@dataclass(frozen=True)
class Partial:
    """The devices along the axis hold terms; the value is their reduction. TT-NN has no name for this."""

    reduction: str = "sum"

    def __repr__(self) -> str:
        return f"Partial({self.reduction!r})"


Placement = Replicate | Shard | Partial

# TT-NN's names
PlacementReplicate = Replicate
PlacementShard = Shard
