"""Tokens and keys reach every rank, and stand in no command line and in nothing that is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from launch_engines import ENGINES, HAS_MPI, SOURCE

from ttmesh.base import settings
from ttmesh.base.errors import SettingError
from ttmesh.launch.bindings import one_mesh
from ttmesh.launch.commands import LaunchPlan, commands

VALUE = "hunter2 'x'; $(id)"
# What a rank sees, and every command line of this host that shows the value (but for those who were told to look for it).
LOOK = """
import os, pathlib
print(os.environ["TTMESH_TOKEN"], os.environ["DEEPSEEK_API_KEY"], [n for n in os.environ if n.startswith("TTMESH_SECRETS")])
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        line = path.read_bytes()
    except OSError:
        continue
    if os.environ["TTMESH_TOKEN"].encode() in line or os.environ["TTMESH_TOKEN"].encode().hex().encode() in line:
        print("seen in", line)
"""


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TTMESH_")}
    env |= {"PYTHONPATH": str(SOURCE), "TTMESH_TOKEN": VALUE, "DEEPSEEK_API_KEY": "key"} | more
    return subprocess.run(
        [sys.executable, "-m", "ttmesh.cli.launch", *arguments], capture_output=True, text=True, timeout=300, env=env
    )


@pytest.fixture
def look(tmp_path: Path) -> str:
    (tmp_path / "look.py").write_text(LOOK)
    return str(tmp_path / "look.py")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rank_has_the_token_and_no_command_line_shows_it(engine: str, look: str) -> None:
    done = run("-n", "2", "--engine", engine, "-v", look)

    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {VALUE} key []" for rank in (0, 1)], done.stderr
    assert VALUE not in done.stderr


def test_another_host_gets_it_through_the_input(tmp_path: Path, look: str) -> None:
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\nshift\nexec env -i PATH="$PATH" "$@"\n')  # a host with an environment of its own
    agent.chmod(0o755)

    done = run("-n", "1", "--engine", "torchdist", "--hosts", "far", "--rsh", str(agent), "-v", look)

    assert done.stdout.splitlines() == [f"[0] {VALUE} key []"], done.stderr
    assert VALUE not in done.stderr


@pytest.mark.parametrize("hosts", [(), ("a", "b")], ids=["here", "hosts"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", ["parent", "global_env", "env_overrides"])
def test_wherever_it_comes_from_no_argument_holds_it(
    engine: str, hosts: tuple[str, ...], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = one_mesh(2)
    if source == "parent":
        monkeypatch.setenv("TTMESH_TOKEN", VALUE)
    elif source == "global_env":
        bindings = replace(bindings, global_env={"TTMESH_TOKEN": VALUE})
    else:
        ranks = tuple(replace(rank, env_overrides={"MY_PASSWORD": VALUE}) for rank in bindings.ranks)
        bindings = replace(bindings, ranks=ranks)

    made = commands(LaunchPlan(bindings, ("true",), engine, hosts=hosts))

    for command in made:
        words = " ".join(command.argv)
        assert "hunter2" not in words
        assert b"hunter2".hex() not in words


@pytest.mark.skipif(not HAS_MPI, reason="mpi4py or mpirun is not installed")
def test_what_the_user_wrote_on_the_command_line_is_not_printed_again() -> None:
    done = run("-n", "1", "--engine", "mpi", "--mpi-args", "-x TTMESH_TOKEN=typed", "--dry-run", "true")

    assert done.returncode == 0, done.stderr
    assert "TTMESH_TOKEN=***" in done.stderr
    assert "typed" not in done.stderr


def test_settings_never_print_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_TOKEN", VALUE)
    secrets = [setting for setting in settings.SETTINGS if setting.secret]

    assert settings.list_set_values()["TTMESH_TOKEN"] == "set"
    assert [setting.variable for setting in secrets] == ["TTMESH_TOKEN"]
    with pytest.raises(SettingError) as raised:
        settings._parse_value(replace(secrets[0], parse=int), VALUE)
    assert VALUE not in str(raised.value)
