"""The pytest plugin in real pytest processes."""

from __future__ import annotations

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
import ttmesh.ttnn as ttnn
kept = []

def test_keeps_a_tensor(mesh_device):
    kept.append(ttnn.allocate_tensor_on_device(ttnn.Shape([1, 1, 32, 32]), ttnn.bfloat16, ttnn.TILE_LAYOUT, mesh_device))

def test_keeps_nothing(mesh_device, device_params, silicon_arch_name, galaxy_type, reset_seeds, expect_error):
    assert (silicon_arch_name, galaxy_type) == ("wormhole_b0", None)
    with expect_error(RuntimeError, "out of range"):
        mesh_device.queue(7)
"""


def run_pytest(folder: Path, code: str, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": SOURCE, **environ}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "ttmesh.testing.plugin",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        *options,
    ]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_fixture_opens_the_mesh_that_a_script_opens(tmp_path) -> None:
    shapes = [(2, 4), (1, 8), (1, 2)]
    expected = []
    for shape in [None, *shapes]:
        opened = ttnn.open_mesh_device(shape and ttnn.MeshShape(*shape))
        expected.append(f"LEADER {opened.reference_device()} {opened.get_device_ids()} {opened.shape}")
        ttnn.close_mesh_device(opened)

    done = run_pytest(tmp_path, WITH_MESH.replace("[(1, 8)]", str(shapes)) + DEFAULT_MESH)

    assert all(line in done.stdout for line in expected), done.stdout
    assert "CUSTOM COORDINATOR" not in done.stdout


def test_the_variable_moves_the_leader_and_the_report_names_it(tmp_path) -> None:
    done = run_pytest(tmp_path, WITH_MESH, TT_COORDINATOR_DEVICE_ID="3")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "LEADER 3 [3, 0, 1, 2, 4, 5, 6, 7]" in done.stdout
    assert "CUSTOM COORDINATOR: device 3" in done.stdout
    assert "coordinator 3, highest L1 on device 3 (3.17 MB)" in done.stdout


def test_the_option_comes_before_the_variable(tmp_path) -> None:
    done = run_pytest(tmp_path, WITH_MESH, "--coordinator", "5", TT_COORDINATOR_DEVICE_ID="3")

    assert "LEADER 5 [5, 0, 1, 2, 3, 4, 6, 7]" in done.stdout


def test_all_runs_every_device_in_the_lead(tmp_path) -> None:
    done = run_pytest(tmp_path, WITH_MESH, "--coordinator", "all")

    assert "8 passed" in done.stdout
    assert all(f"LEADER {i} " in done.stdout for i in range(8))
    assert all(f"VARIABLE {i}\n" in done.stdout for i in range(8)), "a test can ask who leads"


def test_the_parametrisation_of_seed_000_chooses_the_leader(tmp_path) -> None:
    done = run_pytest(tmp_path, METHOD_FOUR)

    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_an_unknown_coordinator_lists_the_devices(tmp_path) -> None:
    done = run_pytest(tmp_path, WITH_MESH, "--coordinator", "9")

    assert "coordinator 9 names no visible device; expected one of [0, 1, 2, 3, 4, 5, 6, 7]" in done.stdout


def test_a_leak_fails_the_test_with_its_name_and_size(tmp_path) -> None:
    done = run_pytest(tmp_path, LEAK)

    assert "1 passed" in done.stdout or "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "buffers still allocated at the end of the test" in done.stdout
    assert "2048 B of DRAM" in done.stdout


def test_another_system_is_chosen_by_option_and_too_large_a_mesh_skips(tmp_path) -> None:
    done = run_pytest(tmp_path, WITH_MESH, "--tt-system", "n300", "-rs")

    assert "1 skipped" in done.stdout
    assert "needs 8 devices, the system n300 has 2" in done.stdout


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, ttmesh.testing.plugin; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SOURCE}, check=False)

    assert done.returncode == 0


@pytest.mark.parametrize("option", ["random", "2"])
def test_a_coordinator_by_option_is_one_of_the_devices(tmp_path, option: str) -> None:
    done = run_pytest(tmp_path, WITH_MESH, "--coordinator", option)

    assert "CUSTOM COORDINATOR: device" in done.stdout
    assert done.returncode == 0
