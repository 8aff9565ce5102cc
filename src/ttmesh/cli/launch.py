"""`ttmesh launch` (also installed as `tt-run`): start a program as many ranks."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from ttmesh.base import settings
from ttmesh.base.errors import one_of
from ttmesh.base.settings import parse_integer
from ttmesh.cli import Parser, guard
from ttmesh.cli._arguments import number, seconds, words
from ttmesh.dropin import real_ttnn
from ttmesh.launch.bindings import (
    MAX_RANKS,
    Bindings,
    LaunchError,
    mesh_each,
    one_mesh,
    read_bindings,
    read_mapping,
    resolve,
    with_mock_clusters,
)
from ttmesh.launch.commands import ENGINES, LaunchPlan, RankCommand, commands, default_engine
from ttmesh.launch.environment import hide_secret
from ttmesh.launch.mesh_graph import make_bindings, make_mapped_bindings
from ttmesh.launch.watch import GRACE_S
from ttmesh.launch.watch import run as watch_to_the_end
from ttmesh.shim import __path__ as shim_folders

FACTORY_VARIABLE = "TT_METAL_FACTORY_SYSTEM_DESCRIPTOR_PATH"
HELP = "start a program as many ranks, on this host or several (tt-run compatible)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of tt-run that have a meaning here, and ttmesh's own."""
    parser.add_argument(
        "-n", "--ranks", type=number(1, MAX_RANKS), metavar="N", help="start N ranks that present one mesh together"
    )
    parser.add_argument(
        "--mesh-per-rank", action="store_true", help="with -n: every rank has its own mesh (TT_MESH_ID = rank)"
    )
    parser.add_argument("--rank-binding", type=Path, metavar="FILE", help="rank-binding YAML")
    parser.add_argument(
        "--rank-bindings-mapping", type=Path, metavar="FILE", help="YAML: sub-context id to rank-binding YAML"
    )
    parser.add_argument(
        "-m", "--mesh-graph-descriptor", type=Path, metavar="FILE", help="textproto: a rank per host of every mesh"
    )
    parser.add_argument(
        "-M", "--mesh-graph-descriptor-mapping", type=Path, metavar="FILE", help="YAML: sub-context id to textproto"
    )
    parser.add_argument(
        "--factory-system-descriptor", type=Path, metavar="FILE", help="ranks find it in their environment"
    )
    parser.add_argument(
        "--mock-cluster-rank-binding", type=Path, metavar="FILE", help="YAML: rank to cluster descriptor"
    )
    parser.add_argument(
        "--hosts", type=_hosts, default=(), metavar="A,B", help="hosts that ranks fill in blocks, by ssh"
    )
    parser.add_argument(
        "--rsh",
        type=words,
        default=(),
        metavar="CMD",
        help="the command that reaches a host, instead of ssh: CMD HOST PROGRAM …",
    )
    parser.add_argument("--rdzv", default="", metavar="HOST:PORT", help="where ranks meet (torchdist)")
    parser.add_argument(
        "--node", type=_node, default=(0, 1), metavar="I/N", help="this is host I of N, each started by hand"
    )
    parser.add_argument("--engine", choices=ENGINES, help="what joins the ranks (default: mpi where it is installed)")
    parser.add_argument("--mpi-args", type=words, default=(), metavar="ARGS", help="more arguments for mpirun, quoted")
    parser.add_argument("--tcp-interface", default="", metavar="IF", help="network interface between the hosts")
    parser.add_argument("--bare", action="store_true", help="leave mpirun's own choice of transports")
    parser.add_argument(
        "--grace", type=seconds(zero=True), default=GRACE_S, metavar="S",
        help=f"after the first failure, seconds for the other ranks to say what they saw ({GRACE_S:g})",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="print what would be started")
    parser.add_argument("-v", "--verbose", action="store_true", help="print what is started, then start it")
    parser.add_argument(
        "--skip-executable-check", action="store_true", help="the program exists on the other hosts only"
    )
    parser.add_argument("--skip-mgd-check", action="store_true", help="the mesh graph descriptor exists there only")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM …", help="what every rank runs")


def run(args: argparse.Namespace) -> int:
    """Launch; the exit code of the first rank that failed, or 0."""
    plan = _plan(args)
    _let_ranks_import_ttnn()
    made = commands(plan)
    if args.dry_run or args.verbose:
        for command in made:
            print(f"[ttmesh launch] {_format_command(command)}", file=sys.stderr)
    return 0 if args.dry_run else watch_to_the_end(made, grace_s=args.grace)


def main() -> int:
    """The console script `tt-run`."""
    parser = Parser(prog="tt-run", description=HELP)
    add_arguments(parser)
    parser.set_defaults(run=run, prog="Error", becomes_program=False)  # tt-run's errors begin so
    return guard("Error", parser.parse_args, status=1)


