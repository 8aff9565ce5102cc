"""What every rank of a contract launch runs: all promises of `transports/protocol.py`, in one process start."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from ttmesh.base.errors import RankError, ShapeError
from ttmesh.fabric.messaging import engines, wire_layout

w = engines.world()
assert w is not None
r, n = w.rank, w.size


def mine(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator().manual_seed(rank)
    return (torch.rand(shape, generator=g) * 40 - 20).to(dtype)


def all_of(shape, dtype):
    return torch.stack([mine(i, shape, dtype).to(torch.float64) for i in range(n)])


def check_reductions() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.int64):
        rows = all_of((3, 5), dtype)
        got = w.all_reduce(mine(r, (3, 5), dtype))
        assert got.dtype == dtype
        want = rows.sum(0)
        # one rounding of a float32 sum: half a unit in the last place of the result's format, plus float32's own error
        eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0
        assert ((got.to(torch.float64) - want).abs() <= want.abs() * eps + 1e-4 * (eps > 0)).all(), dtype
        assert torch.equal(w.all_reduce(mine(r, (3, 5), dtype), "max").double(), rows.amax(0)), dtype
        assert torch.equal(w.all_reduce(mine(r, (3, 5), dtype), "min").double(), rows.amin(0)), dtype
    positive = (mine(r, (4, 4), torch.float32).abs()).to(torch.uint8)
    assert w.all_reduce(positive).dtype == torch.uint8
    wrapped = w.all_reduce(torch.full((4,), 100, dtype=torch.int8))
    assert torch.equal(wrapped, torch.full((4,), (100 * n + 128) % 256 - 128, dtype=torch.int8))


def check_rows_go_to_their_ranks() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        rows = torch.stack([mine(10 * r + to, (3, 2), dtype) for to in range(n)])
        wanted = torch.stack([mine(10 * sender + r, (3, 2), dtype) for sender in range(n)])
        assert torch.equal(w.all_to_all(rows), wanted)
    assert w.all_to_all(torch.empty(n, 0)).shape == (n, 0)


def check_order_and_outputs() -> None:
    rows = [mine(i, (1000,), torch.float32) for i in range(n)]
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    assert torch.equal(w.all_reduce(rows[r], ordered=True), total)
    same = w.all_gather(w.all_reduce(rows[r]))
    assert all(torch.equal(same[0], row) for row in same)
    if n == 2:
        assert torch.equal(w.all_reduce(rows[r]), total)
    kept = rows[r].clone()
    out = torch.empty(1000)
    assert w.all_reduce(kept, out=out) is out
    assert torch.equal(kept, rows[r])
    assert w.all_reduce(kept, out=kept) is kept
    assert torch.equal(kept, out)
    learned = rows[r].clone().requires_grad_()
    assert torch.equal(w.all_reduce(learned), w.all_reduce(rows[r]))
    assert torch.equal(learned.detach(), rows[r])
    b = mine(r, (100,), torch.bfloat16)
    exact = torch.stack([mine(i, (100,), torch.bfloat16).float() for i in range(n)]).sum(0).bfloat16()
    if n == 2:
        assert torch.equal(w.all_reduce(b), exact)
    with pytest.raises(ShapeError, match=r"out has shape \[3\]"):
        w.all_reduce(rows[r], out=torch.empty(3))
    with pytest.raises(RankError, match="no reduction named 'mean'; expected one of"):
        w.all_reduce(rows[r], "mean")
    with pytest.raises(RankError, match=r"torch\.bool cannot be reduced"):
        w.all_reduce(torch.ones(2, dtype=torch.bool))


def check_persistent_sums() -> None:
    few, many = (2, 1, 300), (2, 1, 30_000)  # below and above what is kept ready in the engine
    for result in (torch.float32, torch.bfloat16):
        ready = {shape: w.make_persistent_sum(shape, torch.float32, result) for shape in (few, many)}
        if w.in_place:
            assert ready == {few: None, many: None}
            continue
        kept = []
        for again in range(3):
            for shape, standing in ready.items():
                standing.memory.copy_(mine(r + again, shape, torch.float32))
                kept.append((standing.run(), sum(mine(i + again, shape, torch.float32) for i in range(n)).to(result)))
        for got, want in kept:  # later sums leave earlier results alone
            assert got.dtype is result
            torch.testing.assert_close(got, want)
    assert w.make_persistent_sum((0, 4), torch.float32, torch.float32) is None
    assert w.make_persistent_sum((4,), torch.bfloat16, torch.bfloat16) is None
    assert w.make_persistent_sum((1 << 30,), torch.float32, torch.float32) is None
    given = mine(r, (30, 20), torch.float32)
    total = sum(mine(i, (30, 20), torch.float32) for i in range(n))
    torch.testing.assert_close(w.all_reduce_given(given.clone()), total)
    torch.testing.assert_close(w.all_reduce_given(given.t().clone().t()), total)  # not contiguous
    torch.testing.assert_close(w.all_reduce_given(given.bfloat16()).float(), total, rtol=2**-6, atol=2**-3)


def check_shapes() -> None:
    strided = mine(r, (6, 8), torch.bfloat16).t()[::2]
    want = torch.stack([mine(i, (6, 8), torch.bfloat16).t()[::2] for i in range(n)])
    assert torch.equal(w.all_gather(strided), want)
    assert w.all_reduce(torch.empty(0, 4)).shape == (0, 4)
    assert w.all_gather(torch.empty(0, 4)).shape == (n, 0, 4)
    assert torch.equal(w.all_reduce(torch.tensor(2.0)), torch.tensor(2.0 * n))
    fp8 = mine(r, (16,), torch.float8_e4m3fn)
    assert torch.equal(w.all_gather(fp8)[0].float(), mine(0, (16,), torch.float8_e4m3fn).float())
    rows = torch.stack([mine(r * 10 + i, (2, 3), torch.float32) for i in range(n)])
    summed = sum(mine(i * 10 + r, (2, 3), torch.float32) for i in range(n))
    torch.testing.assert_close(w.reduce_scatter(rows), summed)
    with pytest.raises(ShapeError, match="one row per rank"):
        w.reduce_scatter(torch.zeros(n + 1, 2))
    column = torch.zeros(4, 4)[:, 1]
    w.broadcast(column if r else column.copy_(torch.arange(4.0)), 0)
    assert torch.equal(column, torch.arange(4.0))


def check_pieces() -> None:
    whole, wire_layout.PIECE_BYTES = wire_layout.PIECE_BYTES, 100
    x = mine(r, (7, 11), torch.float32)
    gathered = torch.stack([mine(i, (7, 11), torch.float32) for i in range(n)])
    torch.testing.assert_close(w.all_reduce(x), gathered.sum(0))
    assert torch.equal(w.all_gather(x), gathered)
    torch.testing.assert_close(w.reduce_scatter(gathered), gathered[r] * n)
    assert torch.equal(w.broadcast(x, n - 1), gathered[n - 1])
    wire_layout.PIECE_BYTES = whole


def check_messages() -> None:
    right, left = (r + 1) % n, (r - 1) % n
    payload = mine(r, (33,), torch.bfloat16)
    got = torch.zeros(66, dtype=torch.bfloat16)[::2]
    if r % 2 == 0:
        w.send(payload, right, tag=3)
        w.recv(got, left, tag=3)
        w.send_bytes(b"hello %d" % r, right, tag=4)
        w.send_bytes(b"", right)
    else:
        w.recv(got, left, tag=3)
        w.send(payload, right, tag=3)
        assert w.recv_bytes(7, left, tag=4) == b"hello %d" % left
        assert w.recv_bytes(0, left) == b""
    assert torch.equal(got, mine(left, (33,), torch.bfloat16))
    with pytest.raises(RankError, match=f"group 'world' has no rank {n}"):
        w.send(payload, n)


def check_groups() -> None:
    half = w.subgroup([i for i in range(n) if i % 2 == r % 2], f"parity{r % 2}")
    again = w.subgroup([i for i in range(n) if i % 2 == r % 2], "queue1")
    assert half.ranks == tuple(i for i in range(n) if i % 2 == r % 2)
    assert half.ranks[half.rank] == r == half.world_rank
    assert half.all_reduce(torch.tensor([r])).item() == sum(half.ranks)
    assert again.all_gather(torch.tensor([r])).flatten().tolist() == list(again.ranks)
    half.close()
    half.close()
    once_more = w.subgroup(list(half.ranks), "after a close")
    assert once_more.all_reduce(torch.tensor([1])).item() == half.size
    for a in range(n - 1):  # some ranks are in two of these, some in one
        if r in (a, a + 1):
            assert w.subgroup([a, a + 1], f"pair{a}").all_reduce(torch.tensor([r])).item() == 2 * a + 1
    with pytest.raises(RankError, match="expected ranks in ascending order"):
        w.subgroup(list(range(n))[::-1], "backwards")
    with pytest.raises(RankError, match="call subgroup only on those ranks"):
        w.subgroup([(r + 1) % n], "others")


def check_threads() -> None:
    """Two queues at once, each with its own communicator, in different orders on the ranks."""
    queues = [w.subgroup(list(range(n)), f"queue{q}") for q in (0, 1)]
    sums: dict[int, float] = {}

    def work(q: int) -> None:
        for step in range(20):
            sums[q] = queues[q].all_reduce(torch.full((100,), float(step + q))).sum().item()

    workers = [threading.Thread(target=work, args=(q,)) for q in ((0, 1) if r % 2 else (1, 0))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sums == {0: 1900.0 * n, 1: 2000.0 * n}


for check in (
    check_reductions,
    check_order_and_outputs,
    check_persistent_sums,
    check_shapes,
    check_pieces,
    check_messages,
    check_groups,
    check_threads,
):
    check()
    w.barrier()
print(f"rank {r} of {n} kept the contract of {w.name}")
sys.stdout.flush()
