"""Executes a plan hop by hop, with the rounding of each hop."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ttmesh.ccl.planning.lane_groups import split_dim
from ttmesh.ccl.planning.transfer_plan import Round, TransferPlan

Combine = Callable[[list[torch.Tensor]], torch.Tensor]
State = list[list[torch.Tensor | None]]  # by chip and chunk: [groups, length], None if the chip lacks the chunk


def run_reduce(lanes: torch.Tensor, plan: TransferPlan, combine: Combine, dim: int | None) -> torch.Tensor:
    """all_reduce (dim None) or reduce_scatter along a dim of [groups, chips, *local]; returns [groups, chips, ...]."""
    n, local = plan.group_size, lanes.shape[2:]
    shards = lanes[:, :, None] if dim is None else _split_shards(lanes, dim, n)
    chunks = plan.chunks if dim is None else plan.chunks_per_shard
    chunked = _split_chunks(shards.flatten(3), chunks)  # [groups, chips, shards, chunks, length]
    flat = chunked.flatten(2, 3)
    state: State = [[flat[:, m, c] for c in range(plan.chunks)] for m in range(n)]
    _run_rounds(state, plan, combine)
    if dim is None:
        rows = [torch.stack([_read_chunk(state, m, c) for c in range(plan.chunks)], 1) for m in range(n)]
        return _merge_chunks(torch.stack(rows, 1), local)
    chunks_per_shard = plan.chunks_per_shard
    rows = [
        torch.stack([_read_chunk(state, m, m * chunks_per_shard + p) for p in range(chunks_per_shard)], 1)
        for m in range(n)
    ]
    return _merge_chunks(torch.stack(rows, 1), shards.shape[3:])


def run_gather(lanes: torch.Tensor, plan: TransferPlan) -> torch.Tensor:
    """all_gather of [groups, chips, *local]: [groups, chips (receiver), chips (origin), *local]."""
    n, chunks_per_shard = plan.group_size, plan.chunks_per_shard
    chunked = _split_chunks(lanes.flatten(2), chunks_per_shard)
    state: State = [
        [chunked[:, m, c % chunks_per_shard] if c // chunks_per_shard == m else None for c in range(plan.chunks)]
        for m in range(n)
    ]
    _run_rounds(state, plan)
    rows = []
    for m in range(n):
        shards = [
            torch.stack([_read_chunk(state, m, i * chunks_per_shard + p) for p in range(chunks_per_shard)], 1)
            for i in range(n)
        ]
        rows.append(torch.stack(shards, 1))
    return _merge_chunks(torch.stack(rows, 1), lanes.shape[2:])


def run_broadcast(lanes: torch.Tensor, plan: TransferPlan, root: int) -> torch.Tensor:
    """broadcast of one chip's lanes: [groups, chips, *local]."""
    state: State = [[lanes[:, root].flatten(1)] if m == root else [None] for m in range(plan.group_size)]
    _run_rounds(state, plan)
    return torch.stack([_read_chunk(state, m, 0) for m in range(plan.group_size)], 1).reshape(
        lanes.shape[0], plan.group_size, *lanes.shape[2:]
    )


def run_all_to_all(shards: torch.Tensor, plan: TransferPlan) -> torch.Tensor:
    """all_to_all of [groups, chips, shards (by target), ...]: [groups, chips (target), chips (origin), ...]."""
    n = plan.group_size
    state: State = [[shards[:, i, j] if i == m else None for i in range(n) for j in range(n)] for m in range(n)]
    _run_rounds(state, plan)
    return torch.stack([torch.stack([_read_chunk(state, j, i * n + j) for i in range(n)], 1) for j in range(n)], 1)


def _run_rounds(state: State, plan: TransferPlan, combine: Combine | None = None) -> None:
    for round_ in plan.rounds:
        for (chip, chunk), value in _find_arrivals(state, round_, combine):
            state[chip][chunk] = value


def _find_arrivals(state: State, round_: Round, combine: Combine | None) -> list[tuple[tuple[int, int], torch.Tensor]]:
    """The values that arrive in a round, by target; sources are read as before the round."""
    terms: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    copies: dict[tuple[int, int], torch.Tensor] = {}
    for t in round_:
        slot = (t.target, t.chunk)
        if not t.reduce:
            copies[slot] = _read_chunk(state, t.source, t.chunk)
            continue
        slot_terms = terms.setdefault(slot, {t.target: _read_chunk(state, t.target, t.chunk)})
        slot_terms[t.source] = _read_chunk(state, t.source, t.chunk)
    assert combine is not None or not terms, "plans with reductions need a combine function"
    sums = (
        [(slot, combine([terms_of_slot[m] for m in sorted(terms_of_slot)])) for slot, terms_of_slot in terms.items()]
        if combine
        else []
    )
    return [*copies.items(), *sums]


def _read_chunk(state: State, chip: int, chunk: int) -> torch.Tensor:
    value = state[chip][chunk]
    assert value is not None, f"chip {chip} does not have chunk {chunk}"
    return value


def _split_shards(lanes: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    """[groups, chips, *local] → [groups, chips, n shards, *local with dim / n]."""
    return split_dim(lanes, dim, n).movedim(dim - 1, 2)


def _split_chunks(flat: torch.Tensor, chunks: int) -> torch.Tensor:
    """Split the last dim into [chunks, length], padded with zeros."""
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % chunks))
    return split_dim(flat, -1, chunks)


def _merge_chunks(chunked: torch.Tensor, local: torch.Size) -> torch.Tensor:
    """The inverse of `_split_chunks`, without the padding."""
    flat = chunked.flatten(-2)
    return flat[..., : local.numel()].reshape(*flat.shape[:-1], *local)
