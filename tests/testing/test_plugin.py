"""The pytest plugin in sessions of pytest, one after the other in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ttmesh.ttnn as ttnn

SOURCE = str(Path(__file__).parents[2] / "src")

WITH_MESH = """
import os
import pytest

@pytest.mark.parametrize("mesh_device", [(1, 8)], indirect=True)
def test_leader(mesh_device):
    print("LEADER", mesh_device.reference_device(), mesh_device.get_device_ids(), mesh_device.shape)
    print("VARIABLE", os.environ.get("TT_COORDINATOR_DEVICE_ID"))
"""

DEFAULT_MESH = """
def test_default(mesh_device):
    print("LEADER", mesh_device.reference_device(), mesh_device.get_device_ids(), mesh_device.shape)
"""

METHOD_FOUR = """
import pytest

@pytest.mark.parametrize("mesh_device,coordinator_id", [((1, 8), 0), ((1, 8), 3), ((1, 8), 7)], indirect=["mesh_device"])
def test_with_different_coordinators(mesh_device, coordinator_id):
    assert mesh_device.reference_device() == coordinator_id
"""

LEAK = """
import pytest
import ttmesh.ttnn as ttnn
kept = []

def test_keeps_a_tensor(mesh_device):
    kept.append(ttnn.allocate_tensor_on_device(ttnn.Shape([1, 1, 32, 32]), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh_device))

@pytest.mark.parametrize("device_params", [{"fabric_config": ttnn.FabricConfig.FABRIC_1D}], indirect=True)
@pytest.mark.parametrize("mesh_device", [(1, 8)], indirect=True)
def test_frees_the_results_of_a_collective(mesh_device, device_params):
    x = ttnn.ones((1, 1, 32, 256), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device)
    ttnn.reduce_scatter(ttnn.all_gather(x, dim=3), dim=3)

def test_keeps_nothing(mesh_device, device_params, silicon_arch_name, galaxy_type, reset_seeds, expect_error):
    assert (silicon_arch_name, galaxy_type) == ("wormhole_b0", None)
    with expect_error(RuntimeError, "out of range"):
        mesh_device.queue(7)
"""


SHAPES = [(2, 4), (1, 8), (1, 2)]
SESSIONS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "shapes": (WITH_MESH.replace("[(1, 8)]", str(SHAPES)) + DEFAULT_MESH, [], {}),
    "variable": (WITH_MESH, [], {"TT_COORDINATOR_DEVICE_ID": "3"}),
    "option": (WITH_MESH, ["--coordinator", "5"], {"TT_COORDINATOR_DEVICE_ID": "3"}),
    "all": (WITH_MESH, ["--coordinator", "all"], {}),
    "parametrised": (METHOD_FOUR, [], {}),
    "unknown": (WITH_MESH, ["--coordinator", "9"], {}),
    "leak": (LEAK, [], {}),
    "n300": (WITH_MESH, ["--tt-system", "n300", "-rs"], {}),
    "random": (WITH_MESH, ["--coordinator", "random"], {}),
    "2": (WITH_MESH, ["--coordinator", "2"], {}),
}

# Each has a file of its own and the environment of the first.
RUN_SESSIONS = """
import contextlib, io, json, os, sys
import pytest

results = {}
for name, (code, options, environ) in json.load(sys.stdin).items():
    with open(f"test_{name}.py", "w") as file:
        file.write(code)
    before = dict(os.environ)
    os.environ.update(environ)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        plugins = ["-p", "ttmesh.testing.plugin", "-p", "no:cacheprovider"]
        status = pytest.main([*plugins, "-q", "-s", f"test_{name}.py", *options])
    os.environ.clear()
    os.environ.update(before)
    results[name] = int(status), out.getvalue()
json.dump(results, open("results", "w"))
"""


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Status and output of every session."""
    folder = tmp_path_factory.mktemp("sessions")
    env = {name: value for name, value in os.environ.items() if name != "TT_COORDINATOR_DEVICE_ID"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_SESSIONS], input=json.dumps(SESSIONS), cwd=folder, env={**env, "PYTHONPATH": SOURCE},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads((folder / "results").read_text())
    return found


def test_the_fixture_opens_the_mesh_that_a_script_opens(sessions) -> None:
    expected = []
    for shape in [None, *SHAPES]:
        opened = ttnn.open_mesh_device(shape and ttnn.MeshShape(*shape))
        expected.append(f"LEADER {opened.reference_device()} {opened.get_device_ids()} {opened.shape}")
        ttnn.close_mesh_device(opened)

    _, output = sessions["shapes"]

    assert all(line in output for line in expected), output
    assert "CUSTOM COORDINATOR" not in output


def test_the_variable_moves_the_leader_and_the_report_names_it(sessions) -> None:
    status, output = sessions["variable"]

    assert status == 0, output
    assert "LEADER 3 [3, 0, 1, 2, 4, 5, 6, 7]" in output
    assert "CUSTOM COORDINATOR: device 3" in output
    assert "coordinator 3, highest L1 on device 3 (3.17 MB)" in output


def test_the_option_comes_before_the_variable(sessions) -> None:
    assert "LEADER 5 [5, 0, 1, 2, 3, 4, 6, 7]" in sessions["option"][1]


def test_all_runs_every_device_in_the_lead(sessions) -> None:
    _, output = sessions["all"]

    assert "8 passed" in output
    assert all(f"LEADER {i} " in output for i in range(8))
    assert all(f"VARIABLE {i}\n" in output for i in range(8)), "a test can ask who leads"


def test_the_parametrisation_of_seed_000_chooses_the_leader(sessions) -> None:
    assert "3 passed" in sessions["parametrised"][1], sessions["parametrised"][1]


def test_an_unknown_coordinator_lists_the_devices(sessions) -> None:
    expected = "coordinator 9 names no visible device; expected one of [0, 1, 2, 3, 4, 5, 6, 7]"

    assert expected in sessions["unknown"][1]


def test_a_leak_fails_the_test_with_its_name_and_size(sessions) -> None:
    _, output = sessions["leak"]

    assert "3 passed, 1 error" in output, output
    assert "buffers still allocated at the end of the test" in output
    assert "2048 B of DRAM" in output


def test_another_system_is_chosen_by_option_and_too_large_a_mesh_skips(sessions) -> None:
    _, output = sessions["n300"]

    assert "1 skipped" in output
    assert "needs 8 devices, the system n300 has 2" in output


@pytest.mark.parametrize("option", ["random", "2"])
def test_a_coordinator_by_option_is_one_of_the_devices(sessions, option: str) -> None:
    status, output = sessions[option]

    assert "CUSTOM COORDINATOR: device" in output
    assert status == 0


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, ttmesh.testing.plugin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)

    assert done.returncode == 0
