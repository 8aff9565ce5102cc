"""What a plan sends over which link, or through the host: computed from the plan, not by carrying it out."""

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


def over_links(plan: TransferPlan, size_bytes: int, lines: Sequence[Sequence[int]], routes: Routes) -> Loads:
    """Bytes by (from, to) neighbouring chips when every line of chips follows the plan."""
    loads: Loads = {}
    sent = plan.sent(size_bytes)
    for chips in lines:
        for (source, target), size in sent.items():
            route = routes.route(chips[source], chips[target])
            if len(route) > 2 and abs(source - target) == 1:
                _log_detour(route)
            for a, b in pairwise(route):
                loads[a, b] = loads.get((a, b), 0) + size
    return loads


def hop_by_hop_over_host(plan: TransferPlan, size_bytes: int, lines: Sequence[Sequence[int]]) -> Loads:
    """Every transfer read by the host and written again."""
    loads: Loads = {}
    for chips in lines:
        for (source, target), size in plan.sent(size_bytes).items():
            for hop in ((chips[source], HOST), (HOST, chips[target])):
                loads[hop] = loads.get(hop, 0) + size
    return loads


def over_host(lines: Sequence[Sequence[int]], *, up: Sequence[int], down: Sequence[int]) -> Loads:
    """What the host reads from (`up`) and writes to (`down`) each member of every line, in bytes."""
    loads: Loads = {}
    for chips in lines:
        for chip, read, written in zip(chips, up, down, strict=True):
            if read:
                loads[chip, HOST] = loads.get((chip, HOST), 0) + read
            if written:
                loads[HOST, chip] = loads.get((HOST, chip), 0) + written
    return loads


def together(parts: Sequence[Loads]) -> Loads:
    """Loads that come one after the other."""
    total: Loads = {}
    for loads in parts:
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
