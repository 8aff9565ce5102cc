"""Run a stretch of a program dry: chips and large host tensors without values, everything else real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ttmesh.base import settings
from ttmesh.base.errors import OutOfMemoryError
from ttmesh.dryrun.host_tensors import without_values
from ttmesh.dryrun.memory_log import MemoryLog
from ttmesh.dryrun.run_report import RunReport, make_report


class DryRun:
    """A dry run and, after its end, its report."""

    def __init__(self, progress: Callable[[int], None] | None = None) -> None:
        self.log = MemoryLog(progress)
        self.report: RunReport | None = None
        self.failure: OutOfMemoryError | None = None


@contextmanager
def dry_run(progress: Callable[[int], None] | None = None) -> Iterator[DryRun]:
    """Everything in here runs on meta lanes; the report is there afterwards. Out of memory ends it, and is reported."""
    run = DryRun(progress)
    settings.override("TTMESH_BACKEND", "meta")
    run.log.start()
    try:
        with without_values():
            yield run
    except OutOfMemoryError as failure:
        run.failure = failure
    finally:
        run.log.stop()
        run.report = make_report(run.log, run.failure)
        settings.override("TTMESH_BACKEND", None)


def is_dry_run() -> bool:
    """Whether chips have no values: for programs that must take a fixed number instead of a computed one."""
    return settings.get("TTMESH_BACKEND") == "meta"
