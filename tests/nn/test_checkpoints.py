"""A run that was killed goes on as if it had not been, also on another mesh shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpt_pair import PLACEMENTS, Trainer, opened

import ttmesh.ttnn as ttnn
from ttmesh.nn.checkpoints import load_checkpoint, save_checkpoint
from ttmesh.nn.layers import Attention
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.parameters import Parameter, ParameterSet
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.tensor.transfer.safetensors_files import read_tensors, write_tensors


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")


def curve(
    placement: str, steps: range, dtype: ttnn.DataType, *, start: Path | None = None, end: Path | None = None
) -> list[float]:
    """Losses of some steps, from a checkpoint, to a checkpoint."""
    found = []
    with opened(PLACEMENTS[placement][0]) as mesh:
        trainer = Trainer(mesh, placement, dtype)
        optimiser = AdamW(trainer.parameters, 1e-3)
        if start is not None:
            load_checkpoint(start, optimiser)
        for step in steps:
            trainer.feed(step)
            loss = trainer.differentiate()
            synchronize_gradients(trainer.parameters, mode="host")
            optimiser.step()
            trainer.parameters.zero_grad()
            found.append(trainer.mean(loss))
        if end is not None:
            save_checkpoint(end, optimiser)
        del loss, optimiser, trainer
    return found


@pytest.mark.parametrize("dtype", [ttnn.float32, ttnn.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("placement", ["data parallel", "hybrid"])
def test_a_killed_run_goes_on_with_the_same_numbers(tmp_path: Path, placement: str, dtype: ttnn.DataType) -> None:
    whole = curve(placement, range(6), dtype)

    first = curve(placement, range(3), dtype, end=tmp_path / "run.safetensors")
    second = curve(placement, range(3, 6), dtype, start=tmp_path / "run.safetensors")

    assert first + second == whole


def test_a_run_goes_on_on_another_mesh_shape(tmp_path: Path) -> None:
    whole = curve("one chip", range(6), ttnn.float32)

    first = curve("data parallel", range(3), ttnn.float32, end=tmp_path / "run.safetensors")
    second = curve("one chip", range(3, 6), ttnn.float32, start=tmp_path / "run.safetensors")

    torch.testing.assert_close(torch.tensor(first + second), torch.tensor(whole), rtol=1e-5, atol=0)


def test_heads_keep_their_meaning_on_another_number_of_model_parts(tmp_path: Path) -> None:
    whole = curve("one chip", range(6), ttnn.float32)

    first = curve("hybrid", range(3), ttnn.float32, end=tmp_path / "run.safetensors")
    second = curve("tensor parallel", range(3, 6), ttnn.float32, start=tmp_path / "run.safetensors")

    torch.testing.assert_close(torch.tensor(first + second), torch.tensor(whole), rtol=1e-5, atol=0)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    with opened((1, 1)) as mesh:
        wide, narrow = (
            AdamW(ParameterSet({"w": Parameter(torch.zeros(32, size), mesh, dtype=ttnn.float32)})) for size in (64, 32)
        )
        save_checkpoint(tmp_path / "wide.safetensors", wide)

        with pytest.raises(RuntimeError, match=r"parameter.w has shape \[32, 64\]"):
            load_checkpoint(tmp_path / "wide.safetensors", narrow)
        del wide, narrow


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    def pair(second: int) -> ParameterSet:
        return ParameterSet({
            name: Parameter(torch.full((32, size), float(second)), mesh, dtype=ttnn.float32)
            for name, size in (("a", 32), ("b", second))
        })  # fmt: skip

    with opened((1, 1)) as mesh:
        saved, other = AdamW(pair(64)), AdamW(pair(96))
        save_checkpoint(tmp_path / "pair.safetensors", saved)

        with pytest.raises(RuntimeError, match=r"parameter.b has shape \[32, 64\]"):
            load_checkpoint(tmp_path / "pair.safetensors", other)

        assert torch.equal(other.parameters["a"].to_torch(), torch.full((32, 32), 96.0))
        del saved, other


def test_a_checkpoint_without_a_state_or_with_another_dtype_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    with opened((1, 1)) as mesh:
        optimiser = AdamW(ParameterSet({"w": Parameter(torch.zeros(32, 32), mesh, dtype=ttnn.float32)}))
        save_checkpoint(path, optimiser)
        whole, _ = read_tensors(path)
        assert {name: tuple(t.shape) for name, t in whole.items()} == optimiser.state_shapes()
        changed = whole | {"parameter.w": torch.ones(32, 32)}

        for name in [n for n in whole if n != "parameter.w"]:
            write_tensors(path, {n: t for n, t in changed.items() if n != name})
            with pytest.raises(RuntimeError, match=f"has no {name}"):
                load_checkpoint(path, optimiser)
            write_tensors(path, changed | {name: whole[name].to(torch.int32)})
            with pytest.raises(RuntimeError, match=f"{name} is of torch.int32"):
                load_checkpoint(path, optimiser)

        assert (optimiser.parameters["w"].to_torch() == 0).all()
        del optimiser


def test_files_that_are_no_checkpoint_and_folders_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.safetensors").write_text("not a checkpoint" * 10)
    with opened((1, 1)) as mesh:
        optimiser = AdamW(ParameterSet({"w": Parameter(torch.zeros(32, 32), mesh, dtype=ttnn.float32)}))

        with pytest.raises(
            RuntimeError, match=r"text\.safetensors is not a checkpoint: .*; expected a file of save_check"
        ):
            load_checkpoint(tmp_path / "text.safetensors", optimiser)
        with pytest.raises(RuntimeError, match=r"no.run\.safetensors cannot be written: .*No such file or directory"):
            save_checkpoint(tmp_path / "no" / "run.safetensors", optimiser)
        with pytest.raises(RuntimeError, match=r"a learning rate of -0\.1; expected 0 or more"):
            optimiser.set_lr(-0.1)
        del optimiser


def test_heads_that_do_not_divide_the_weights_are_refused() -> None:
    with (
        opened((1, 1)) as mesh,
        pytest.raises(RuntimeError, match=r"7 heads of weights \[64, 192\]; expected \[size, 3"),
    ):
        Attention(mesh, torch.zeros(64, 192), torch.zeros(64, 64), heads=7)
