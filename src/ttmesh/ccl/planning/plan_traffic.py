"""How many bytes a plan sends over each link, or through the host; computed from the plan without executing it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from ttmesh.base.link_notation import HOST
from ttmesh.ccl.planning.transfer_plan import TransferPlan
from ttmesh.fabric.routes import Routes

log = logging.getLogger("ttmesh.ccl")

Loads = dict[tuple[int, int], int]
_logged: set[tuple[int, int]] = set()


def count_link_bytes(plan: TransferPlan, size_bytes: int, chip_ids: Sequence[Sequence[int]], routes: Routes) -> Loads:
    """Bytes by (from, to) linked chips if every group of chips executes the plan."""
    loads: Loads = {}
    sent = plan.bytes_by_pair(size_bytes)
    for chips in chip_ids:
        for (source, target), size in sent.items():
            route = routes.route(chips[source], chips[target])
            if len(route) > 2 and abs(source - target) == 1:
                _log_detour(route)
            for a, b in pairwise(route):
                loads[a, b] = loads.get((a, b), 0) + size
    return loads


def count_host_hop_bytes(plan: TransferPlan, size_bytes: int, chip_ids: Sequence[Sequence[int]]) -> Loads:
    """Bytes if the host reads and writes the data of every transfer."""
    loads: Loads = {}
    for chips in chip_ids:
        for (source, target), size in plan.bytes_by_pair(size_bytes).items():
            for hop in ((chips[source], HOST), (HOST, chips[target])):
                loads[hop] = loads.get(hop, 0) + size
    return loads


def count_host_bytes(chip_ids: Sequence[Sequence[int]], *, up: Sequence[int], down: Sequence[int]) -> Loads:
    """Bytes that the host reads from (`up`) and writes to (`down`) each chip of every group."""
    loads: Loads = {}
    for chips in chip_ids:
        for chip, read, written in zip(chips, up, down, strict=True):
            if read:
                loads[chip, HOST] = loads.get((chip, HOST), 0) + read
            if written:
                loads[HOST, chip] = loads.get((HOST, chip), 0) + written
    return loads


def add_loads(several: Sequence[Loads]) -> Loads:
    """The sum of several loads."""
    total: Loads = {}
    for loads in several:
        for hop, size in loads.items():
            total[hop] = total.get(hop, 0) + size
    return total


def _log_detour(route: Sequence[int]) -> None:
    ends = (min(route[0], route[-1]), max(route[0], route[-1]))
    if ends not in _logged:
        _logged.add(ends)
        log.info(
            "chips %d and %d are neighbours in the mesh but not linked: data takes %d links", *ends, len(route) - 1
        )
