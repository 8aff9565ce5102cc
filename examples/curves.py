"""What a training run shows: a progress bar while it goes on, curves of loss and memory when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import ttmesh.ttnn as ttnn

console = Console(highlight=False)
BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Curves:
    """Loss and DRAM of one chip, step by step."""

    name: str
    losses: list[float] = field(default_factory=list)
    dram_bytes: list[int] = field(default_factory=list)

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

    def save(self, path: Path) -> Path:
        """A picture, or a chart in characters where matplotlib is not installed (pip install "ttmesh[plots]")."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            from matplotlib.figure import Figure
        except ImportError:
            path = path.with_suffix(".txt")
            path.write_text(self.text())
            console.print(self.text())
        else:
            figure = Figure(figsize=(8, 5), layout="constrained")
            for place, (title, values) in enumerate(self._series(), 1):
                axes = figure.add_subplot(2, 1, place)
                axes.plot(values)
                axes.set_ylabel(title)
            axes.set_xlabel("step")
            figure.suptitle(self.name)
            figure.savefig(path, dpi=120)
        console.print(f"curves: {path}")
        return path

    def text(self) -> str:
        """The curves in characters."""
        return "\n".join(f"{title:>20} {_line(values)} {values[-1]:.4g}" for title, values in self._series()) + "\n"

    def _series(self) -> list[tuple[str, list[float]]]:
        return [("loss", self.losses), ("DRAM per chip, MiB", [n / 2**20 for n in self.dram_bytes])]


def _line(values: list[float], width: int = 60) -> str:
    low, high = min(values), max(values)
    picked = [values[i * len(values) // width] for i in range(width)] if len(values) > width else values
    return "".join(BARS[round((v - low) / ((high - low) or 1) * (len(BARS) - 1))] for v in picked)
