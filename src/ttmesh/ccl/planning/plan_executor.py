"""Carries a plan out hop by hop, with the rounding of each hop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.transfer_plan import Round, TransferPlan

Combine = Callable[[list[torch.Tensor]], torch.Tensor]
State = list[list[torch.Tensor | None]]  # by member and chunk: [groups, length], None where a member has nothing


def run_reduce(lanes: torch.Tensor, plan: TransferPlan, combine: Combine, dim: int | None) -> torch.Tensor:
    """all_reduce (dim None) or reduce_scatter along a dim of [groups, members, *local], as [groups, members, ...]."""
    n, local = plan.members, lanes.shape[2:]
    pieces = lanes[:, :, None] if dim is None else _split(lanes, dim, n)
    chunks = plan.chunks if dim is None else plan.parts
    cut = _cut(pieces.flatten(3), chunks)  # [groups, members, pieces, chunks, length]
    flat = cut.flatten(2, 3)
    state: State = [[flat[:, m, c] for c in range(plan.chunks)] for m in range(n)]
    _follow(state, plan, combine)
    if dim is None:
        rows = [torch.stack([_held(state, m, c) for c in range(plan.chunks)], 1) for m in range(n)]
        return _join_chunks(torch.stack(rows, 1), local)
    parts = plan.parts
    rows = [torch.stack([_held(state, m, m * parts + p) for p in range(parts)], 1) for m in range(n)]
    return _join_chunks(torch.stack(rows, 1), pieces.shape[3:])


def run_gather(lanes: torch.Tensor, plan: TransferPlan) -> torch.Tensor:
    """all_gather of [groups, members, *local]: [groups, members (receiver), members (origin), *local]."""
    n, parts = plan.members, plan.parts
    cut = _cut(lanes.flatten(2), parts)
    state: State = [[cut[:, m, c % parts] if c // parts == m else None for c in range(plan.chunks)] for m in range(n)]
    _follow(state, plan)
    rows = []
    for m in range(n):
        own = [torch.stack([_held(state, m, i * parts + p) for p in range(parts)], 1) for i in range(n)]
        rows.append(torch.stack(own, 1))
    return _join_chunks(torch.stack(rows, 1), lanes.shape[2:])


def spread(lanes: torch.Tensor, plan: TransferPlan, root: int) -> torch.Tensor:
    """broadcast of one member's part: [groups, members, *local]."""
    state: State = [[lanes[:, root].flatten(1)] if m == root else [None] for m in range(plan.members)]
    _follow(state, plan)
    return torch.stack([_held(state, m, 0) for m in range(plan.members)], 1).reshape(
        lanes.shape[0], plan.members, *lanes.shape[2:]
    )


def run_all_to_all(parts: torch.Tensor, plan: TransferPlan) -> torch.Tensor:
    """all_to_all of [groups, members, parts (by target), ...]: [groups, members (target), members (origin), ...]."""
    n = plan.members
    state: State = [[parts[:, i, j] if i == m else None for i in range(n) for j in range(n)] for m in range(n)]
    _follow(state, plan)
    return torch.stack([torch.stack([_held(state, j, i * n + j) for i in range(n)], 1) for j in range(n)], 1)


def _follow(state: State, plan: TransferPlan, combine: Combine | None = None) -> None:
    for round_ in plan.rounds:
        for (member, chunk), value in _arrivals(state, round_, combine):
            state[member][chunk] = value


def _arrivals(state: State, round_: Round, combine: Combine | None) -> list[tuple[tuple[int, int], torch.Tensor]]:
    """What each target holds after the round; sources are read as they were before it."""
    terms: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    copies: dict[tuple[int, int], torch.Tensor] = {}
    for t in round_:
        place = (t.target, t.chunk)
        if not t.reduce:
            copies[place] = _held(state, t.source, t.chunk)
            continue
        own = terms.setdefault(place, {t.target: _held(state, t.target, t.chunk)})
        own[t.source] = _held(state, t.source, t.chunk)
    assert combine is not None or not terms, "a plan without reductions"
    sums = [(place, combine([by[m] for m in sorted(by)])) for place, by in terms.items()] if combine else []
    return [*copies.items(), *sums]


def _held(state: State, member: int, chunk: int) -> torch.Tensor:
    value = state[member][chunk]
    assert value is not None, f"member {member} does not have chunk {chunk}"
    return value


def _split(lanes: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    """[groups, members, *local] → [groups, members, n pieces, *local with dim / n]."""
    return split_dim(lanes, dim, n).movedim(dim - 1, 2)


def _cut(flat: torch.Tensor, chunks: int) -> torch.Tensor:
    """The last dim as [chunks, length], filled up with zeros."""
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % chunks))
    return split_dim(flat, -1, chunks)


def _join_chunks(cut: torch.Tensor, local: torch.Size) -> torch.Tensor:
    """The inverse of `_cut`, without the zeros."""
    flat = cut.flatten(-2)
    return flat[..., : local.numel()].reshape(*flat.shape[:-1], *local)
