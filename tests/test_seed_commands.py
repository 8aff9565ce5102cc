"""The shell commands of the seed documents, as docs/seeds.md gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PLUGIN = ["-p", "ttmesh.testing.plugin", "-p", "no:cacheprovider"]


def shell(command: list[str], folder: Path = EXAMPLES, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PYTHONPATH": path, "PATH": binaries, **environ}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def pytest_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *PLUGIN, *arguments, "-v", "-s"]


def test_the_coordinator_test_says_custom_coordinator_and_trace() -> None:
    test = "test_custom_coordinator.py::test_coordinator_memory_pattern"

    done = shell(pytest_command(test), TT_COORDINATOR_DEVICE_ID="3")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUSTOM COORDINATOR" in done.stdout
    assert "trace" in done.stdout.lower()
    assert "Device 3: L1 = 3.17 MB  ← coordinator" in done.stdout
    assert "Device 0: L1 = 73 KB" in done.stdout


@pytest.mark.deep  # test_one_command_runs_all_coordinators has the same eight in one process
def test_the_script_runs_all_coordinators() -> None:
    done = shell(["bash", "test_all_coordinators.sh"])

    assert done.returncode == 0, done.stdout + done.stderr
    for device in range(8):
        assert f"coordinator {device}, highest L1 on device {device} (3.17 MB)" in done.stdout
    assert "All coordinator tests complete!" in done.stdout


def test_one_command_runs_all_coordinators() -> None:
    done = shell(pytest_command("test_custom_coordinator.py", "--coordinator", "all"))

    assert "8 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("program", ["test_mesh_allocation.py", "test_ttnn_allocations.py"])
def test_the_allocation_programs_end_at_their_baseline(program: str) -> None:
    done = shell([sys.executable, program], TT_ALLOC_TRACKING_ENABLED="1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "baseline" in done.stdout


def test_the_long_running_program_does_not_grow() -> None:
    done = shell([sys.executable, "test_persistent_memory.py", "0.5"])

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_custom_conftest_works_without_the_plugin(tmp_path) -> None:
    (tmp_path / "conftest.py").write_text((EXAMPLES / "conftest_custom_coordinator.py").read_text())
    (tmp_path / "test_custom_coordinator.py").write_text((EXAMPLES / "test_custom_coordinator.py").read_text())

    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-s"]
    done = shell(command, tmp_path, TT_COORDINATOR_DEVICE_ID="6")

    assert "CUSTOM COORDINATOR: device 6" in done.stdout, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_info_is_the_smi_of_a_system() -> None:
    done = shell([sys.executable, "-m", "ttmesh", "info"])

    assert done.returncode == 0
    assert "Dev. ID: 4" in done.stdout


def start_here(command: str, address: Path, **environ: str) -> subprocess.Popen[str]:
    binaries = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": binaries, "TTMESH_SOCKET": str(address), **environ}
    env["PYTHON"] = sys.executable
    return subprocess.Popen(
        command.split(), cwd=EXAMPLES, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_server_and_monitor_start_from_their_folder_as_printed(tmp_path) -> None:
    address = tmp_path / "server.sock"
    with start_here("./allocation_server_poc", address) as server:
        assert server.stdout is not None
        assert "listens at" in server.stdout.readline()
        with start_here("./allocation_monitor_client -a -r 500", address) as monitor:
            shown = monitor.communicate(timeout=120)[0]
        server.terminate()
        server.communicate(timeout=120)

    assert monitor.returncode == 0
    assert "Cross-Process Memory Monitor" in shown


def run_tt_smi(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from ttmesh.cli.smi import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": path, "TTMESH_SOCKET": ""}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_tt_smi_is_ours_only_where_the_real_one_is_absent(tmp_path) -> None:
    real = tmp_path / "tt-smi"
    ours = tmp_path / "ours" / "tt-smi"
    ours.parent.mkdir()
    real.write_text("#!/bin/sh\necho the real one\n")
    ours.write_text("#!/bin/sh\n# from ttmesh.cli.smi import main\necho a loop\n")
    real.chmod(0o755)
    ours.chmod(0o755)

    absent, present = run_tt_smi(tmp_path, str(ours.parent)), run_tt_smi(tmp_path, f"{ours.parent}:{tmp_path}")

    assert "this is `ttmesh smi`" in absent.stderr
    assert present.stdout == "the real one\n"
