"""Sums over mesh axes are one float32 chain in lane order, rounded once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from ttmesh.chip.formats.kernels import threads
from ttmesh.chip.formats.kernels.lane_sum import lane_sum

AXES = [(0,), (1,), (0, 1)]


def _chain(values: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    rows, columns = values.shape[:2]
    kept_rows, kept_columns = (1 if 0 in axes else rows), (1 if 1 in axes else columns)
    total = torch.zeros(kept_rows, kept_columns, *values.shape[2:])
    for row in range(rows):
        for column in range(columns):
            at = (0 if 0 in axes else row, 0 if 1 in axes else column)
            total[at] = total[at] + values[row, column].float()
    return total


def _lanes(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(2)) * 100).to(dtype)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 4, 1), (2, 2, 7), (8, 4, 3, 67), (2, 4, 64, 65), (4, 8, 1000), (1, 8, 300_001)])
def test_every_size_and_axis_is_the_same_chain(
    axes: tuple[int, ...], dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    values = _lanes(shape, dtype)

    result = lane_sum(values, axes)

    assert result.dtype == dtype
    assert torch.equal(result, _chain(values, axes).to(dtype))


@pytest.mark.usefixtures("served")
def test_a_wide_result_is_not_rounded_to_bfloat16() -> None:
    values = _lanes((2, 4, 5000), torch.bfloat16)

    assert torch.equal(lane_sum(values, (0, 1), dtype=torch.float32), _chain(values, (0, 1)))


@pytest.mark.usefixtures("served")
def test_float32_lanes_round_once_to_bfloat16() -> None:
    values = _lanes((2, 2, 5), torch.float32)

    assert torch.equal(lane_sum(values, (0, 1), dtype=torch.bfloat16), _chain(values, (0, 1)).bfloat16())


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("axes", AXES)
def test_repeated_lanes_count_each_time(axes: tuple[int, ...]) -> None:
    values = _lanes((1, 4, 9000), torch.float32).expand(3, 4, 9000)

    assert torch.equal(lane_sum(values, axes), _chain(values, axes))


@pytest.mark.usefixtures("served")
def test_strided_lanes_are_taken_as_they_read() -> None:
    values = _lanes((2, 4, 90, 100), torch.float32).transpose(-1, -2)

    assert torch.equal(lane_sum(values, (0, 1)), _chain(values, (0, 1)))


@pytest.mark.usefixtures("served")
def test_infinities_and_nans_pass_through() -> None:
    values = torch.zeros(2, 4, 130, dtype=torch.bfloat16)
    values[0, 1, 3], values[1, 2, 4] = torch.inf, torch.nan
    values[0, 0, 129], values[1, 3, 129] = torch.inf, -torch.inf

    result = lane_sum(values, (0, 1)).flatten()

    assert result[3] == torch.inf
    assert result.isnan().nonzero().flatten().tolist() == [4, 129]


@pytest.mark.usefixtures("served")
def test_every_bfloat16_is_summed_to_the_bit() -> None:
    """Subnormals, infinities and signed zeros too: the processor's own conversion differs in some of them."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    values = torch.stack([every, every.roll(257), every.roll(-4097), every * 0])[:, None]

    result = lane_sum(values, (0,))

    expected = _chain(values, (0,)).bfloat16()
    assert torch.equal(result.isnan(), expected.isnan())
    bits, expected_bits = (v.view(torch.int16).masked_fill(v.isnan(), 0) for v in (result, expected))
    assert torch.equal(bits, expected_bits)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_number_of_threads_gives_the_same_sum(count: int, dtype: torch.dtype) -> None:
    values = _lanes((1, 8, 150_001), dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(count)

    result = lane_sum(values, (1,))

    torch.set_num_threads(before)
    assert torch.equal(result, _chain(values, (1,)).to(dtype))


def test_a_team_that_waits_for_processors_rests_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(threads.time, "monotonic", lambda: now)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    team, size = threads.Team(), 8 << 20

    sizes = []
    for now in (1.0, 1.05, 1.2, 1.35, 1.5, 1.9):
        sizes.append(team.size(size))
        if sizes[-1] == 2:
            team.report(size, 30_000_000 if now < 1.5 else 80_000)

    assert sizes == [2, 1, 2, 1, 2, 2]


def test_a_forked_child_sums_too() -> None:
    """OpenMP's threads do not survive a fork: a team in the child would wait for them for ever."""
    script = (
        "import os, torch\n"
        "from ttmesh.chip.formats.kernels.lane_sum import lane_sum\n"
        "torch.set_num_threads(2)\n"
        "values = torch.ones(1, 8, 200_000)\n"
        "assert lane_sum(values, (1,)).eq(8).all()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    torch.set_num_threads(2)\n"
        "    total = lane_sum(values, (1,))\n"
        "    os._exit(0 if total.data_ptr() and total.flatten()[::50_000].tolist() == [8.0] * 4 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr


def test_integers_wrap_to_their_width() -> None:
    values = torch.full((2, 4, 3), 2**30, dtype=torch.int32)

    assert lane_sum(values, (0, 1)).flatten().tolist() == [0, 0, 0]
    assert lane_sum(values, (1,), dtype=torch.int64).flatten().tolist() == [2**32] * 6


def test_no_axis_changes_nothing() -> None:
    values = _lanes((2, 2, 3), torch.float32)

    assert torch.equal(lane_sum(values, ()), values)


def test_meta_lanes_have_the_shape_of_the_sum() -> None:
    result = lane_sum(torch.empty(2, 4, 5, device="meta", dtype=torch.bfloat16), (1,))

    assert (result.shape, result.dtype) == ((2, 1, 5), torch.bfloat16)
