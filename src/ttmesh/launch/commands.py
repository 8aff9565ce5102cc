"""What is executed to start the ranks: one mpirun for all of them, or one process each, here or through ssh."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ttmesh.launch.bindings import Bindings, LaunchError
from ttmesh.launch.environment import filter_environment, rank_environment, split_secrets
from ttmesh.launch.rank import SECRETS

ENGINES = ("mpi", "torchdist")
RANK_SCRIPT = Path(__file__).with_name("rank.py")
_reserved: list[socket.socket] = []  # kept open until the launcher ends


@dataclass(frozen=True)
class LaunchPlan:
    """A launch with everything decided that the command line says."""

    bindings: Bindings
    program: tuple[str, ...]
    engine: str
    hosts: tuple[str, ...] = ()  # none: everything on this host
    node: tuple[int, int] = (0, 1)  # this host's number and how many there are, when each is started by hand
    rendezvous: str = ""
    mpi_args: tuple[str, ...] = ()
    tcp_interface: str = ""
    bare: bool = False
    rsh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes")


@dataclass(frozen=True)
class RankCommand:
    """One process to start: its arguments, its environment, the ranks whose output it carries, and its first input."""

    argv: tuple[str, ...]
    env: dict[str, str]
    ranks: tuple[int, ...]
    first_input: str = ""

    @property
    def carries_one(self) -> bool:
        """Whether all output is one rank's; mpirun's is tagged instead."""
        return len(self.ranks) == 1 and Path(self.argv[0]).name not in MPI_LAUNCHERS


MPI_LAUNCHERS = ("mpirun-ulfm", "mpirun")


def find_mpirun() -> str | None:
    """Open MPI's launcher: on the PATH, or beside this Python (where the wheel puts it)."""
    beside = Path(sys.executable).with_name("mpirun")
    return next(filter(None, map(shutil.which, MPI_LAUNCHERS)), str(beside) if beside.exists() else None)


def default_engine() -> str:
    """MPI if it is installed, because it is the fastest; otherwise torch.distributed."""
    return "mpi" if find_mpirun() and find_spec("mpi4py") else "torchdist"


def commands(plan: LaunchPlan) -> list[RankCommand]:
    """Everything to start on this host."""
    return [_mpirun(plan)] if plan.engine == "mpi" else _processes(plan)


