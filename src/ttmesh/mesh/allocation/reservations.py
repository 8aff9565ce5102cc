"""Memory of a chip that the runtime reserves, below the allocator's banks."""

from __future__ import annotations

from typing import NamedTuple

KIB = 1024


class Reservation(NamedTuple):
    """One region: its use, its size over the full chip, and whether only the coordinator has it."""

    label: str
    size_bytes: int
    coordinator_only: bool


# They add up to what the first allocation monitor measured on a t3000: 73 KB of L1 on every chip and
# 3.17 MB on the coordinator. The kernel-config ring is tt-metal's default (wh_hal_tensix.cpp); the split is ours.
RESERVATIONS: tuple[Reservation, ...] = (
    Reservation("kernel config ring", 69 * KIB, False),
    Reservation("dispatch mailbox", 2 * KIB, False),
    Reservation("launch messages", 1 * KIB, False),
    Reservation("dispatch semaphores", 1 * KIB, False),
    Reservation("command staging", 1024 * KIB, True),
    Reservation("completion staging", 1024 * KIB, True),
    Reservation("gather staging", 1125 * KIB, True),
)


def list_reservations(*, coordinator: bool) -> list[Reservation]:
    """The reserved regions of one chip."""
    return [region for region in RESERVATIONS if coordinator or not region.coordinator_only]


def reserved_bytes(*, coordinator: bool) -> int:
    """The sum of the reserved regions of one chip."""
    return sum(region.size_bytes for region in list_reservations(coordinator=coordinator))
