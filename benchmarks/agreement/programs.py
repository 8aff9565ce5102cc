"""Random programs: up to 30 steps, each with results of earlier ones as operands; what every step did, as a line of JSON.

A program is drawn while TT-NN runs it, because a step is chosen by what the tensors are by then; ttmesh repeats
the written steps.

usage: python programs.py real.jsonl SEED COUNT [--models]       under TT-NN; starts anew behind steps that end the process
       ttmesh run programs.py ours.jsonl --like real.jsonl       under ttmesh: the same steps
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import model_blocks
from program_steps import ProgramDraw
from record import Session

STEPS = 30
ANEW = 25  # after so many programs the mesh is opened anew


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("seed", nargs="?", default="1")
    parser.add_argument("count", nargs="?", type=int, default=100)
    parser.add_argument("--like", type=Path, help="a record whose programs are repeated")
    parser.add_argument(
        "--models", action="store_true", help="blocks of models (model_blocks.py) instead of random steps"
    )
    parser.add_argument("--start", type=int, help="inside: the first program of this process")
    asked = parser.parse_args()
    if asked.like is not None:
        repeat([json.loads(line) for line in asked.like.read_text().splitlines()], asked.out)
    elif asked.start is not None:
        with asked.out.open("a") as out:
            steps = model_steps if asked.models else random_steps
            draw_programs(asked, steps, out, Path(f"{asked.out}.at"))
    else:
        supervise(asked)


def supervise(asked: argparse.Namespace) -> None:
    """Starts processes until all programs are done; a step at which one ends is written down as such."""
    asked.out.write_text("")
    at, start = Path(f"{asked.out}.at"), 0
    while start < asked.count:
        inner = [sys.executable, __file__, str(asked.out), asked.seed, str(asked.count), "--start", str(start)]
        inner += ["--models"] if asked.models else []
        done = subprocess.run(inner, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            break
        row = json.loads(at.read_text())
        with asked.out.open("a") as out:
            out.write(json.dumps(row | {"error": "process ended"}) + "\n")
        start = row["program"] + 1
    at.unlink(missing_ok=True)


def random_steps(seed: str, machine: Machine) -> Iterator[str]:
    """Steps that are chosen by what the tensors are by then."""
    draw = ProgramDraw(seed, machine.tensors, machine.grid())
    for step in range(draw.random.randrange(8, STEPS + 1)):
        yield draw.step(step)


def model_steps(seed: str, machine: Machine) -> Iterator[str]:
    """Steps of blocks of models."""
    yield from model_blocks.draw(seed, machine.grid())


def draw_programs(
    asked: argparse.Namespace, steps: Callable[[str, Machine], Iterator[str]], out: TextIO, at: Path
) -> None:
    """Draws and runs programs."""
    machine = None
    for number in range(asked.start, asked.count):
        if machine is None or number % ANEW == 0:
            machine = reopen(machine)
        machine.begin()
        for step, text in enumerate(steps(f"{asked.seed} {number}", machine)):
            row = {"program": number, "step": step, "text": text}
            at.write_text(json.dumps(row))
            outcome = machine.run(text)
            out.write(json.dumps(row | outcome) + "\n")
            out.flush()
    if machine is not None:
        machine.close()


def repeat(rows: list[dict], path: Path) -> None:
    """Runs written programs; a step that ended or was refused in the record leaves nothing behind here either."""
    machine, number, opened = None, None, 0
    with path.open("w") as out:
        for row in rows:
            if row["program"] != number:
                number, opened = row["program"], opened + 1
                if machine is None or opened % ANEW == 0:
                    machine = reopen(machine)
                machine.begin()
            written = {key: row[key] for key in ("program", "step", "text")}
            if row.get("error") == "process ended":
                outcome = {"error": "process ended"}
            else:
                outcome = machine.run(row["text"], keep="error" not in row)
            out.write(json.dumps(written | outcome) + "\n")
            out.flush()
    if machine is not None:
        machine.close()


def reopen(machine: Machine | None) -> Machine:
    """A new machine; the old one is closed."""
    if machine is not None:
        machine.close()
    return Machine()


class Machine:
    """A mesh of one chip and the tensors of one program by name."""

    def __init__(self) -> None:
        import torch
        import ttnn

        self.ttnn, self.session = ttnn, Session(ttnn, torch)
        self.tensors: dict[str, object] = {}
        self.base: dict[str, int] = {}
        self.free: list[int] = []
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        self.tensors.clear()
        gc.collect()
        self.ttnn.close_mesh_device(self.session.mesh)

    def grid(self) -> tuple[int, int]:
        size = self.session.mesh.compute_with_storage_grid_size()
        return size.x, size.y

    def begin(self) -> None:
        """Forgets the tensors and device programs of the last program."""
        self.tensors.clear()
        gc.collect()
        self.session.mesh.clear_program_cache()
        self.base = {kind: self.session.next_address(self.session.words()[kind]) for kind in ("DRAM", "L1")}
        self.free = [view.largest_contiguous_bytes_free_per_bank for view in self.views()]

    def run(self, text: str, keep: bool = True) -> dict[str, object]:
        """What a step does: the tensors it names afterwards, new device programs, memory in use."""
        session = self.session
        words, before = session.words(), session.mesh.num_program_cache_entries()
        names = dict(words)
        names.update(self.tensors)
        error = None
        try:
            exec(text, names)
        except NameError:
            return {"skipped": True}
        except Exception as refusal:
            whole = str(refusal)
            told = re.search(r"info:\s*\n(.*)", whole)
            error = (told.group(1) if told else whole.strip().split("\n")[0])[:200]
        if error is not None:
            names.clear()
            gc.collect()
            return {"error": error} | self.memory()
        made = [name for name in names if name not in words and name != "__builtins__"]
        if keep:
            for name in set(self.tensors) - set(made):
                del self.tensors[name]
            self.tensors.update((name, names[name]) for name in made)
        target = re.match(r"(t\d+) = ", text)
        outcome: dict[str, object] = {"result": None}
        if target is not None:
            try:
                outcome["result"] = session.describe(names[target.group(1)], self.base)
            except Exception as refusal:
                outcome["result"] = f"not described: {str(refusal)[:60]}"
        outcome["programs"] = session.mesh.num_program_cache_entries() - before
        if not keep:
            outcome["programs"] = None
        names.clear()
        gc.collect()
        return outcome | self.memory()

    def memory(self) -> dict[str, object]:
        """Bytes per bank, DRAM and L1: those in use, and by how many the largest free span is smaller than at the start."""
        views = zip(self.views(), self.free, strict=True)
        return {
            "memory": [
                [view.total_bytes_allocated_per_bank, free - view.largest_contiguous_bytes_free_per_bank]
                for view, free in views
            ]
        }

    def views(self) -> list:
        ttnn = self.ttnn
        return [ttnn.get_memory_view(self.session.mesh, kind) for kind in (ttnn.BufferType.DRAM, ttnn.BufferType.L1)]


if __name__ == "__main__":
    main()
