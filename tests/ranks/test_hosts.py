"""Programs over two hosts: the engines' contract, pipelines, cut cables, and one server that both report to."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from rank_launches import HERE
from two_hosts import Hosts, await_files

from ttmesh.fabric.messaging import engines
from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor
from ttmesh.tracking.state import State


@pytest.mark.parametrize("engine", engines.names())
def test_two_hosts_keep_the_contract(engine: str, hosts: Hosts) -> None:
    output, _ = hosts.launch(engine, str(HERE.parent / "fabric" / "transports" / "ranks_contract.py")).communicate(
        timeout=180
    )

    for rank in (0, 1):
        assert f"[{rank}] rank {rank} of 2 kept the contract of {engine}" in output, output


@pytest.mark.parametrize("engine", ["torchdist", pytest.param("mpi", marks=pytest.mark.deep)])
def test_a_cut_cable_is_an_error_on_both_sides(engine: str, hosts: Hosts, tmp_path: Path) -> None:
    launcher = hosts.launch(engine, str(HERE / "sums_until_cut.py"), str(tmp_path), "10")
    await_files(tmp_path, "summing0", "summing1")

    hosts.cut_the_cable()
    await_files(tmp_path, "told0", "told1")
    output, _ = launcher.communicate(timeout=180)

    check_what_was_told(tmp_path, "all_reduce on group 'axis0'", "all_reduce on group 'axis0'")
    assert launcher.returncode != 0
    assert output.count("first cause") == 1, output


@pytest.mark.parametrize("engine", [pytest.param(name, marks=pytest.mark.deep) for name in engines.names()])
def test_a_pipeline_trains_over_two_hosts_until_the_cable_is_cut(engine: str, hosts: Hosts, tmp_path: Path) -> None:
    program = [str(HERE / "pipeline_stage.py"), "cut", "10", str(tmp_path)]
    launcher = hosts.launch(engine, "--mesh-per-rank", *program)
    await_files(tmp_path, "going0", "going1")

    hosts.cut_the_cable()
    await_files(tmp_path, "told0", "told1")
    output, _ = launcher.communicate(timeout=180)

    assert all(f"stage {rank} of 2 is trained" in output for rank in (0, 1)), output
    check_what_was_told(
        tmp_path, *[rf"(send|recv)_async (to|from) rank {other} on socket #[01] \(rank" for other in (1, 0)]
    )
    assert output.count("first cause") == 1, output


@pytest.mark.parametrize("engine", ["mpi", pytest.param("torchdist", marks=pytest.mark.deep)])
def test_two_hosts_divide_a_mesh_until_the_cable_is_cut(engine: str, hosts: Hosts, tmp_path: Path) -> None:
    launcher = hosts.launch(engine, str(HERE / "big_mesh_mlp.py"), str(tmp_path), "10")
    await_files(tmp_path, "sums0", "sums1")  # the MLP's result was right on both

    hosts.cut_the_cable()
    await_files(tmp_path, "told0", "told1")
    (tmp_path / "seen").touch()
    output, _ = launcher.communicate(timeout=180)

    for rank, other in ((0, 1), (1, 0)):
        told = (tmp_path / f"told{rank}").read_text()
        assert f"ttnn.all_reduce: rank {other} died, stopped or was cut off during all_reduce on group" in told
        assert "'axis 1 of mesh 2x8, queue 0'" in told
    assert output.count("first cause") == 1, output


def test_processes_of_both_hosts_report_to_one_server(hosts: Hosts, tmp_path: Path) -> None:
    local, token = Address(path=str(tmp_path / "server.sock")), {"TTMESH_TOKEN": "a secret"}
    server = hosts.start(
        0, "ttmesh", "server", "-q", "--socket", local.path, "--listen", f"{hosts.addresses[0]}:0", **token
    )
    assert server.stdout is not None
    address = re.search(r"and (\S+:\d+) ", server.stdout.readline())
    assert address
    there = {"TTMESH_SOCKET": address.group(1)}
    tracked = there | {"TT_ALLOC_TRACKING_ENABLED": "1"}

    stranger = hosts.start(1, "ttmesh", "smi", **there, TTMESH_TOKEN="a guess")
    refused, _ = stranger.communicate(timeout=180)
    launcher = hosts.launch("torchdist", "--mesh-per-rank", str(HERE / "holding.py"), str(tmp_path), **tracked, **token)
    await_files(tmp_path, "holding0", "holding1")
    with Monitor(local, timeout_s=180) as monitor:
        seen(monitor, {"", hosts.names[1]})
        shown, _ = hosts.start(1, "ttmesh", "smi", **there, **token).communicate(timeout=180)
        os.kill(int((tmp_path / "holding1").read_text()), signal.SIGKILL)
        left = seen(monitor, {""})
    launcher.communicate(timeout=180)
    server.terminate()
    server.communicate(timeout=180)

    assert f"the allocation server at {address.group(1)} refused: the token is wrong" in refused
    assert stranger.returncode == 2
    assert f"@{hosts.names[1]}" in shown
    assert shown.count("holding.py") == 2, shown
    held = {d.host: sum(usage.used_bytes for usage in d.usage.values()) for d in left.devices}
    assert list(held) == [""], "the dead hold nothing"
    assert held[""] > 0


def seen(monitor: Monitor, hosts: set[str]) -> State:
    """What the server knows once processes of these hosts hold memory, and no others; it calls its own host ''."""
    deadline = time.monotonic() + 180
    while True:
        state = monitor.state()
        found = {process.host for process in state.processes if process.usage}
        if found == hosts:
            return state
        assert time.monotonic() < deadline, f"processes of {found}"
        time.sleep(0.05)


def check_what_was_told(folder: Path, *operations: str) -> None:
    """Each rank names the other, and what it was doing."""
    for rank, operation in enumerate(operations):
        told = (folder / f"told{rank}").read_text()
        assert re.search(f"rank {1 - rank} died, stopped or was cut off during {operation}", told), told
