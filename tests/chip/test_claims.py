"""Chips that one process has claimed are refused to others, who are told the owner."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ttmesh.base.directories import DirectoryError
from ttmesh.base.errors import BusyError, SettingError
from ttmesh.chip.claims import Claim, claim, find_holder, is_exclusive

SOURCE = Path(__file__).parent.parent.parent / "src"
OWNER = """
import sys
from ttmesh.chip.claims import claim
held = claim("t3000", [int(c) for c in sys.argv[1].split(",")])
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TTMESH_CLAIMS", "exclusive")


def owner(chips: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, chips],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "claimed\n"
    return process


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    process.send_signal(number)
    process.communicate(timeout=180)


def test_a_chip_in_use_names_its_owner_and_nothing_is_kept() -> None:
    other = owner("2,3")

    with pytest.raises(
        BusyError, match=rf"chip 2 of t3000 is in use by process {other.pid} \(-c 2,3\); .*TTMESH_CLAIMS=shared"
    ):
        claim("t3000", [1, 2])
    free = find_holder("t3000", 1)
    named = find_holder("t3000", 2)
    ended(other)

    assert free is None
    assert named is not None
    assert named.pid == other.pid


def test_other_chips_and_other_systems_are_free() -> None:
    other = owner("2,3")

    claim("t3000", [0, 1]).release()
    claim("n300", [2]).release()
    ended(other)


def test_a_crash_releases() -> None:
    ended(owner("0"), signal.SIGKILL)

    with claim("t3000", [0]):
        mine = find_holder("t3000", 0)

    assert mine is not None
    assert mine.pid == os.getpid()
    assert find_holder("t3000", 0) is None


def test_a_process_may_claim_again_and_keeps_until_the_last_release() -> None:
    whole, part = claim("t3000", [0, 1]), claim("t3000", [1])

    whole.release()
    whole.release()

    assert find_holder("t3000", 0) is None
    assert find_holder("t3000", 1) is not None
    part.release()
    assert find_holder("t3000", 1) is None


def in_child(claimed: Claim) -> str:
    """What a forked child sees: it gives back what is not its own, then asks for the same chip."""
    claimed.release()
    try:
        claim("t3000", [4])
    except BusyError as error:
        return str(error)
    return "claimed"


def test_a_forked_child_owns_nothing_of_its_parents() -> None:
    claimed = claim("t3000", [4])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, in_child(claimed).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()

    assert f"chip 4 of t3000 is in use by process {os.getpid()}" in said
    assert find_holder("t3000", 4) is not None
    claimed.release()


def test_a_child_that_outlives_its_parent_keeps_no_lock() -> None:
    script = (
        "import os, sys\nfrom ttmesh.chip.claims import claim\nheld = claim('t3000', [5])\n"
        "if os.fork() == 0:\n    print(os.getpid(), flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    assert int(parent.stdout.readline()) > 0
    assert parent.wait(timeout=180) == -signal.SIGKILL

    claim("t3000", [5]).release()

    parent.stdin.close()
    parent.stdout.close()


def test_only_a_partition_is_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_exclusive({})
    assert is_exclusive({"TT_VISIBLE_DEVICES": "0,1"})
    assert not is_exclusive({"TT_VISIBLE_DEVICES": "0,1", "TTMESH_CLAIMS": "shared"})
    assert is_exclusive({"TTMESH_CLAIMS": "exclusive"})
    monkeypatch.setenv("TTMESH_CLAIMS", "shared")
    other = claim("t3000", [0])
    assert find_holder("t3000", 0) is None
    other.release()


def test_a_directory_that_cannot_be_written_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TTMESH_RUNTIME_DIR", str(tmp_path / "file" / "inside"))

    with pytest.raises(DirectoryError, match=r"inside cannot be made: Not a directory; .*Set TTMESH_RUNTIME_DIR to a"):
        claim("t3000", [0])


def test_a_full_disk_leaves_no_chip_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def once(fd: int, data: bytes, at: int) -> int:
        written.append(data)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    monkeypatch.setattr(os, "pwrite", once)
    with pytest.raises(SettingError, match="cannot be written: No space left on device"):
        claim("t3000", [0, 1])
    monkeypatch.undo()

    process = owner("0,1")  # nobody holds them
    ended(process)
