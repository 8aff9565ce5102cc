"""Whatever a command is given, it ends with a status and at most one line of error, never with a traceback."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ttmesh import cli
from ttmesh.base import settings
from ttmesh.cli._terminal import LOOKALIKES

NAMES = list(cli.subcommands())
ABSURD_NUMBERS = (
    "",
    " ",
    "x",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1",
    "9" * 30,
    "9" * 5000,
    "١",
    "1_000",
    "0x10",
    "\udcff",
    "½",
)
HOSTILE = (
    *ABSURD_NUMBERS, "-", "--", "[/red]", "[z-a]", "'", "\\", "a:70000", "::1", "host:x", "%s", "{", "\x1b[2J", "\u202e",
    "x" * 5000, "/", "/dev/null", "/dev/full", "..", "~nosuchuser/x", "*" * 500, "http://", "é", "🙂", "a b", "\n", "0", "=",
)  # fmt: skip
# The rest of a command line that ends by itself, once the option under test is put in front.
ENDING = {
    "conformance": ["nowhere"],
    "export": ["json"],
    "launch": ["-n", "1", "--dry-run", "--engine", "torchdist", "true"],
    "run": ["nowhere.py"],
    "server": ["--listen", "nowhere"],
    "web": ["--host", "256.256.256.256"],
    "monitor": ["-n", "1"],
}
SLOW = ("ops", "launch", "web")  # many calls of many options


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a subcommand with its arguments."""
    parser = cli.build_parser(cli.subcommands())
    (action,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    chosen: argparse.ArgumentParser = action.choices[name]
    importlib.import_module(f"ttmesh.cli.{name.replace('-', '_')}").add_arguments(chosen)
    return chosen


def options_of(name: str) -> list[argparse.Action]:
    """The options of a subcommand that take a value, and its positional arguments."""
    return [a for a in parser_of(name)._actions if a.nargs != 0]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TTMESH_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    environ = dict(os.environ)
    meta_path = list(sys.meta_path)
    yield
    os.environ.clear()
    os.environ.update(environ)
    sys.meta_path[:] = meta_path


def check(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """Run it here; an error is one line that begins with the command's name."""
    environ = dict(os.environ)
    status = cli.main(arguments)
    os.environ.clear()
    os.environ.update(environ)

    error = capsys.readouterr().err
    assert status in (0, 1, 2), arguments
    assert "Traceback" not in error
    if status == 2:
        lines = [line for line in error.splitlines() if not line.startswith("ttmesh run: --")]
        assert len(lines) == 1, (arguments, error)
        assert re.match(r"ttmesh( [a-z-]+)?: .{10,}", lines[0]), (arguments, error)
    return status


@pytest.mark.parametrize("name", NAMES)
def test_any_value_of_any_option_is_used_or_refused_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = HOSTILE if name not in SLOW else HOSTILE[::5]
    for turn, (action, value) in enumerate(itertools.product(options_of(name), values)):
        if action.option_strings:
            option = action.option_strings[-1]
            check([name, *([option, value] if turn % 2 else [f"{option}={value}"]), *ENDING.get(name, [])], capsys)
        else:
            check([name, value], capsys)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_refused_where_they_are_absurd(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in options_of(name):
        if action.type is None or action.type is Path or getattr(action.type, "__name__", "") != "parse":
            continue
        for value in ABSURD_NUMBERS:
            assert check([name, f"{action.option_strings[-1]}={value}", *ENDING.get(name, [])], capsys) == 2, value


@pytest.mark.parametrize("name", NAMES)
def test_no_option_takes_a_number_without_bounds(name: str) -> None:
    assert not [a.option_strings for a in options_of(name) if a.type in (int, float)]


TOP = 'top_level_instance { mesh { mesh_descriptor: "A" } }'
MESH = 'mesh_descriptors { name: "A" device_topology { dims: [%s] } host_topology { dims: [%s] } } ' + TOP
FILES = {
    "missing": None,
    "empty": b"",
    "binary": b"\xff\xfe\x00\x01" * 64,
    "nul": b"\0" * 100,
    "deep": b"[" * 3000,
    "braces": b"{" * 3000,
    "dashes": b"- " * 3000,
    "bomb": b"b0: &b0 [x, x]\n" + b"".join(b"b%d: &b%d [%s]\n" % (i, i, b"*b%d, " % (i - 1) * 9) for i in range(1, 30)),
    "self": b"&a [*a]",
    "keys": b"? {a: b}\n: c\n",
    "tag": b"!!python/object/apply:os.system ['true']",
    "types": b"a: !!bool x\nb: !!int ''\nc: 2000-99-99\n",
    "list": b"[1, 2]",
    "number": b"5",
    "json": b'{"rank_bindings": [5], "mesh_graph_desc_path": []}',
    "ranks": b"rank_bindings: [{rank: 0, mesh_id: 0}, {rank: 0, mesh_id: 0}]\nmesh_graph_desc_path: x\n",
    "graph": b'graph_descriptors { name: "A" instances { graph { graph_descriptor: "A" } } }'
    b'top_level_instance { graph { graph_descriptor: "A" } }',
    "dims": (MESH % ("x, -1", "1, 1")).encode(),
    "hosts": (MESH % ("1000000, 1000000", "1000000, 1000000")).encode(),
    "text": b'mesh_descriptors: 5 top_level_instance: "x"',
}


@pytest.mark.parametrize("kind", [*FILES, "folder", "pipe", "link", "unreadable"])
def test_any_file_is_used_or_refused_in_one_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "given.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(path)
    elif FILES.get(kind) is not None:
        path.write_bytes(FILES[kind] or b"")
    elif kind == "unreadable":
        path.write_text("chip: wormhole_8x8")
        path.chmod(0)

    launched = ["launch", "--dry-run", "--engine", "torchdist"]
    assert check(["info", "--system", str(path)], capsys) == 2
    for option in ("--rank-binding", "--rank-bindings-mapping", "-m", "-M"):
        assert check([*launched, option, str(path), "true"], capsys) == 2
    check([*launched, "-n", "1", "--mock-cluster-rank-binding", str(path), "true"], capsys)
    check([*launched, "-n", "1", "--factory-system-descriptor", str(path), "true"], capsys)
    # A file that holds a good token is refused for an address that no machine here has (RFC 5737).
    for command in (["server", "--listen", "nowhere"], ["web", "--host", "203.0.113.1"]):
        assert check([*command, "--token-file", str(path)], capsys) == 2
    if kind in ("missing", "folder", "binary", "nul", "link"):
        assert check(["run", str(path)], capsys) in (1, 2)


def test_output_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("/nowhere/x", "/dev/full", "/"):
        check(["export", "json", "-o", output], capsys)


GARBAGE = ("gärbage\udcff", " ", "\n", "\x1b", "-5", "9" * 5000, "nan", "inf", "{", "/dev/null/x")


@pytest.mark.parametrize("setting", settings.SETTINGS, ids=lambda s: s.variable)
def test_garbage_in_a_variable_is_a_value_or_an_error_that_names_it(setting: settings.Setting) -> None:
    free_text = {"TTMESH_SYSTEM", "TTMESH_CACHE", "TTMESH_RUNTIME_DIR", "TTMESH_SHARED_MEMORY", "TTMESH_SOCKET"}
    free_text.add("TT_METAL_CACHE")
    for value in GARBAGE:
        shown = "(not shown)" if setting.secret else repr(value[:200])
        try:
            got = settings.get(setting.variable, {setting.variable: value})
        except settings.SettingError as caught:
            got = str(caught)
            named = got.startswith(f"{setting.variable}={shown} cannot be used; expected ")
        else:
            named = value not in GARBAGE[:4] or (value == GARBAGE[0] and setting.variable in free_text)

        assert named, (setting.variable, value, got)


def test_a_variable_that_is_empty_is_not_set() -> None:
    for setting in settings.SETTINGS:
        assert settings.get(setting.variable, {setting.variable: ""}) == setting.default


def process(*arguments: str, stdout: int | None = None, **environ: str) -> subprocess.Popen[str]:
    source = str(Path(cli.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": source, **environ}
    command = [sys.executable, "-m", "ttmesh", *arguments]
    return subprocess.Popen(command, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["monitor", "--help"], ["info"]], ids=" ".join)
def test_a_reader_that_went_away_is_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with process(*arguments, stdout=writer) as started:
        os.close(writer)

        assert started.communicate(timeout=300)[1] == ""
        assert started.returncode == 128 + signal.SIGPIPE


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full, process("info", stdout=full.fileno()) as started:
        error = started.communicate(timeout=300)[1]

        assert started.returncode == 2
        assert error.startswith("ttmesh info: No space left on device; expected ")
        assert error.count("\n") == 1


def test_a_closed_output_is_one_line() -> None:
    source = str(Path(cli.__file__).parents[2])
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m ttmesh info >&-'],
        env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("ttmesh info: Bad file descriptor; expected ")


def test_every_line_block_and_arrow_that_is_printed_has_a_lookalike() -> None:
    drawn = {
        character
        for path in Path(cli.__file__).parents[1].rglob("*.py")
        for character in path.read_text(encoding="utf-8")
    }

    assert {c for c in drawn if "\u2190" <= c <= "\u27ff" or c == "−"} <= LOOKALIKES.keys()


def test_where_only_ascii_can_be_shown_the_rest_looks_alike(tmp_path: Path) -> None:
    with process("info", stdout=subprocess.PIPE, PYTHONIOENCODING="ascii", TTMESH_CACHE="/tmp/é🙂") as started:
        shown, error = started.communicate(timeout=300)

    assert (started.returncode, error) == (0, "")
    assert shown.isascii()
    assert "/tmp/\\xe9\\U0001f642" in shown


def test_a_pipe_gets_one_picture_or_hears_that_there_is_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["monitor"])

    shown = capsys.readouterr()
    if status == 0:  # chips that real tt-metal uses on this machine are shown without a server
        assert shown.out.count("Cross-Process Memory Monitor") == 1
    else:
        assert status == 2
        assert "Start one with `ttmesh server`." in shown.err
