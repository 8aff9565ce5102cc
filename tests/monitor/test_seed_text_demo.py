"""Seed 000's picture: the text demo as the document starts it, and what the server says every device holds meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tracked import ServerProcess, environment, eventually

from ttmesh.tracking.address import Address

DEMO = "models/tt_transformers/demo/simple_text_demo.py"  # the path in the document; no checkout is there
PAUSE = """
def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        def shown(mesh, show=module.show_memory):
            show(mesh)
            print("held", flush=True)
            input()
        module.show_memory = shown
"""
STAGING = 3173 * 1024  # what only the coordinator has of L1, in mesh/reservations.py


def export(address: Address) -> dict[int, dict[str, object]]:
    """What `ttmesh export json` tells of every device: bytes by class of memory, and who coordinates."""
    done = subprocess.run(
        [sys.executable, "-m", "ttmesh", "export", "json"], env=environment(TTMESH_SOCKET=address.path),
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    devices = {}
    for device in json.loads(done.stdout)["devices"]:
        used = {part["memory_class"]: part["used_bytes"] for bar in device["bars"] for part in bar["segments"]}
        pools = {bar["pool"]: bar["used_bytes"] for bar in device["bars"]}
        devices[device["physical_id"]] = {"classes": used, "pools": pools, "coordinator": device["is_coordinator"]}
    return devices


def _plugin() -> list[str]:
    from importlib.metadata import entry_points

    there = any(entry.value == "ttmesh.testing.plugin" for entry in entry_points(group="pytest11"))
    return [] if there else ["-p", "ttmesh.testing.plugin"]


@pytest.mark.parametrize("coordinator", [3])
def test_the_coordinator_has_high_l1_and_dram_and_trace_are_equal_everywhere(
    address: Address, tmp_path: Path, coordinator: int
) -> None:
    (tmp_path / "pause_demo.py").write_text(PAUSE)
    server = ServerProcess(address, "-q")
    variables = environment(
        TT_COORDINATOR_DEVICE_ID=str(coordinator), TT_ALLOC_TRACKING_ENABLED="1", TTMESH_SOCKET=address.path,
        TTMESH_SYSTEM="t3k",
    )  # fmt: skip
    variables["PYTHONPATH"] += f":{tmp_path}"
    command = [sys.executable, "-m", "pytest", *_plugin(), "-p", "pause_demo", DEMO, "-s"]
    demo = subprocess.Popen(
        [*command, "-k", "performance and batch-32"], cwd=tmp_path, env=variables, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert demo.stdout
    before = []
    for line in demo.stdout:
        before.append(line)
        if line == "held\n":
            break
    assert before[-1:] == ["held\n"], "".join(before)

    devices = eventually(lambda: export(address), lambda found: len(found) == 8 and "TRACE" in found[0]["classes"])
    rest, _ = demo.communicate("\n", timeout=300)
    server.stop()

    assert demo.returncode == 0, rest
    assert "1 passed" in rest
    assert any("Capturing the decode trace" in line for line in before)
    assert [chip for chip, found in devices.items() if found["coordinator"]] == [coordinator]
    l1 = {chip: found["pools"]["L1"] for chip, found in devices.items()}
    others = {size for chip, size in l1.items() if chip != coordinator}
    assert len(others) == 1
    assert l1[coordinator] - others.pop() == STAGING
    for kind in ("DRAM", "TRACE"):
        sizes = {found["classes"][kind] for found in devices.values()}
        assert len(sizes) == 1, (kind, sizes)
        assert sizes.pop() > 0
