"""A file is replaced as a whole: no half of it, no litter, and two writers do not hinder each other."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ttmesh.base import atomic_files
from ttmesh.base.atomic_files import SUFFIX, replace_file, write_file

SOURCE = Path(__file__).parents[2] / "src"
BESIDE = """
import os, sys
from ttmesh.base import atomic_files
def pause(*_):
    print("here", flush=True)
    sys.stdin.read()
if sys.argv[2] == "named":
    del os.O_TMPFILE
if sys.argv[3] == "renaming":
    os.replace = pause
with atomic_files.replace_file(sys.argv[1]) as file:
    file.write(b"new " * 1000)
    file.flush()
    if sys.argv[3] == "writing":
        pause()
"""


def paused_writer(target: Path, temporary: str, moment: str) -> subprocess.Popen[bytes]:
    """A process that stands still in the middle of replacing the file."""
    run = subprocess.Popen(
        [sys.executable, "-c", BESIDE, str(target), temporary, moment],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"here\n"
    return run


@pytest.fixture(params=["unnamed", "named"])
def temporary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of temporaries, also where the file system would choose the first."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return str(request.param)


@pytest.mark.parametrize("moment", ["writing", "renaming"])
def test_a_killed_writer_leaves_the_old_file_and_the_next_one_its_own_alone(
    tmp_path: Path, temporary: str, moment: str
) -> None:
    target = tmp_path / "a[1]*.bin"
    target.write_bytes(b"old")
    with paused_writer(target, temporary, moment) as run:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    left = [p.name for p in tmp_path.iterdir() if p != target]
    assert (left == []) == (temporary == "unnamed" and moment == "writing")
    assert target.read_bytes() == b"old"

    write_file(target, b"next")

    assert target.read_bytes() == b"next"
    assert list(tmp_path.iterdir()) == [target]


def test_a_living_writers_temporary_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with paused_writer(target, "named", "writing") as run:
        write_file(target, b"quick")
        assert target.read_bytes() == b"quick"

        run.communicate(b"")  # it goes on

    assert run.returncode == 0
    assert target.read_bytes() == b"new " * 1000
    assert list(tmp_path.iterdir()) == [target]


def test_writers_at_once_all_succeed_and_readers_see_whole_files(tmp_path: Path, temporary: str) -> None:
    target = tmp_path / "a.bin"
    contents = [bytes([i]) * 50_000 for i in range(4)]
    write_file(target, contents[0])
    failures: list[Exception] = []

    def write(mine: bytes) -> None:
        try:
            for _ in range(10):
                write_file(target, mine)
        except Exception as problem:
            failures.append(problem)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in contents]
    for thread in threads:
        thread.start()
    seen = {target.read_bytes()}
    while any(thread.is_alive() for thread in threads):
        seen.add(target.read_bytes())
    for thread in threads:
        thread.join()

    assert not failures
    assert seen <= set(contents)
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, temporary: str) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")

    with pytest.raises(ZeroDivisionError), replace_file(target) as file:
        file.write(b"half")
        raise ZeroDivisionError

    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_permissions_and_links_stay_and_pipes_are_written_to(tmp_path: Path, temporary: str) -> None:
    target, link, fresh = tmp_path / "a.bin", tmp_path / "link", tmp_path / ("n" * 250)
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)

    write_file(link, "new")
    reading, writing = os.pipe()
    write_file(f"/dev/fd/{writing}", "through a pipe")
    write_file(fresh, "a name with hardly any room")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert os.read(reading, 100) == b"through a pipe"
    os.close(reading)
    os.close(writing)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o666 & ~umask
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(SUFFIX)]


def test_contents_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(atomic_files.os, "fsync", lambda fd: (order.append("sync"), sync(fd)))
    monkeypatch.setattr(atomic_files.os, "replace", lambda a, b: (order.append("rename"), rename(a, b)))

    write_file(tmp_path / "a", "text")

    assert order == ["sync", "rename", "sync"]
