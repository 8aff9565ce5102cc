"""Indices out of range on a GPU are clamped and reported later with the CPU's error; here the guard runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ttmesh.chip.backends.index_guard import MOST_PENDING, IndexGuard, uses_indices

SOURCE = torch.arange(24.0).reshape(4, 6)
INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "gather": lambda x, i: torch.gather(x, 1, i.expand(4, 2)),
    "index_select": lambda x, i: x.index_select(1, i),
    "scatter": lambda x, i: x.scatter(1, i.expand(4, 2), 0.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i.expand(4, 2), torch.ones(4, 2)),
    "index_add": lambda x, i: x.index_add(1, i, torch.ones(4, 2)),
    "index_fill": lambda x, i: x.index_fill(1, i, 0.0),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x.T.contiguous()),
    "brackets": lambda x, i: x[:, i],
    "brackets, assigned": lambda x, i: x.clone().index_put_((torch.zeros(2, dtype=torch.long), i), torch.ones(2)),
}
each = pytest.mark.parametrize("name", INDEXED)


@each
def test_indices_in_range_change_nothing_and_raise_nothing(name: str) -> None:
    guard, index = IndexGuard(), torch.tensor([0, 5])

    result = guard.run(INDEXED[name])(SOURCE, index)
    guard.check()

    assert torch.equal(result, INDEXED[name](SOURCE, index))


@each
@pytest.mark.parametrize("bad", [6, 1000, -7])
def test_an_index_out_of_range_is_an_error_when_somebody_waits(name: str, bad: int) -> None:
    guard, index = IndexGuard(), torch.tensor([1, bad])

    guard.run(INDEXED[name])(SOURCE, index)

    with pytest.raises((IndexError, RuntimeError), match=rf"(?s)index {bad} is out of bounds.*(with )?size 6|{bad}"):
        guard.check()
    guard.check()  # and only once


def test_negative_indices_count_from_the_end_where_torch_lets_them() -> None:
    guard = IndexGuard()

    assert torch.equal(guard.run(INDEXED["brackets"])(SOURCE, torch.tensor([-1, -6])), SOURCE[:, [5, 0]])
    guard.check()


def test_an_empty_source_is_refused_at_once() -> None:
    with pytest.raises((IndexError, RuntimeError), match="index 0"):
        IndexGuard().run(lambda: torch.zeros(0, 3).index_select(0, torch.tensor([0])))()


def test_what_is_kept_is_bounded() -> None:
    guard = IndexGuard()
    guard.run(INDEXED["gather"])(SOURCE, torch.tensor([0, 9]))

    with pytest.raises((IndexError, RuntimeError), match="index 9"):
        for _ in range(MOST_PENDING):
            guard.run(INDEXED["gather"])(SOURCE, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("body", "uses"),
    [
        (lambda x: torch.gather(x, 0, torch.zeros(1, 1, dtype=torch.long, device="meta")), True),
        (lambda x: x + 1, False),
        (lambda x: x[1:], False),
    ],
)
def test_functions_that_index_are_found_on_meta(body: Callable[[torch.Tensor], torch.Tensor], uses: bool) -> None:
    assert uses_indices(lambda: body(torch.empty(4, 4, device="meta"))) is uses
