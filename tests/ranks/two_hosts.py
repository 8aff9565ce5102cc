"""Two hosts as network namespaces with their own addresses and names, joined by a cable that can be cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rank_launches import NEEDS, environment

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

    def launch(self, engine: str, *program: str, **settings: str) -> subprocess.Popen[str]:
        """The launcher, started on the first host."""
        if not NEEDS.get(engine, True):
            pytest.skip("mpi4py or mpirun is not installed: pip install 'ttmesh[mpi]'")
        words = ["ttmesh.cli.launch", "-n", "2", "--engine", engine, "--hosts", ",".join(self.addresses)]
        return self.start(0, *words, "--rsh", str(self.agent), "--grace", "20", *program, **settings)

    def start(self, host: int, module: str, *words: str, **settings: str) -> subprocess.Popen[str]:
        """A module of Python, started on a host."""
        named = f'hostname {self.names[host]}; exec "$@"'
        inside = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", named, "sh"]
        return subprocess.Popen(
            [*inside, sys.executable, "-m", module, *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**settings),
        )  # fmt: skip

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
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


def await_files(folder: Path, *names: str) -> None:
    """Return when all of these are there."""
    deadline = time.monotonic() + 180
    while not all((folder / name).exists() for name in names):
        assert time.monotonic() < deadline, f"{names} did not come; there is {sorted(p.name for p in folder.iterdir())}"
        time.sleep(0.02)
