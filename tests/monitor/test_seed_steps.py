"""The two seed walks, typed command by command: server, monitor, and a program on the real runtime."""

from __future__ import annotations

import subprocess
import sys

from tracked import ServerProcess, environment, eventually, on_all, used

from ttmesh.tracking.address import Address
from ttmesh.tracking.query import Monitor

MB100 = 104857600
STAGING = 3173 * 1024  # what only the coordinator has of L1, in mesh/reservations.py

PROGRAM_001 = """
import torch
import ttmesh.ttnn as ttnn

mesh = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
values = torch.zeros(1, 1, 10240, 5120, dtype=torch.bfloat16)  # 100 MiB
tensors = [ttnn.from_torch(values, layout=ttnn.TILE_LAYOUT, device=mesh) for _ in range(2)]
print("held", flush=True)
input()
for tensor in tensors:
    ttnn.deallocate(tensor)
print("freed", flush=True)
input()
ttnn.close_mesh_device(mesh)
"""

PROGRAM_000 = """
import os
import ttmesh.ttnn as ttnn

for device_id in (0, 3, 7):
    os.environ["TT_COORDINATOR_DEVICE_ID"] = str(device_id)
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 8))
    print(device_id, flush=True)
    input()
    ttnn.close_mesh_device(mesh)
"""


LEAKING_PROGRAM = """
import torch
import ttmesh.ttnn as ttnn

def forgetful(mesh):
    return ttnn.from_torch(torch.zeros(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 2))
freed, kept = forgetful(mesh), forgetful(mesh)
ttnn.deallocate(freed)
ttnn.close_mesh_device(mesh)
"""


def run_tracked(program: str, address: Address, **extra: str) -> subprocess.Popen[str]:
    tracking = {"TT_ALLOC_TRACKING_ENABLED": "1", "TTMESH_SOCKET": address.path, **extra}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(**tracking),
    )


def go_on(program: subprocess.Popen[str]) -> str:
    assert program.stdin
    assert program.stdout
    program.stdin.write("\n")
    program.stdin.flush()
    return program.stdout.readline().strip()


def plain_monitor(address: Address) -> str:
    command = [sys.executable, "-m", "ttmesh", "monitor", "-a", "-r", "500", "-n", "1"]
    done = subprocess.run(
        command, env=environment(TTMESH_SOCKET=address.path), capture_output=True, text=True, timeout=180
    )
    return done.stdout


def test_seed_001_two_tensors_of_100_mb_on_all_eight_devices_then_baseline(address):
    server = ServerProcess(address)
    program = run_tracked(PROGRAM_001, address)
    assert program.stdout
    with Monitor(address, timeout_s=180) as monitor:
        assert program.stdout.readline() == "held\n"
        state = eventually(monitor.state, lambda s: used(s) == on_all(2 * MB100))
        page = plain_monitor(address)
        assert go_on(program) == "freed"
        eventually(monitor.state, lambda s: used(s) == on_all(0))
        program.communicate("\n", timeout=180)
        eventually(monitor.leaks, lambda found: len(found.ended) == 1)
        leaks = monitor.leaks()

    assert [d.usage["DRAM"].buffers for d in state.devices] == [2] * 8
    assert page.count("DRAM:    200.00 MB /     12.00 GB") == 8
    assert (leaks.ended[0].orderly, leaks.ended[0].held, leaks.ended[0].at_close) == (True, [], [])
    text = server.stop()
    assert text.count(f"Allocated {MB100} bytes of DRAM on device") == 16
    assert text.count(f"({MB100} bytes of DRAM)") == 16
    assert text.rstrip().endswith("Active allocations: 0")


def test_what_a_mesh_still_held_when_it_closed_is_found_with_its_place(address):
    server = ServerProcess(address, "-q")
    program = run_tracked(LEAKING_PROGRAM, address, TTMESH_TRACK_STACKS="1")
    program.communicate(timeout=180)
    with Monitor(address, timeout_s=180) as monitor:
        (ended,) = eventually(lambda: monitor.leaks().ended, lambda ends: len(ends) == 1)

    (left,) = ended.at_close
    assert (left.buffers, left.chips, left.size_bytes) == (1, 2, 2 * 2048)
    assert left.site.splitlines() == ["<string>:6 in forgetful", "<string>:9 in <module>"]
    assert ended.held == []
    server.stop()


def test_seed_000_the_high_l1_rotates_with_the_coordinator(address):
    server = ServerProcess(address, "-q")
    program = run_tracked(PROGRAM_000, address)
    assert program.stdout
    with Monitor(address, timeout_s=180) as monitor:
        told = program.stdout.readline().strip()
        for device_id in (0, 3, 7):
            assert told == str(device_id)
            wanted = {chip: 74752 + STAGING * (chip == device_id) for chip in range(8)}
            state = eventually(monitor.state, lambda s, wanted=wanted: used(s, "SYSTEM_L1") == wanted)
            page = plain_monitor(address)
            told = go_on(program)

            assert [d.physical_id for d in state.devices if d.is_coordinator] == [device_id]
            marked = [line for line in page.splitlines() if "← coordinator" in line]
            assert [line.split()[1].rstrip("R") for line in marked] == [str(device_id)]
            assert page.count("SYSTEM:       3.17 MB") == 1
            assert page.count("SYSTEM:         73 KB") == 7
    program.communicate(timeout=180)
    server.stop()
