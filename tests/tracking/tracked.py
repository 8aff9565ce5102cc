"""Real servers and real tracked processes for the tests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ttmesh.tracking.address import Address
from ttmesh.tracking.allocation_server import Server
from ttmesh.tracking.server_log import Printer
from ttmesh.tracking.state import State

HERE = Path(__file__).parent
T = TypeVar("T")


class RunningServer:
    """A server in a thread of the test."""

    def __init__(self, address: Address, *, token: str = "", quiet: bool = False) -> None:
        self.text = io.StringIO()
        self.server = Server([address], Printer(self.text, quiet=quiet), token=token)
        self.address = self.server.listening[0]
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def stop(self) -> str:
        self.server.stop()
        self.thread.join(180)
        assert not self.thread.is_alive()
        return self.text.getvalue()


class ServerProcess:
    """A server in a process of its own, which a test may kill."""

    def __init__(self, address: Address, *options: str) -> None:
        command = [sys.executable, "-c", "import sys; from ttmesh.cli.server import main; sys.exit(main())"]
        self.process = subprocess.Popen(
            [*command, "--socket", address.path, *options], stdout=subprocess.PIPE, text=True, env=environment()
        )
        assert self.process.stdout
        assert "listens at" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def stop(self) -> str:
        self.process.terminate()
        return self.wait()

    def wait(self) -> str:
        output, _ = self.process.communicate(timeout=180)
        return output


class Program:
    """A tracked process that takes orders."""

    def __init__(self, address: Address, **extra: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "emitting_program.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(**{"TTMESH_SOCKET": str(address), **extra}),
        )
        self.pid = self.process.pid

    def do(self, order: str) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        return int(answer) if answer.isdigit() else 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(180)
        for pipe in (self.process.stdin, self.process.stdout):  # a forked child may hold the other ends
            if pipe:
                pipe.close()

    def exit(self) -> None:
        self.process.communicate("exit\n", timeout=180)


def environment(**extra: str) -> dict[str, str]:
    source = str(HERE.parent.parent / "src")
    return {**os.environ, "PYTHONPATH": source, "PYTHONUNBUFFERED": "1", **extra}


def eventually(look: Callable[[], T], wanted: Callable[[T], bool], *, timeout_s: float = 180.0) -> T:
    """Look until it is as wanted, or fail with what was seen last."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if wanted(seen):
            return seen
        assert time.monotonic() < deadline, f"still {seen!r}"
        threading.Event().wait(0.01)


def used(state: State, kind: str = "DRAM") -> dict[int, int]:
    """Bytes by physical id, of all systems together."""
    found: dict[int, int] = {}
    for device in state.devices:
        if kind in device.usage:
            found[device.physical_id] = found.get(device.physical_id, 0) + device.usage[kind].used_bytes
    return found


def on_all(size: int) -> dict[int, int]:
    return dict.fromkeys(range(8), size)
