"""What was left, for every display: buffers lost with their process, and those held at a close; equal ones as one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ttmesh.tracking.leftovers import Ended, Leftover
from ttmesh.tracking.state import Leaks

PIDS_SHOWN = 3


@dataclass(frozen=True)
class LeakGroup:
    """Equal leftovers of any number of processes; `times` says how many processes or closed meshes left them."""

    pids: tuple[int, ...]
    ends: tuple[str, ...]
    program: str
    site: str
    label: str
    memory_class: str
    buffers: int
    chips: int
    size_bytes: int
    times: int
    last_s: float


@dataclass(frozen=True)
class LeakReport:
    """Lost: the process ended while it held them. Held at close: a mesh was closed, which freed them."""

    lost: tuple[LeakGroup, ...]
    at_close: tuple[LeakGroup, ...]
    left_out: int = 0


def group_leaks(found: Leaks, *, pid: int | None = None) -> LeakReport:
    """What one process or all left, the largest first."""
    ends = [ended for ended in (*found.ended, *found.living) if pid in (None, ended.who.pid)]
    lost = _group((ended, place) for ended in ends for place in ended.held)
    at_close = _group((ended, place) for ended in ends for place in ended.at_close)
    return LeakReport(tuple(lost), tuple(at_close), found.left_out)


def describe_pids(group: LeakGroup) -> str:
    """PID 7, or PIDs 7, 8 and 5 more; when the last one ended, if it did."""
    shown = ", ".join(map(str, group.pids[:PIDS_SHOWN]))
    more = f" and {len(group.pids) - PIDS_SHOWN} more" if len(group.pids) > PIDS_SHOWN else ""
    if not group.last_s:
        end = ", still running"
    else:
        word = "killed or crashed" if "death" in group.ends else "ended"
        end = f", {word} at {time.strftime('%H:%M:%S', time.localtime(group.last_s))}"
    return f"PID{'s' if len(group.pids) > 1 else ''} {shown}{more}{end}"


def _group(pairs: Iterable[tuple[Ended, Leftover]]) -> Iterator[LeakGroup]:
    """Pairs with the same program, call site, operation, class and number of chips as one."""
    groups: dict[tuple[str, str, str, str, int], list[tuple[Ended, Leftover]]] = {}
    for ended, place in pairs:
        key = (ended.name, place.site, place.label, place.buffer_type, place.chips)
        groups.setdefault(key, []).append((ended, place))
    sizes = {key: sum(place.size_bytes for _, place in group) for key, group in groups.items()}
    for key in sorted(groups, key=lambda key: -sizes[key]):
        group = groups[key]
        program, site, label, memory_class, chips = key
        yield LeakGroup(
            pids=tuple(dict.fromkeys(ended.who.pid for ended, _ in group)),
            ends=tuple(dict.fromkeys(place.end for _, place in group)),
            program=program,
            site=site,
            label=label,
            memory_class=memory_class,
            buffers=sum(place.buffers for _, place in group),
            chips=chips,
            size_bytes=sizes[key],
            times=sum(place.times for _, place in group),
            last_s=max(ended.time_s for ended, _ in group),
        )
