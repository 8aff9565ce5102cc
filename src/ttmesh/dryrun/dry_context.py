"""Run a stretch of a program dry: chips and large host tensors without values, everything else real."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ttmesh.base import settings
from ttmesh.base.errors import OutOfMemoryError
from ttmesh.dryrun.host_tensors import without_values
from ttmesh.dryrun.memory_log import MemoryLog
from ttmesh.dryrun.missing_checkpoints import without_checkpoints
from ttmesh.dryrun.run_report import RunReport, make_report
from ttmesh.tensor.transfer.serialization import without_tensor_files


class DryRun:
    """A dry run and, after its end, its report."""

    def __init__(self, progress: Callable[[int], None] | None = None) -> None:
        self.log = MemoryLog(progress)
        self.report: RunReport | None = None
        self.assumptions = Counter[str]()  # lines that read values which do not exist, and what was made up


@contextmanager
def dry_run(
    progress: Callable[[int], None] | None = None, *, assume: float | None = None, configurations: Path | None = None
) -> Iterator[DryRun]:
    """Everything in here runs on meta lanes; the report is there afterwards. Out of memory ends it, and is reported.

    Args:
        progress: called with the number of operations so far.
        assume: what a value that does not exist is where the program reads it; without it that is an error.
        configurations: a folder with the configurations of models whose files are not here: `<model's name>/config.json`.
    """
    run = DryRun(progress)
    settings.override("TTMESH_BACKEND", "meta")
    run.log.start()
    finished = False
    try:
        with (
            without_values(assume, run.assumptions),
            without_checkpoints(run.assumptions, configurations),
            without_tensor_files(),
        ):
            yield run
        finished = True
    except OutOfMemoryError:
        assert run.log.failures, "the log hears of every one"
    finally:
        run.log.stop()
        run.report = make_report(run.log, run.assumptions, finished=finished)
        settings.override("TTMESH_BACKEND", None)


def is_dry_run() -> bool:
    """Whether chips have no values: for programs that must take a fixed number instead of a computed one."""
    return settings.get("TTMESH_BACKEND") == "meta"
