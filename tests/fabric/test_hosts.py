"""Two hosts as network namespaces with their own addresses and names, joined by a cable that can be cut."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from ttmesh.fabric import engines
from ttmesh.launch.commands import find_mpirun

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
NEEDS = {"mpi": find_spec("mpi4py") is not None and find_mpirun() is not None}
# Named after `rsh` because it takes its command as ssh does: words for a shell on the other side.
AGENT = """#!/bin/sh
host=$1; shift
case $host in 10.77.{net}.1) ns={a};; *) ns={b};; esac
exec ip netns exec $ns unshare --uts sh -c "hostname $ns; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """Two hosts, what reaches them, and their cable."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    agent: Path

    def launch(self, engine: str, *program: str) -> subprocess.Popen[str]:
        """The launcher, started on the first host."""
        if not NEEDS.get(engine, True):
            pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
        words = ["-m", "ttmesh.cli.launch", "-n", "2", "--engine", engine, "--hosts", ",".join(self.addresses)]
        named = f'hostname {self.names[0]}; exec "$@"'
        inside = ["ip", "netns", "exec", self.names[0], "unshare", "--uts", "sh", "-c", named, "sh"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("TTMESH_")}
        return subprocess.Popen(
            [*inside, sys.executable, *words, "--rsh", str(self.agent), *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        )

    def cut_the_cable(self) -> None:
        """Nothing gets through from now on; no connection is closed."""
        _ip("-n", self.names[0], "link", "set", f"v{self.names[0]}", "down")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    a, b, net = f"tt{os.getpid()}a", f"tt{os.getpid()}b", os.getpid() % 250
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("two hosts need network namespaces: root, `ip` and `unshare`")
    made = []
    try:
        for name in (a, b):
            _ip("netns", "add", name)
            made.append(name)
        _ip("link", "add", f"v{a}", "netns", a, "type", "veth", "peer", "name", f"v{b}", "netns", b)
        for number, name in ((1, a), (2, b)):
            _ip("-n", name, "addr", "add", f"10.77.{net}.{number}/24", "dev", f"v{name}")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", f"v{name}", "up")
        (tmp_path / "rsh").write_text(AGENT.format(a=a, b=b, net=net))
        (tmp_path / "rsh").chmod(0o755)
        yield Hosts((a, b), (f"10.77.{net}.1", f"10.77.{net}.2"), tmp_path / "rsh")
    except subprocess.CalledProcessError as refusal:
        pytest.skip(f"network namespaces are not permitted here: {refusal.stderr.strip()}")
    finally:
        for name in made:
            for pid in _ip("netns", "pids", name).split():
                os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


@pytest.mark.parametrize("engine", engines.names())
def test_two_hosts_keep_the_contract(engine: str, hosts: Hosts) -> None:
    output, _ = hosts.launch(engine, str(HERE / "ranks_contract.py")).communicate(timeout=60)

    for rank in (0, 1):
        assert f"[{rank}] rank {rank} of 2 kept the contract of {engine}" in output, output


@pytest.mark.parametrize("engine", engines.names())
def test_a_cut_cable_is_an_error_on_both_sides(engine: str, hosts: Hosts, tmp_path: Path) -> None:
    launcher = hosts.launch(engine, str(HERE / "ranks_cut.py"), str(tmp_path), "3")
    _await(tmp_path, "summing0", "summing1")

    hosts.cut_the_cable()
    _await(tmp_path, "told0", "told1")
    output, _ = launcher.communicate(timeout=15)

    for rank, other in ((0, 1), (1, 0)):
        told = (tmp_path / f"told{rank}").read_text()
        assert f"rank {other} died, stopped or was cut off during all_reduce on group 'axis0'" in told
        seconds = re.match(r"after ([\d.]+) s", told)
        assert seconds
        assert float(seconds.group(1)) <= 5.5, "the timeout of 3 s, a second to tell the others, and a busy machine"
    assert launcher.returncode != 0
    assert output.count("first cause") == 1, output


@pytest.mark.parametrize("engine", engines.names())
def test_two_hosts_divide_a_mesh_until_the_cable_is_cut(engine: str, hosts: Hosts, tmp_path: Path) -> None:
    launcher = hosts.launch(engine, str(HERE.parent / "ranks" / "big_mesh_mlp.py"), str(tmp_path), "3")
    _await(tmp_path, "sums0", "sums1")  # the MLP's result was right on both

    hosts.cut_the_cable()
    _await(tmp_path, "told0", "told1")
    (tmp_path / "seen").touch()
    output, _ = launcher.communicate(timeout=15)

    for rank, other in ((0, 1), (1, 0)):
        told = (tmp_path / f"told{rank}").read_text()
        assert f"ttnn.all_reduce: rank {other} died, stopped or was cut off during all_reduce on group" in told
        assert "'axis 1 of mesh 2x8, queue 0'" in told
    assert output.count("first cause") == 1, output


def _await(folder: Path, *names: str) -> None:
    deadline = time.monotonic() + 30
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < deadline, f"{names} did not come; there is {sorted(p.name for p in folder.iterdir())}"
        time.sleep(0.02)
