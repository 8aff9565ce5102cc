"""What a training run shows: a progress bar while it runs, curves of loss and memory at its end."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import ttmesh.ttnn as ttnn
from ttmesh.mesh.functions.memory_reports import peak_bytes

# Where several ranks train together (`ttmesh launch -n 2 examples/train_gpt.py`) the first one speaks for all.
console = Console(highlight=False, quiet=int(ttnn.distributed_context_get_rank()) > 0)
BARS = "▁▂▃▄▅▆▇█"


def use_one_thread() -> None:
    """The tensors of these examples are small: a second thread gains little, and on busy cores its waiting costs minutes."""
    torch.set_num_threads(1)


@dataclass
class Curves:
    """Loss and DRAM of one chip, step by step: what is held after a step, and the most that was held at any moment."""

    name: str
    losses: list[float] = field(default_factory=list)
    dram_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)

    def steps(self, count: int) -> Iterator[int]:
        """Step numbers, with a bar that shows the last loss."""
        columns = (TextColumn(self.name), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            task = progress.add_task(self.name, total=count, loss="")
            for step in range(count):
                yield step
                progress.update(task, advance=1, loss=f"loss {self.losses[-1]:.4f}" if self.losses else "")

    def note(self, mesh: ttnn.MeshDevice, loss: float) -> None:
        """Add a step."""
        view = ttnn.get_memory_view(mesh, ttnn.BufferType.DRAM)
        self.losses.append(loss)
        self.dram_bytes.append(view.num_banks * view.total_bytes_allocated_per_bank)
        self.peak_bytes.append(peak_bytes(mesh, ttnn.BufferType.DRAM))

    def save(self, path: Path) -> Path:
        """An image, or a chart in characters where matplotlib is not installed (pip install "ttmesh[plots]")."""
        if console.quiet:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        if importlib.util.find_spec("matplotlib") is None:
            path = path.with_suffix(".txt")
            path.write_text(self.text())
            console.print(self.text())
        else:
            figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
            steps = range(1, len(self.losses) + 1)
            loss, memory = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
            loss.plot(steps, self.losses, color="tab:blue", label=f"last: {self.losses[-1]:.3g}")
            loss.set_ylabel("loss")
            held, most = ([n / 2**20 for n in sizes] for sizes in (self.dram_bytes, self.peak_bytes))
            memory.plot(steps, most, color="tab:red", label=f"most at any moment: {most[-1]:.2f} MiB")
            memory.fill_between(steps, held, color="tab:green", alpha=0.4, label=f"after a step: {held[-1]:.2f} MiB")
            memory.set_ylabel("DRAM per chip, MiB")
            memory.set_ylim(0, max(most) * 1.5)
            memory.set_xlabel("step")
            for axes in (loss, memory):
                axes.legend(loc="upper right", ncols=2, frameon=False)
                axes.grid(alpha=0.3)
                axes.spines[["top", "right"]].set_visible(False)
                axes.margins(x=0)
            figure.suptitle(self.name)
            figure.savefig(path, dpi=120)
        console.print(f"loss and memory curves: {path.resolve()}")
        return path

    def text(self) -> str:
        """The curves in characters."""
        return "\n".join(f"{title:>20} {_line(values)} {values[-1]:.4g}" for title, values in self._series()) + "\n"

    def _series(self) -> list[tuple[str, list[float]]]:
        return [("loss", self.losses), ("DRAM per chip, MiB", [n / 2**20 for n in self.dram_bytes])]


def _line(values: list[float], width: int = 60) -> str:
    low, high = min(values), max(values)
    sampled = [values[i * len(values) // width] for i in range(width)] if len(values) > width else values
    return "".join(BARS[round((v - low) / ((high - low) or 1) * (len(BARS) - 1))] for v in sampled)
