"""A training process that a test kills: a checkpoint after every step, a line per step, a pause where it is asked to.

    python killable_run.py <checkpoint> <placement> <steps> [<pause> <step>]

A pause is "between" (after a checkpoint), "writing" (half of a checkpoint is on disk) or "renaming" (all of it is, under
the unfinished name). Goes on from the checkpoint when there is one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

from gpt_pair import PLACEMENTS, Trainer, opened

import ttmesh.ttnn as ttnn
from ttmesh.base.atomic_files import replace_file
from ttmesh.nn import checkpoints
from ttmesh.nn.optimisers import AdamW
from ttmesh.nn.synchronise import synchronize_gradients
from ttmesh.tensor.transfer import safetensors_files


def pause() -> None:
    print("paused", flush=True)
    sys.stdin.read()  # until somebody kills us


@contextmanager
def replace_half(path: Path) -> Iterator[BinaryIO]:
    """Pauses at the second write: the header is on disk, the tensors are not."""
    with replace_file(path) as file:
        write, sizes = file.write, []

        def write_once(data: bytes) -> int:
            sizes.append(len(data))
            if len(sizes) == 2:
                file.flush()
                pause()
            return write(data)

        yield SimpleNamespace(write=write_once)


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
                safetensors_files.replace_file = replace_half
            if step == at and kind == "renaming":
                os.replace = lambda *_: pause()
            checkpoints.save_checkpoint(file, optimiser)
            if step == at and kind == "between":
                pause()
        del loss, optimiser, trainer


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:5], *map(int, sys.argv[5:6]))