def _plan(args: argparse.Namespace) -> LaunchPlan:
    bindings = _bindings(args)
    program = _program(args)
    engine = args.engine or settings.get_str("TTMESH_ENGINE") or default_engine()
    if engine not in ENGINES:
        raise LaunchError(
            f"TTMESH_ENGINE={engine} names no engine", expected=one_of(ENGINES), fix="Correct or unset it."
        )
    if engine == "mpi" and (args.node != (0, 1) or args.rdzv):
        raise LaunchError(
            "--node and --rdzv were given with the engine mpi",
            expected="mpirun to reach every host itself",
            fix="Use --hosts, or --engine torchdist.",
        )
    if args.node != (0, 1) and not args.rdzv:
        raise LaunchError(
            "--node was given without --rdzv", expected="the address where the hosts meet", fix="Give --rdzv HOST:PORT."
        )
    return LaunchPlan(
        bindings=bindings,
        program=program,
        engine=engine,
        hosts=tuple(args.hosts),
        node=args.node,
        rendezvous=args.rdzv,
        mpi_args=tuple(args.mpi_args),
        tcp_interface=args.tcp_interface,
        bare=args.bare,
        rsh=args.rsh or LaunchPlan.rsh,
    )


def _bindings(args: argparse.Namespace) -> Bindings:
    named = (
        args.ranks, args.rank_binding, args.rank_bindings_mapping, args.mesh_graph_descriptor,
        args.mesh_graph_descriptor_mapping,
    )  # fmt: skip
    given = [x for x in named if x is not None]
    if len(given) != 1:
        raise LaunchError(
            "Specify exactly one of --rank-binding, --rank-bindings-mapping, -m/--mesh-graph-descriptor, "
            "-M/--mesh-graph-descriptor-mapping or -n",
            expected=f"one, got {len(given)}",
            fix="For example `ttmesh launch -n 2 program.py`.",
        )
    if args.mesh_per_rank and args.ranks is None:
        raise LaunchError(
            "--mesh-per-rank was given with a rank-binding file, which says what mesh each rank has",
            expected="-n N --mesh-per-rank",
            fix="Leave one of the two out.",
        )
    if args.rank_binding is not None:
        bindings = read_bindings(args.rank_binding, check_mesh_graph=not args.skip_mgd_check)
    elif args.rank_bindings_mapping is not None:
        bindings = read_mapping(args.rank_bindings_mapping, check_mesh_graph=not args.skip_mgd_check)
    elif args.mesh_graph_descriptor is not None:
        bindings = make_bindings(args.mesh_graph_descriptor)
    elif args.mesh_graph_descriptor_mapping is not None:
        bindings = make_mapped_bindings(args.mesh_graph_descriptor_mapping)
    else:
        bindings = mesh_each(args.ranks) if args.mesh_per_rank else one_mesh(args.ranks)
    if args.factory_system_descriptor is not None:
        found = resolve(args.factory_system_descriptor, "Factory system descriptor")
        bindings = replace(bindings, global_env={FACTORY_VARIABLE: str(found), **bindings.global_env})
    mocks = args.mock_cluster_rank_binding
    return bindings if mocks is None else with_mock_clusters(bindings, mocks)


def _program(args: argparse.Namespace) -> tuple[str, ...]:
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not program:
        raise LaunchError(
            "No program specified. Please provide a program to run.", expected="a program", fix="Put it last."
        )
    known = Path(program[0]).exists() or shutil.which(program[0])
    if not known and not args.skip_executable_check:
        raise LaunchError(f"Program not found: {program[0]}", expected="a file or a command", fix="Check the path.")
    return (sys.executable, *program) if program[0].endswith(".py") else tuple(program)


def _let_ranks_import_ttnn() -> None:
    """Where the real ttnn is not installed, `import ttnn` means ttmesh in the ranks, as under `ttmesh run`."""
    if real_ttnn() is None:
        rest = os.environ.get("PYTHONPATH", os.getcwd())
        os.environ["PYTHONPATH"] = os.pathsep.join([shim_folders[0], rest])


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in text.split(",") if host.strip())
    if not hosts:
        raise argparse.ArgumentTypeError("No valid hostnames in --hosts after removing empty entries")
    for host in hosts:
        if hosts.count(host) > 1:
            raise argparse.ArgumentTypeError(f"Duplicate hostname in --hosts: {host!r}")
        if host.startswith("-") or any(c.isspace() for c in host):
            raise argparse.ArgumentTypeError(f"Invalid hostname in --hosts: {host!r}")
    return hosts


def _node(text: str) -> tuple[int, int]:
    try:
        node, nodes = (parse_integer(number, 0, MAX_RANKS) for number in text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N, for example 0/2 (N at most {MAX_RANKS})") from None
    if not 0 <= node < nodes:
        raise argparse.ArgumentTypeError(f"{text!r}: hosts are numbered 0 to {nodes - 1}")
    return node, nodes


def _format_command(command: RankCommand) -> str:
    """A command to read; what the user himself wrote among --mpi-args may hold secrets."""
    return shlex.join(hide_secret(argument) for argument in command.argv)


if __name__ == "__main__":
    sys.exit(main())
