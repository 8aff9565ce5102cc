"""`ttmesh smi`, `monitor` and `leaks` as a person types them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tracked import RunningServer, environment, eventually, on_all, used

from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor


def ttmesh(address: Address, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ttmesh", *arguments],
        env=environment(TTMESH_SOCKET=address.path, COLUMNS="140"),
        capture_output=True,
        text=True,
        timeout=180,
    )


@pytest.fixture
def busy(address: Address, start):
    running = RunningServer(address, quiet=True)
    program = start(TTMESH_TRACK_STACKS="1")
    program.do("open")
    program.do("reserve 74752")
    program.do("allocate 104857600 2")
    with Monitor(address, timeout_s=180) as monitor:
        eventually(monitor.state, lambda s: used(s) == on_all(209715200))
    yield program
    running.stop()


def test_smi_shows_devices_and_processes_once(address, busy):
    done = ttmesh(address, "smi")

    assert done.returncode == 0, done.stderr
    assert "| 4R * coordinator | 0 (0, 0)" in done.stdout
    assert f"| {busy.pid}" in done.stdout


def test_smi_json_is_the_view(address, busy):
    view = json.loads(ttmesh(address, "smi", "--json", "-d", "2").stdout)

    (device,) = view["devices"]
    assert device["physical_id"] == 2
    assert device["bars"][0]["used_bytes"] == 209715200


def test_monitor_prints_plain_pages_when_there_is_no_terminal(address, busy):
    done = ttmesh(address, "monitor", "-a", "-r", "100", "-n", "2")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Cross-Process Memory Monitor") == 2
    assert done.stdout.count("DRAM:    200.00 MB /     12.00 GB") == 16


def test_leaks_names_the_place_that_never_freed(address, busy):
    clean = ttmesh(address, "leaks")
    busy.kill()
    with Monitor(address, timeout_s=180) as monitor:
        eventually(monitor.leaks, lambda found: len(found.ended) == 1)

    dirty = ttmesh(address, "leaks")

    assert (clean.returncode, dirty.returncode) == (0, 1)
    assert "perfect cleanup" in clean.stdout
    assert "emitting_program.py:" in dirty.stdout
    assert json.loads(ttmesh(address, "leaks", "--json").stdout)["ended"][0]["held"][0]["buffers"] == 2


def test_without_a_server_the_error_says_how_to_start_one(address):
    for command in (["smi"], ["leaks"], ["monitor", "-n", "1"], ["export", "json"]):
        done = ttmesh(address, *command)

        assert done.returncode == 2
        assert "does not answer" in done.stderr
        assert "Start one with `ttmesh server`." in done.stderr


def test_the_page_is_served_without_a_server_and_the_command_says_so(address):
    web = subprocess.Popen(
        [sys.executable, "-m", "ttmesh", "web", "--port", "0"],
        env=environment(TTMESH_SOCKET=address.path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert web.stdout
    assert web.stderr
    printed, said = web.stdout.readline(), web.stderr.readline()
    web.terminate()
    web.communicate(timeout=180)

    assert printed.startswith("Open http://127.0.0.1:")
    assert said.startswith(f"ttmesh web: the allocation server at {address.path} does not answer")
    assert said.endswith("Start one with `ttmesh server`. The page shows what is held as soon as one runs.\n")


def test_the_monitor_loads_neither_torch_nor_textual(address, busy):
    code = (
        "import sys; from ttmesh.cli import main; main(['smi']);"
        "print([m for m in ('torch', 'textual', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(TTMESH_SOCKET=address.path),
        capture_output=True,
        text=True,
        timeout=180,
    )

    assert done.stdout.splitlines()[-1] == "[]"
