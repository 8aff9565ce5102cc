"""The launcher with real processes: labels, exit codes, first causes, interrupts, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from launch_engines import ENGINES, HAS_MPI, SOURCE

from ttmesh.base import launcher_messages
from ttmesh.launch.bindings import one_mesh
from ttmesh.launch.commands import LaunchPlan, commands, host_of
from ttmesh.launch.rank import MARK

RANK = "import os; rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('RANK'))); "


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ttmesh.cli.launch", *arguments]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("TTMESH_")} | {"PYTHONPATH": str(SOURCE)}


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, env=environment())


def program(code: str) -> list[str]:
    return [sys.executable, "-c", RANK + code]


@pytest.mark.parametrize("engine", ENGINES)
def test_output_carries_the_rank_and_success_is_zero(engine: str) -> None:
    done = launched(
        "-n", "2", "--engine", engine, *program("import sys; print('out', rank); print('err', file=sys.stderr)")
    )

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] out 0", "[1] out 1"]
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_failing_rank_stops_the_others_and_is_named_once(engine: str) -> None:
    done = launched(
        "-n", "3", "--engine", engine, *program("import sys, time; rank == 1 and sys.exit(3); time.sleep(3600)")
    )

    assert done.returncode == 3
    assert done.stderr.count("first cause: rank 1 ended with exit code 3") == 1
    assert done.stderr.count("first cause") == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rank_that_raised_is_the_first_cause_though_it_ends_last(engine: str) -> None:
    code = "import ttmesh.fabric.messaging.engines as e; w = e.world(); rank or 1 / 0; w.barrier()"

    done = launched("-n", "2", "--engine", engine, *program(code))

    assert done.returncode == 1
    assert "first cause: rank 0 failed: ZeroDivisionError: division by zero; stopping the others" in done.stderr
    assert MARK == launcher_messages.MARK
    assert MARK not in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_stubborn_ranks_and_their_children(engine: str, number: signal.Signals) -> None:
    stubborn = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "a = subprocess.Popen(['sleep', '600']); b = subprocess.Popen(['sleep', '600'], start_new_session=True); "
        "print(os.getpid(), a.pid, b.pid, flush=True); time.sleep(600)"
    )
    launcher = subprocess.Popen(
        command("-n", "2", "--engine", engine, *program(stubborn)), stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert launcher.stdout is not None
    pids = [int(word) for _ in range(2) for word in launcher.stdout.readline().split()[1:]]
    assert len(pids) == 6

    launcher.send_signal(number)
    code = launcher.wait(timeout=180)
    launcher.stdout.close()

    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=180)
    assert not alive


def test_a_program_that_cannot_be_started_is_a_failure() -> None:
    done = launched("-n", "1", "--engine", "torchdist", "--skip-executable-check", "./no-such-program")

    assert done.returncode == 127
    assert "[0] cannot start ./no-such-program: No such file or directory" in done.stderr


def test_a_host_that_is_not_reached_is_the_first_cause(tmp_path: Path) -> None:
    agent = tmp_path / "rsh"
    agent.write_text("#!/bin/sh\necho no way to $1 >&2; exit 255\n")
    agent.chmod(0o755)

    done = launched("-n", "1", "--engine", "torchdist", "--hosts", "far", "--rsh", str(agent), "true")

    assert done.returncode == 255
    assert "[0] no way to far" in done.stderr
    assert "first cause: rsh of rank 0 ended with exit code 255" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], "No program specified. Please provide a program to run."),
        (["-n", "2", "./none"], "Program not found: ./none"),
        (["-n", "2", "none.py"], "Program not found: none.py"),
        (["true"], "Specify exactly one of --rank-binding"),
        (["--mesh-per-rank", "--rank-binding", "x.yaml", "true"], "expected -n N --mesh-per-rank"),
        (["--rank-binding", "none.yaml", "true"], "Configuration error: Configuration file not found: none.yaml"),
        (["-m", "x.textproto", "true"], "Mesh graph descriptor not found: x.textproto"),
        (["-n", "2", "--engine", "mpi", "--rdzv", "a:1", "true"], "Use --hosts, or --engine torchdist"),
        (["-n", "2", "--engine", "torchdist", "--node", "0/2", "true"], "Give --rdzv HOST:PORT"),
        (["-n", "2", "--engine", "torchdist", "--rdzv", "a", "true"], "expected HOST:PORT"),
    ],
)
def test_a_wrong_launch_starts_nothing(arguments: list[str], words: str) -> None:
    done = launched(*arguments)

    assert done.returncode == 1
    assert words in done.stderr


def test_an_absurd_number_of_ranks_starts_nothing() -> None:
    for number in ("0", "-3", "9" * 23):
        done = launched("-n", number, "true")

        assert done.returncode == 2
        assert f"tt-run: argument -n/--ranks: '{number}' is not a number from 1 to 4096." in done.stderr


def test_an_engine_that_does_not_exist_starts_nothing() -> None:
    env = environment() | {"TTMESH_ENGINE": "ucx"}

    done = subprocess.run(command("-n", "2", "true"), capture_output=True, text=True, timeout=300, env=env)

    assert done.returncode == 1
    assert "TTMESH_ENGINE=ucx names no engine; expected one of ['mpi', 'torchdist']" in done.stderr


@pytest.mark.skipif(find_spec("ttnn") is not None, reason="the real ttnn is installed")
def test_ranks_may_say_import_ttnn() -> None:
    code = "import importlib.util; print(importlib.util.find_spec('ttnn').origin)"

    done = launched("-n", "1", "--engine", "torchdist", *program(code))

    assert done.stdout == f"[0] {SOURCE / 'ttmesh' / 'shim' / 'ttnn' / '__init__.py'}\n"


def test_a_dry_run_prints_and_starts_nothing() -> None:
    done = launched("-n", "2", "--engine", "torchdist", "--dry-run", *program("print('started')"))

    assert done.returncode == 0
    assert done.stderr.count("[ttmesh launch] ") == 2
    assert done.stdout == ""


def test_the_launcher_needs_no_torch() -> None:
    code = "import sys, ttmesh.cli.launch; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_ranks_fill_hosts_in_blocks() -> None:
    assert [host_of(r, 4, ("a", "b")) for r in range(4)] == ["a", "a", "b", "b"]
    assert [host_of(r, 5, ("a", "b")) for r in range(5)] == ["a", "a", "a", "b", "b"]


def test_hosts_are_reached_by_ssh_in_the_same_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = LaunchPlan(one_mesh(4), ("true",), "torchdist", hosts=("a", "b"), rendezvous="a:29500")

    made = commands(plan)

    assert [c.argv[:4] for c in made] == [("ssh", "-o", "BatchMode=yes", h) for h in ("a", "a", "b", "b")]
    assert f"env -C {tmp_path} " in made[3].argv[4]
    assert all(
        f" {text} " in made[3].argv[4] for text in ("RANK=3", "LOCAL_RANK=1", "MASTER_ADDR=a", "MASTER_PORT=29500")
    )


def test_by_hand_each_host_starts_its_own_ranks() -> None:
    plan = LaunchPlan(one_mesh(4), ("true",), "torchdist", node=(1, 2), rendezvous="a:29500")

    assert [c.ranks for c in commands(plan)] == [(2,), (3,)]


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpirun is not installed")
def test_mpirun_gets_tcp_between_hosts_and_shared_memory_on_one() -> None:
    alone = commands(LaunchPlan(one_mesh(2), ("true",), "mpi"))[0].argv
    apart = commands(LaunchPlan(one_mesh(2), ("true",), "mpi", hosts=("a", "b"), tcp_interface="eth1"))[0].argv

    assert "btl" not in alone
    assert " ".join(apart).count("--mca btl self,tcp --mca btl_tcp_if_include eth1") == 1
    assert [apart[i + 1] for i, word in enumerate(apart) if word == "--host"] == ["a", "b"]