def host_of(rank: int, ranks: int, hosts: Sequence[str]) -> str:
    """Ranks fill the hosts in blocks, in order."""
    return hosts[rank * len(hosts) // ranks]


def _wrap_command(rank: int, program: Sequence[str], *, stdin: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(RANK_SCRIPT), str(rank), stdin, "--", *program]


def _mpirun(plan: LaunchPlan) -> RankCommand:
    launcher = find_mpirun()
    if launcher is None:
        raise LaunchError(
            "no mpirun on the PATH or beside this Python",
            expected="Open MPI",
            fix="Run pip install 'ttmesh[mpi]', or choose --engine torchdist.",
        )
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        raise LaunchError(
            f"{launcher} is not Open MPI ({version.strip().splitlines()[:1]})",
            expected="Open MPI's mpirun, whose options set each rank's environment",
            fix="Put Open MPI first on the PATH, or choose --engine torchdist.",
        )
    count = len(plan.bindings.ranks)
    argv = [launcher, *_mpi_options(plan, count)]
    unseen: dict[str, str] = {}
    for index, binding in enumerate(plan.bindings.ranks):
        env = rank_environment(binding, plan.bindings, os.environ, Path.cwd()) | {"TTMESH_ENGINE": "mpi"}
        argv += [":"] if index else []
        argv += ["-np", "1", *(["--host", host_of(index, count, plan.hosts)] if plan.hosts else [])]
        shown, secrets = split_secrets(env)
        for name, value in shown.items():
            argv += ["-x", f"{name}={value}"]
        if secrets:  # mpirun hands on the value that it has in its own environment
            unseen[f"{SECRETS}{binding.rank}"] = secrets
            argv += ["-x", f"{SECRETS}{binding.rank}"]
        argv += _wrap_command(binding.rank, plan.program, stdin="keep")
    env = filter_environment(os.environ) | unseen
    if os.geteuid() == 0:  # for containers: mpirun refuses root without both
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return RankCommand(tuple(argv), env, tuple(range(count)))


def _mpi_options(plan: LaunchPlan, count: int) -> list[str]:
    given = list(plan.mpi_args)
    # Survivors of a dead rank get an error instead of being killed with it, and name it; the launcher ends them afterwards.
    options = ["--tag-output", "--with-ft", "ulfm", "--enable-recovery"]
    if not any("bind-to" in arg or "rankfile" in arg for arg in given):
        options += ["--bind-to", "none"]
    if "--oversubscribe" not in given and not any("map-by" in arg or "rankfile" in arg for arg in given):
        options += ["--map-by", ":OVERSUBSCRIBE"]
    several = bool(plan.hosts) or any("host" in arg for arg in given)
    if not plan.bare and (several or plan.tcp_interface):  # on one host shared memory is five times faster
        if "btl" not in given:
            options += ["--mca", "btl", "self,tcp"]
        if plan.tcp_interface:
            options += ["--mca", "btl_tcp_if_include", plan.tcp_interface]
        elif not any(arg.startswith("btl_tcp_if_") for arg in given):
            options += ["--mca", "btl_tcp_if_exclude", "docker0,lo"]
    if plan.hosts and plan.rsh[0] != "ssh":
        options += ["--prtemca", "plm_ssh_agent", " ".join(plan.rsh)]
    return options + given


def _processes(plan: LaunchPlan) -> list[RankCommand]:
    count = len(plan.bindings.ranks)
    node, nodes = plan.node
    address, port = _choose_rendezvous(plan)
    made = []
    for binding in plan.bindings.ranks:
        if binding.rank * nodes // count != node:
            continue
        env = rank_environment(binding, plan.bindings, os.environ, Path.cwd())
        same_host = [
            r
            for r in range(count)
            if r * max(nodes, len(plan.hosts)) // count == binding.rank * max(nodes, len(plan.hosts)) // count
        ]
        env |= {
            "TTMESH_ENGINE": plan.engine,
            "RANK": str(binding.rank),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(same_host.index(binding.rank)),
            "LOCAL_WORLD_SIZE": str(len(same_host)),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        if plan.tcp_interface:
            env["GLOO_SOCKET_IFNAME"] = env["NCCL_SOCKET_IFNAME"] = plan.tcp_interface
        shown, secrets = split_secrets(env)
        if plan.hosts:
            argv = _wrap_command(binding.rank, plan.program, stdin="secrets" if secrets else "stdin")
            argv = _make_remote_command(plan.rsh, host_of(binding.rank, count, plan.hosts), argv, shown)
            made.append(RankCommand(tuple(argv), filter_environment(os.environ) | shown, (binding.rank,), secrets))
        else:
            argv = _wrap_command(binding.rank, plan.program, stdin="stdin")
            made.append(RankCommand(tuple(argv), filter_environment(os.environ) | env, (binding.rank,)))
    return made


def _make_remote_command(rsh: Sequence[str], host: str, argv: list[str], env: dict[str, str]) -> list[str]:
    """The command that runs this one on another host, in the same (shared) directory, as tt-run does."""
    settings = [f"{name}={value}" for name, value in env.items()]
    inner = ["env", "-C", str(Path.cwd()), *settings, *argv]
    return [*rsh, host, shlex.join(inner)] if Path(rsh[0]).name in ("ssh", "rsh") else [*rsh, host, *inner]


def _choose_rendezvous(plan: LaunchPlan) -> tuple[str, str]:
    if plan.rendezvous:
        address, _, port = plan.rendezvous.rpartition(":")
        if not address or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise LaunchError(
                f"--rdzv {plan.rendezvous!r} is not a rendezvous address",
                expected="HOST:PORT",
                fix="Pass a host and a port, for example --rdzv node1:29500.",
            )
        return address, port
    if plan.hosts:
        return plan.hosts[0], str(random.randint(20000, 60000))  # probably free there; --rdzv overrides it
    return "127.0.0.1", str(_reserve_port())


def _reserve_port() -> int:
    """A free port that no other process gets before rank 0 listens on it, seconds later."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # rank 0's store sets it too, and so may bind it
    held.bind(("127.0.0.1", 0))
    _reserved.append(held)
    return int(held.getsockname()[1])
