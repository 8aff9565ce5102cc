"""What every rank of a fault launch runs: one of them goes down in some phase, the others must name it.

python going_down.py PHASE SIGNAL VICTIM FOLDER
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import torch

from ttmesh.fabric.messaging import engines, rank_job

phase, number, victim, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0")))
size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def go_down(here: str) -> None:
    if here == phase and rank == victim:
        while len(list(folder.glob("joins*"))) < size - 1:  # one that has not begun to wait has nothing to say
            time.sleep(0.02)
        print(f"rank {rank} goes down: {here}", flush=True)
        os.kill(os.getpid(), number)
        time.sleep(3600)


def show_joining() -> None:
    if rank != victim:
        (folder / f"joins{rank}").touch()


def go_down_inside(here: str) -> None:
    """Soon after the operation began, wherever the engine is then."""
    threading.Thread(target=lambda: (time.sleep(0.05), go_down(here)), daemon=True).start()


engines.load(engines.choose_engine() or "")
go_down("before")
begin = rank_job.Job.begin


def begin_and_go_down(self: rank_job.Job, place: rank_job.GroupState, operation: str, partners: object) -> None:
    begin(self, place, operation, partners)
    if operation == rank_job.JOIN:
        show_joining()
        go_down("joining")
    if operation == rank_job.FINALISE:
        go_down("finalising")


rank_job.Job.begin = begin_and_go_down  # type: ignore[method-assign,assignment]
if phase == "before":  # then nobody gets further than this
    show_joining()
world = engines.world()
assert world is not None
world.all_reduce(torch.ones(10))
go_down("idle")
if phase == "collective":
    go_down_inside("collective")
    while True:
        world.all_reduce(torch.ones(1 << 16))
world.barrier()
go_down("closing")
