"""Which engine joins the ranks: the one named by TTMESH_ENGINE, else the one whose launcher started this process."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from ttmesh.base import settings
from ttmesh.base.errors import RankError, SettingError, one_of, suggest_names
from ttmesh.base.launcher_messages import report_crash

if TYPE_CHECKING:
    from ttmesh.fabric.messaging.transport import Transport

FOLDER = Path(__file__).parent.parent / "transports"


def names() -> list[str]:
    """Every engine: the files of `fabric/transports/`."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if not p.stem.startswith("_"))


def load(name: str) -> ModuleType:
    """The module of an engine."""
    if name not in names():
        raise SettingError(f"no engine named {name!r}", expected=one_of(names()), fix=suggest_names(name, names()))
    return importlib.import_module(f"ttmesh.fabric.transports.{name}")


def chosen(environ: Mapping[str, str] | None = None) -> str | None:
    """The engine this process should use, or None when it was started alone."""
    env = os.environ if environ is None else environ
    named = str(settings.get("TTMESH_ENGINE", env))
    if named:
        load(named)
        return named
    fitting = [name for name in names() if load(name).started(env)]
    if len(fitting) > 1:
        raise RankError(
            f"the environment fits several engines: {fitting}",
            expected="one launcher's variables",
            fix="Set TTMESH_ENGINE to the one that is meant.",
        )
    return fitting[0] if fitting else None


def connect(timeout_s: float | None = None) -> Transport:
    """Join the other ranks: the group of all of them."""
    name = chosen()
    if name is None:
        raise RankError(
            "this process was started alone",
            expected="mpirun, torchrun or `ttmesh launch` to start several",
            fix="Use one of them, for example `ttmesh launch -n 2 program.py`.",
        )
    limit_s = float(str(settings.get("TTMESH_TIMEOUT_S"))) if timeout_s is None else timeout_s
    joined: Transport = load(name).connect(limit_s)
    return joined


class Binding(NamedTuple):
    """Where a rank belongs: the mesh, its place among the ranks that present it, and the sub-context of a split job."""

    mesh_id: int
    host_rank: int
    context: int = 0


_world: Transport | None = None
_bindings: tuple[Binding, ...] = (Binding(0, 0),)


def world() -> Transport | None:
    """The group of all ranks, joined at the first call and left at exit; None in a process started alone."""
    global _world, _bindings
    if _world is None and chosen() is not None:
        joined = connect()
        atexit.register(_leave, joined, os.getpid())
        own = _own_binding(joined.rank)  # joining is collective, so here every rank can tell its place
        _bindings = tuple(Binding(*row) for row in joined.all_gather_ints(own))
        _world = joined
    return _world


def bindings() -> tuple[Binding, ...]:
    """The place of every rank, by its number in the world; a process on its own has mesh 0 to itself."""
    world()
    return _bindings


def fellows() -> tuple[int, ...]:
    """The world's numbers of the ranks in this rank's context: all of them, unless tt-run split the job."""
    joined, places = world(), bindings()
    own = places[0 if joined is None else joined.rank].context
    return tuple(rank for rank, place in enumerate(places) if place.context == own)


def _own_binding(rank: int) -> Binding:
    """What TT_MESH_ID and TT_MESH_HOST_RANK say; a launcher that sets neither means one mesh in rank order."""
    mesh_id, host_rank = settings.get_int("TT_MESH_ID"), settings.get_int("TT_MESH_HOST_RANK")
    if mesh_id is None and host_rank is None:
        return Binding(0, rank)
    return Binding(mesh_id or 0, host_rank or 0, settings.get_int("TT_RUN_SUBCONTEXT_ID") or 0)


def _leave(joined: Transport, pid: int) -> None:
    if os.getpid() != pid:  # a forked child is no rank
        return
    crash = getattr(sys, "last_value", None)  # set by the interpreter for an exception that ended the program
    if crash is not None:
        if not isinstance(crash, RankError):  # else it follows from another rank's failure
            report_crash(joined.rank, crash)
        joined.abort(f"{type(crash).__name__}: {crash}")
    problems: list[RankError] = []

    def report(problem: RankError) -> None:
        problems.append(problem)
        print(f"rank {joined.rank}: RankError: {problem}", file=sys.stderr, flush=True)
        report_crash(joined.rank, problem)

    joined.close(report)
    if problems and not settings.get_bool("TTMESH_LAUNCHED"):  # the launcher has been told; others see the exit code
        sys.stdout.flush()
        os._exit(1)
