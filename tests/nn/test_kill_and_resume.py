"""A training process is killed (SIGKILL) and another one goes on: the curve is that of a run that was never stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import killable_run
import pytest
from gpt_pair import PLACEMENTS, Trainer, opened
from safetensors.torch import load_file

import ttmesh.ttnn as ttnn
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.synchronise import synchronize_gradients

pytestmark = pytest.mark.slow  # processes of their own, most of it imports

HERE = Path(__file__).parent
STEPS, AT = 6, 2


def started(file: Path, placement: str, *pause: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, TTMESH_SYSTEM="t3k", PYTHONPATH=f"{HERE.parents[1] / 'src'}{os.pathsep}{HERE}")
    command = [sys.executable, str(HERE / "killable_run.py"), str(file), placement, str(STEPS), *pause]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def read_until(run: subprocess.Popen[str], last: str) -> dict[int, float]:
    """Losses by step, up to a line that starts like this."""
    found: dict[int, float] = {}
    assert run.stdout is not None
    for line in run.stdout:
        if line[0].isdigit():
            step, loss = line.split()
            found[int(step)] = float(loss)
        if line.startswith(last):
            return found
    raise AssertionError(f"the run ended ({run.wait()}) before {last!r}: {found}")


def killed(run: subprocess.Popen[str]) -> None:
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=180)
    assert run.returncode == -signal.SIGKILL


def finished(file: Path, placement: str, printed: pytest.CaptureFixture[str]) -> dict[int, float]:
    """The same program in this process, from the checkpoint on."""
    printed.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTMESH_SYSTEM", "t3k")
        killable_run.main(file, placement, STEPS)
    return {int(step): float(loss) for step, loss in map(str.split, printed.readouterr().out.splitlines())}


@pytest.fixture(scope="module")
def whole() -> list[float]:
    """The curve of a run that is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTMESH_SYSTEM", "t3k")
        curve = []
        with opened(PLACEMENTS["hybrid"][0]) as mesh:
            trainer = Trainer(mesh, "hybrid")
            optimiser = AdamW(trainer.parameters, 1e-3)
            for step in range(STEPS):
                trainer.feed(step)
                loss = trainer.differentiate()
                synchronize_gradients(trainer.parameters, mode="host")
                optimiser.step()
                trainer.parameters.zero_grad()
                curve.append(trainer.mean(loss))
            del loss, optimiser, trainer
    return curve


@pytest.mark.parametrize(
    ("pause", "kept"), [("between", AT + 1), ("writing", AT), ("renaming", AT)], ids=["between", "writing", "renaming"]
)
def test_a_killed_run_goes_on_from_the_last_whole_checkpoint(
    tmp_path: Path, pause: str, kept: int, whole: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.safetensors"

    with started(file, "hybrid", pause, str(AT)) as run:
        first = read_until(run, "paused")
        killed(run)
    assert load_file(file)["step"].item() == kept  # complete, and that of the last step that was written whole
    second = finished(file, "hybrid", capsys)

    assert sorted(first) == list(range(AT + 1))
    assert sorted(second) == list(range(kept, STEPS))
    assert [(first | second)[step] for step in range(STEPS)] == whole
    assert all(first[step] == second[step] for step in first.keys() & second.keys())
    assert [path.name for path in tmp_path.iterdir()] == [file.name]  # nothing unfinished is left


def test_a_run_killed_at_any_moment_goes_on_on_another_mesh_shape(tmp_path: Path, whole: list[float]) -> None:
    file = tmp_path / "run.safetensors"

    with started(file, "hybrid") as run:
        first = read_until(run, "0")
        killed(run)  # wherever it is now: writing the first checkpoint or computing a later step
    with started(file, "data parallel") as run:
        second = read_until(run, str(STEPS - 1))
        assert run.wait(180) == 0

    curve = [(first | second)[step] for step in range(STEPS)]
    assert curve == pytest.approx(whole, rel=1e-5)
    assert sorted(second) == list(range(min(second), STEPS))


def test_the_learning_rate_and_count_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ttmesh.nn.checkpoints import load_checkpoint, save_checkpoint

    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    with opened((1, 2)) as mesh:
        trainer = Trainer(mesh, "data parallel")
        first, second = AdamW(trainer.parameters, 1e-3), AdamW(trainer.parameters, 1e-3)
        first.set_lr(0.25)
        save_checkpoint(tmp_path / "run.safetensors", first)

        load_checkpoint(tmp_path / "run.safetensors", second)

        assert ttnn.to_torch(ttnn.get_device_tensors(second.lr)[1]).item() == 0.25
        del trainer, first, second
