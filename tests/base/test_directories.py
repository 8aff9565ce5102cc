"""Runtime and cache directories are this user's alone, by one rule, wherever they come from."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ttmesh.base.directories import DirectoryError, cache_directory, runtime_directory
from ttmesh.chip import claims
from ttmesh.tracking.address import choose_address


@pytest.fixture(autouse=True)
def no_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("TTMESH_RUNTIME_DIR", "TTMESH_CACHE", "TT_METAL_CACHE", "TTMESH_SOCKET", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("HOME", str(tmp_path))


def spoil_mode(path: Path) -> None:
    path.mkdir()
    path.chmod(0o750)


def spoil_owner(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 54321, 54321)


def spoil_link(path: Path) -> None:
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to(path.parent / "real")


def spoil_kind(path: Path) -> None:
    path.write_text("")


def spoil_parent(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.parent.chmod(0o777)


SPOILERS = [
    (spoil_mode, r"lets others in \(mode 0750\)"),
    pytest.param(
        spoil_owner,
        "belongs to user 54321, not to you",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away"),
    ),
    (spoil_link, "is a link"),
    (spoil_kind, "cannot be made: File exists"),
    (spoil_parent, r"can be exchanged by others: all may write to .*/place"),
]


@pytest.mark.parametrize(("spoil", "problem"), SPOILERS)
@pytest.mark.parametrize(
    ("variable", "leaf", "user"),
    [
        ("TTMESH_RUNTIME_DIR", "", runtime_directory),
        ("TTMESH_RUNTIME_DIR", "", lambda: claims.find_holder("t3000", 0)),
        ("TTMESH_RUNTIME_DIR", "", choose_address),
        ("TTMESH_CACHE", "kernels", lambda: cache_directory("kernels")),
        ("TT_METAL_CACHE", "kernels", lambda: cache_directory("kernels")),
        ("XDG_CACHE_HOME", "ttmesh/kernels", lambda: cache_directory("kernels")),
    ],
)
def test_one_rule_for_every_directory(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
    leaf: str,
    user: Callable[[], object],
    spoil: Callable[[Path], None],
    problem: str,
) -> None:
    named = tmp_path / "place" / "named"
    directory = named / leaf
    directory.parent.mkdir(parents=True)
    monkeypatch.setenv(variable, str(named))
    if leaf and spoil is spoil_parent:
        problem = "can be exchanged by others"

    spoil(directory)

    with pytest.raises(DirectoryError, match=problem):
        user()


def test_directories_are_made_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TTMESH_RUNTIME_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.setenv("TTMESH_CACHE", str(tmp_path / "c"))

    for directory in (runtime_directory(), cache_directory("kernels")):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert Path(choose_address().path).parent == runtime_directory()


def test_the_systems_own_places_are_the_default(tmp_path: Path) -> None:
    assert runtime_directory() == tmp_path / "run" / "ttmesh"
    assert cache_directory("kernels") == tmp_path / ".cache" / "ttmesh" / "kernels"


def test_a_user_without_a_home_gets_no_folder_named_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    with pytest.raises(DirectoryError, match=r"no home directory; .* Set HOME or TTMESH_CACHE"):
        cache_directory("kernels")
    assert not (tmp_path / "~").exists()


def test_a_sticky_folder_for_all_is_as_good_as_tmp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    common = tmp_path / "common"
    common.mkdir()
    common.chmod(0o1777)
    monkeypatch.setenv("TTMESH_CACHE", str(common / "mine"))

    assert cache_directory("kernels") == common / "mine" / "kernels"
