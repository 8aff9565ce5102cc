"""Which engine connects the ranks: the one in TTMESH_ENGINE, otherwise the one whose launcher started this process."""

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


def choose_engine(environ: Mapping[str, str] | None = None) -> str | None:
    """The engine that this process should use, or None if no launcher started it."""
    env = os.environ if environ is None else environ
    named = str(settings.get("TTMESH_ENGINE", env))
    if named:
        load(named)
        return named
    fitting = [name for name in names() if load(name).is_launched(env)]
    if len(fitting) > 1:
        raise RankError(
            f"the environment variables fit several engines: {fitting}",
            expected="one launcher's variables",
            fix=f"Set TTMESH_ENGINE to one of {fitting}.",
        )
    return fitting[0] if fitting else None


def connect(timeout_s: float | None = None) -> Transport:
    """Connect to the other ranks; returns the group of all of them."""
    name = choose_engine()
    if name is None:
        raise RankError(
            "this process was started alone",
            expected="several ranks started by mpirun, torchrun or `ttmesh launch`",
            fix="Start it with a launcher, for example `ttmesh launch -n 2 program.py`.",
        )
    limit_s = float(str(settings.get("TTMESH_TIMEOUT_S"))) if timeout_s is None else timeout_s
    group: Transport = load(name).connect(limit_s)
    return group


class Binding(NamedTuple):
    """What a rank holds: the id of its mesh, its number among that mesh's ranks, and its sub-context in a split job."""

    mesh_id: int
    host_rank: int
    context: int = 0


_world: Transport | None = None
_bindings: tuple[Binding, ...] = (Binding(0, 0),)


def world() -> Transport | None:
    """The group of all ranks, connected at the first call and closed at exit; None without a launcher."""
    global _world, _bindings
    if _world is None and choose_engine() is not None:
        group = connect()
        atexit.register(_leave, group, os.getpid())
        own = _read_binding(group.rank)  # every rank is here, as connecting is collective
        _bindings = tuple(Binding(*row) for row in group.all_gather_ints(own))
        _world = group
    return _world


def bindings() -> tuple[Binding, ...]:
    """The binding of every rank, by its number in the world; a process without a launcher holds all of mesh 0."""
    world()
    return _bindings


def list_context_ranks() -> tuple[int, ...]:
    """World numbers of the ranks in this rank's context: all ranks, unless tt-run split the job."""
    group, all_bindings = world(), bindings()
    own = all_bindings[0 if group is None else group.rank].context
    return tuple(rank for rank, binding in enumerate(all_bindings) if binding.context == own)


def _read_binding(rank: int) -> Binding:
    """The binding from TT_MESH_ID and TT_MESH_HOST_RANK; without both, all ranks share one mesh in rank order."""
    mesh_id, host_rank = settings.get_int("TT_MESH_ID"), settings.get_int("TT_MESH_HOST_RANK")
    if mesh_id is None and host_rank is None:
        return Binding(0, rank)
    return Binding(mesh_id or 0, host_rank or 0, settings.get_int("TT_RUN_SUBCONTEXT_ID") or 0)


def _leave(group: Transport, pid: int) -> None:
    if os.getpid() != pid:  # a forked child is not a rank
        return
    crash = getattr(sys, "last_value", None)  # set by the interpreter for an exception that ended the program
    if crash is not None:
        if not isinstance(crash, RankError):  # a RankError is the consequence of another rank's failure
            report_crash(group.rank, crash)
        group.abort(f"{type(crash).__name__}: {crash}")
    problems: list[RankError] = []

    def report(problem: RankError) -> None:
        problems.append(problem)
        print(f"rank {group.rank}: RankError: {problem}", file=sys.stderr, flush=True)
        report_crash(group.rank, problem)

    group.close(report)
    if problems and not settings.get_bool(
        "TTMESH_LAUNCHED"
    ):  # `ttmesh launch` reads the report; other launchers need the exit code
        sys.stdout.flush()
        os._exit(1)
