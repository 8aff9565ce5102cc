"""`ttmesh run`: plain `import ttnn` means ttmesh, in the program and in its children."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh import cli
from ttmesh.cli import run
from ttmesh.cli._program_arguments import split_at_program

SOURCE = str(Path(__file__).parents[2] / "src")


def ttmesh_run(
    folder: Path, code: str, *options: str, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(code)
    command = [sys.executable, "-m", "ttmesh", "run", *options, str(script), *arguments]
    env = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_the_program_and_its_children_import_ttmesh_as_ttnn(tmp_path) -> None:
    code = """
import subprocess, sys
import ttnn
import ttnn.device
from ttnn.types import Layout
import ttmesh.ttnn
assert ttnn is ttmesh.ttnn and ttnn.device is ttmesh.ttnn.device
child = "import ttnn, ttmesh.ttnn; assert ttnn is ttmesh.ttnn; print('child', ttnn.get_num_devices())"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
print("argv", sys.argv[1:], __name__)
"""
    done = ttmesh_run(tmp_path, code, "--system", "galaxy", arguments=("--flag", "7"))

    assert done.returncode == 0, done.stderr
    assert "child 32" in done.stdout
    assert "argv ['--flag', '7'] __main__" in done.stdout


def test_the_coordinator_option_leads_every_mesh(tmp_path) -> None:
    code = "import ttnn\nprint(ttnn.open_mesh_device(ttnn.MeshShape(2, 4)).get_device_ids()[0])"

    assert ttmesh_run(tmp_path, code, "--coordinator", "6").stdout.strip() == "6"


def test_exit_codes_and_tracebacks_are_the_programs_own(tmp_path) -> None:
    assert ttmesh_run(tmp_path, "import sys; sys.exit(7)").returncode == 7

    failed = ttmesh_run(tmp_path, "import ttnn\nttnn.open_mesh_device(ttnn.MeshShape(9, 9))")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "requires 81 devices" in failed.stderr


def test_a_missing_name_says_not_emulated_and_lists_near_matches(tmp_path) -> None:
    failed = ttmesh_run(tmp_path, "import ttnn\nttnn.MeshShap")

    assert "AttributeError" in failed.stderr or "NotHereError" in failed.stderr
    assert "ttnn.MeshShap is no name of TT-NN 0.81" in failed.stderr
    assert "Did you mean MeshShape" in failed.stderr


def test_the_real_ttnn_is_respected_unless_forced(tmp_path) -> None:
    (tmp_path / "site" / "ttnn").mkdir(parents=True)
    (tmp_path / "site" / "ttnn" / "__init__.py").write_text("print('the real one')")
    script = tmp_path / "p.py"
    script.write_text("import ttnn; print(ttnn.__name__)")
    env = {**os.environ, "PYTHONPATH": SOURCE + os.pathsep + str(tmp_path / "site")}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ttmesh", "run", *options, str(script)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    refused, forced = run(), run("--force")
    assert refused.returncode == 2
    assert "the real ttnn is installed at" in refused.stderr
    assert forced.stdout.strip() == "ttmesh.ttnn"


def test_a_program_that_does_not_exist_is_refused(tmp_path) -> None:
    command = [sys.executable, "-m", "ttmesh", "run", "nowhere.py"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "no file nowhere.py; expected a Python file" in done.stderr


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("--system", "n999"), "no system named 'n999'"),
        (("--backend", "cda"), "no backend named 'cda'"),
        (("--coordinator", "12"), "=12 names no visible device; expected one of [0, 1, 2, 3, 4, 5, 6, 7]"),
    ],
    ids=["system", "backend", "coordinator"],
)
def test_options_that_cannot_be_used_are_refused_before_the_program_starts(tmp_path, options, wrong) -> None:
    refused = ttmesh_run(tmp_path, "print('ran')", *options)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert wrong in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_option_of_ours_behind_the_program_is_the_programs_and_the_right_line_is_printed(tmp_path) -> None:
    code = "import sys; print(sys.argv[1:])"

    done = ttmesh_run(tmp_path, code, "--backend", "cpu", arguments=("--system", "galaxy", "--other", "--track"))

    script = tmp_path / "program.py"
    assert done.stdout.strip() == "['--system', 'galaxy', '--other', '--track']"
    assert done.stderr == (
        f"ttmesh run: --system and --track come after {script} and go to it; to give them to ttmesh, "
        f"write `ttmesh run --backend cpu --system galaxy --track {script} --other`.\n"
    )


@pytest.mark.parametrize(
    ("words", "options", "program"),
    [
        (["s.py", "--system", "x"], [], ["s.py", "--system", "x"]),
        (["--system", "x", "s.py", "-m", "y"], ["--system", "x"], ["s.py", "-m", "y"]),
        (["--system=x", "--track", "s.py"], ["--system=x", "--track"], ["s.py"]),
        (["--track", "-m", "timeit", "-n", "1"], ["--track", "-m", "timeit"], ["-n", "1"]),
        (["-mtimeit", "--system", "x"], ["-mtimeit"], ["--system", "x"]),
        (["--", "s.py", "--track"], [], ["s.py", "--track"]),
        (["--sys", "x", "s.py"], ["--sys"], ["x", "s.py"]),
    ],
)
def test_our_options_end_where_the_program_begins(words, options, program) -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)

    assert split_at_program(parser, words) == (options, program)


def test_options_of_a_module_are_the_modules(tmp_path) -> None:
    (tmp_path / "tool.py").write_text("import sys; print(sys.argv[1:])")
    command = [sys.executable, "-m", "ttmesh", "run", "-m", "tool", "-n", "1", "--flag"]

    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False
    )

    assert (done.stdout.strip(), done.stderr) == ("['-n', '1', '--flag']", "")


@pytest.mark.parametrize("command", ["run", "dry-run", "drift", "twin"])
def test_a_misspelt_option_is_named_by_the_command_that_does_not_take_it(command, capsys) -> None:
    option = "--systm" if command != "drift" else "--numeric"

    assert cli.main([command, option, "x", "script.py"]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"ttmesh {command}: unrecognized arguments: {option}. Did you mean --")


@pytest.mark.parametrize("program", [["missing.py"], ["data.py"], ["wrong.py"], ["--no-such-option"], []])
def test_a_program_that_cannot_run_is_refused_before_torch_loads(tmp_path, program) -> None:
    (tmp_path / "data.py").write_bytes(b"\0\1\2")
    (tmp_path / "wrong.py").write_text("x = (\n")
    code = "import sys; from ttmesh.cli import main; status = main(sys.argv[1:]); print(status, 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "run", *program]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )

    assert done.stdout.split()[-2] in ("1", "2")
    assert done.stdout.split()[-1] == "False"


def test_a_file_that_is_no_program_is_refused_and_a_syntax_error_is_pythons(tmp_path) -> None:
    (tmp_path / "data.py").write_bytes(b"\0\1\2")
    (tmp_path / "wrong.py").write_text("x = (\n")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ttmesh", "run", *arguments]
        env = {**os.environ, "PYTHONPATH": SOURCE}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)

    data, wrong, module = run("data.py"), run("wrong.py"), run("-m", "no.such.module")

    assert (data.returncode, data.stderr.count("\n")) == (2, 1)
    assert "data.py is not a Python program; expected a text file with Python code" in data.stderr
    assert wrong.returncode == 1
    assert wrong.stderr.endswith("SyntaxError: '(' was never closed\n")
    assert "Traceback" not in wrong.stderr
    assert "module 'no.such.module' cannot be found" in module.stderr
