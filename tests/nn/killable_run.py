"""A training process that a test kills: a checkpoint after every step, a line per step, a pause where it is asked to.

    python killable_run.py <checkpoint> <placement> <steps> [<pause> <step>]

A pause is "between" (after a checkpoint), "writing" (half of a checkpoint is on disk) or "renaming" (all of it is, under
the unfinished name). Goes on from the checkpoint when there is one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpt_pair import PLACEMENTS, Trainer, opened
from safetensors.torch import save_file

import ttmesh.ttnn as ttnn
from ttmesh.nn import checkpoints
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.synchronise import synchronize_gradients


def pause() -> None:
    print("paused", flush=True)
    sys.stdin.read()  # until somebody kills us


def half_written(tensors: dict, path: str) -> None:
    save_file(tensors, path)
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: len(content) // 2])
    pause()


def main(file: Path, placement: str, steps: int, kind: str = "", at: int = -1) -> None:
    with opened(PLACEMENTS[placement][0]) as mesh:
        trainer = Trainer(mesh, placement)
        optimiser = AdamW(trainer.parameters, 1e-3)
        done = 0
        if file.exists():
            checkpoints.load_checkpoint(file, optimiser)
            done = int(ttnn.to_torch(ttnn.get_device_tensors(optimiser.step_count)[0]))
        for step in range(done, steps):
            trainer.feed(step)
            loss = trainer.differentiate()
            synchronize_gradients(trainer.parameters, mode="host")
            optimiser.step()
            trainer.parameters.zero_grad()
            print(step, repr(trainer.mean(loss)), flush=True)
            if step == at and kind == "writing":
                checkpoints.save_file = half_written
            if step == at and kind == "renaming":
                os.replace = lambda *_: pause()
            checkpoints.save_checkpoint(file, optimiser)
            if step == at and kind == "between":
                pause()
        del loss, optimiser, trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:6]))
