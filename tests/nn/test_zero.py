"""Optimiser state cut over chips: clipped, saved, and taken up by another number of chips; the same numbers throughout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpt_pair import BATCH, PLACEMENTS, Trainer, batch_of, opened, torch_losses

import ttmesh.ttnn as ttnn
from ttmesh.nn.checkpoints import load_checkpoint, save_checkpoint
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.synchronise import clip_gradients, synchronize_gradients
from ttmesh.nn.zero import Zero


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")


def furthest(curve: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(curve, expected, strict=True))


def curve(
    placement: str,
    steps: range,
    *,
    cut: bool = True,
    clip: float | None = None,
    dtype: ttnn.DataType = ttnn.float32,
    shape: tuple[int, int] | None = None,
    pieces: int = 1,
    start: Path | None = None,
    end: Path | None = None,
) -> list[float]:
    """Losses of some steps, each batch in so many accumulated pieces."""
    usual, axis, _ = PLACEMENTS[placement]
    found = []
    with opened(shape or usual) as mesh:
        trainer = Trainer(mesh, placement, dtype)
        parameters = trainer.parameters
        if cut:
            optimiser = Zero(parameters, lambda parts: AdamW(parts, 1e-3), axis=axis, mode="host", max_norm=clip)
        else:
            optimiser = AdamW(parameters, 1e-3)
        if start is not None:
            load_checkpoint(start, optimiser)
        for step in steps:
            losses = []
            for part in zip(*(values.chunk(pieces) for values in batch_of(step)), strict=True):
                given = [trainer._host(values.contiguous()).to(mesh) for values in part]
                losses.append(trainer.differentiate(*given, seed=1 / (mesh.get_num_devices() * pieces)))
            if not cut:
                synchronize_gradients(parameters, mode="host")
                if clip is not None:
                    clip_gradients(parameters, clip, mode="host")
            optimiser.step()
            parameters.zero_grad()
            found.append(sum(trainer.mean(loss) for loss in losses) / pieces)
        if end is not None:
            save_checkpoint(end, optimiser)
        del losses, given, optimiser, parameters, trainer
    return found


@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_clipping_of_cut_states_is_torchs(placement: str) -> None:
    expected = torch_losses(10, clip=0.05)

    found = curve(placement, range(10), clip=0.05)

    assert furthest(found, expected) < 1e-5
    assert furthest(found, torch_losses(10)) > 1e-5  # it does clip


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "whole"])
@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_accumulated_and_clipped_steps_are_torchs(placement: str, cut: bool) -> None:
    pieces = BATCH // PLACEMENTS[placement][0][PLACEMENTS[placement][1]] // 2 or 1

    found = curve(placement, range(10), cut=cut, clip=0.05, pieces=pieces)

    assert furthest(found, torch_losses(10, clip=0.05)) < 1e-5


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "whole"])
def test_mixed_precision_accumulates_and_clips_within_a_percent(cut: bool) -> None:
    # bfloat16 keeps 8 bits (0.4 %) per rounding, also of accumulated gradients; master weights are float32.
    found = curve("hybrid", range(20), cut=cut, clip=0.05, pieces=2, dtype=ttnn.bfloat16)

    assert furthest(found, torch_losses(20, clip=0.05)) < 1e-2


@pytest.mark.parametrize("dtype", [ttnn.float32, ttnn.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_a_run_with_cut_states_goes_on_with_the_same_numbers(
    tmp_path: Path, placement: str, dtype: ttnn.DataType
) -> None:
    file = tmp_path / "run.safetensors"
    whole = curve(placement, range(6), clip=0.05, dtype=dtype)

    first = curve(placement, range(3), clip=0.05, dtype=dtype, end=file)
    second = curve(placement, range(3, 6), clip=0.05, dtype=dtype, start=file)

    assert first + second == whole


def test_states_move_between_numbers_of_shards_and_to_none(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]

    found = curve("data parallel", range(2), end=files[0])  # eight shards
    found += curve("data parallel", range(2, 4), shape=(1, 4), start=files[0], end=files[1])  # four
    found += curve("hybrid", range(4, 6), start=files[1], end=files[2])  # two, weights cut over four
    found += curve("data parallel", range(6, 8), cut=False, start=files[2], end=files[0])  # none
    found += curve("hybrid", range(8, 10), start=files[0])  # two again

    assert furthest(found, torch_losses(10)) < 1e-5


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    with opened((1, 2)) as mesh:
        trainer = Trainer(mesh, "data parallel")
        optimiser = Zero(trainer.parameters, lambda parts: AdamW(parts), axis=1, mode="host")
        with pytest.raises(RuntimeError, match=r"no checkpoint at .*run\.safetensors"):
            load_checkpoint(file, optimiser)
        save_checkpoint(file, AdamW(type(trainer.parameters)({"other": trainer.parameters["head.weight"]})))
        with pytest.raises(RuntimeError, match=r"run\.safetensors has no parameter\."):
            load_checkpoint(file, optimiser)
        with pytest.raises(RuntimeError, match=r"is in several optimisers; expected each parameter in one"):
            save_checkpoint(file, optimiser, optimiser)
        del trainer, optimiser


def test_a_step_without_gradients_says_which_parameter_has_none() -> None:
    with opened((1, 2)) as mesh:
        trainer = Trainer(mesh, "data parallel")
        optimiser = Zero(trainer.parameters, lambda parts: AdamW(parts), axis=1, mode="host")
        with pytest.raises(RuntimeError, match=r"Parameter\(\[64, 32\].* has no gradient"):
            optimiser.step()
        del trainer, optimiser


def test_moments_are_those_of_the_optimiser_that_is_not_cut(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    curve("hybrid", range(3), end=tmp_path / "cut.safetensors")
    curve("hybrid", range(3), cut=False, end=tmp_path / "whole.safetensors")

    cut, whole = (load_file(tmp_path / f"{name}.safetensors") for name in ("cut", "whole"))
    assert cut.keys() == whole.keys()
    for name, values in whole.items():
        torch.testing.assert_close(cut[name], values, rtol=1e-4, atol=1e-6, msg=name)
