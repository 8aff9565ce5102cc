"""Rank-binding files: what is read, what is refused, and which environment each rank gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttmesh.launch.bindings import LaunchError, mesh_each, one_mesh, read_bindings, read_mapping, with_mock_clusters
from ttmesh.launch.environment import filter_environment, rank_environment

TWO = """
rank_bindings:
  - {rank: 1, mesh_id: 0, mesh_host_rank: 1, env_overrides: {TT_VISIBLE_DEVICES: "2,3", LEVEL: rank}}
  - {rank: 0, mesh_id: 0, mesh_host_rank: 0, env_overrides: {TT_VISIBLE_DEVICES: "0,1"}}
global_env: {LEVEL: global, WHERE: "$HOME/x"}
mesh_graph_desc_path: graph.textproto
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "graph.textproto").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TT_METAL_HOME", raising=False)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "bindings.yaml"
    path.write_text(text)
    return path


def test_ranks_come_in_order_with_their_own_values(folder: Path) -> None:
    bindings = read_bindings(written(folder, TWO))

    assert [b.rank for b in bindings.ranks] == [0, 1]
    assert bindings.ranks[1].env_overrides["TT_VISIBLE_DEVICES"] == "2,3"
    assert bindings.ranks[0].mesh_graph_desc_path == (folder / "graph.textproto").resolve()


def test_overrides_win_over_global_env_over_what_is_set_here_over_what_is_passed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    bindings = read_bindings(written(folder, TWO))
    parent = {
        "HOME": "/home/me",
        "TT_MESH_ID": "9",
        "TT_VISIBLE_DEVICES": "7",
        "TT_LOGGER_LEVEL": "Debug",
        "LEVEL": "shell",
    }

    first, second = (rank_environment(b, bindings, parent, folder) for b in bindings.ranks)

    assert (first["LEVEL"], second["LEVEL"]) == ("global", "rank")
    assert first["WHERE"] == "/home/me/x"
    assert (second["TT_MESH_ID"], second["TT_MESH_HOST_RANK"], second["TT_VISIBLE_DEVICES"]) == ("0", "1", "2,3")
    assert first["TT_LOGGER_LEVEL"] == "Debug"
    assert first["TT_RUN_ORIGINAL_CWD"] == first["PYTHONPATH"] == str(folder)
    assert first["TT_METAL_CACHE"] != second["TT_METAL_CACHE"]
    assert "TT_VISIBLE_DEVICES" not in filter_environment(parent)


def test_a_rank_without_a_place_gets_none_and_a_given_cache_is_kept(folder: Path) -> None:
    text = "rank_bindings: [{rank: 0, mesh_id: 3}]\nmesh_graph_desc_path: graph.textproto"
    bindings = read_bindings(written(folder, text))

    env = rank_environment(bindings.ranks[0], bindings, {"TT_METAL_CACHE": "/c", "TT_MESH_HOST_RANK": "4"}, folder)

    assert "TT_MESH_HOST_RANK" not in env
    assert (env["TT_MESH_ID"], env["TT_METAL_CACHE"]) == ("3", "/c")


def test_a_number_of_ranks_presents_one_mesh() -> None:
    assert [(b.mesh_id, b.mesh_host_rank) for b in one_mesh(3).ranks] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TWO.replace("rank: 1,", "rank: 0,"), "Duplicate ranks found in bindings"),
        (TWO.replace("rank: 1,", "rank: 2,"), r"Ranks must be contiguous from 0. Got: \[0, 2\]"),
        (TWO.replace("graph.textproto", "other"), r"Mesh graph descriptor not found: other \(searched in"),
        (TWO.replace("mesh_graph_desc_path: graph.textproto", ""), "mesh_graph_desc_path: Field required"),
        (TWO.replace("rank_bindings", "bindings"), "rank_bindings: Field required"),
        (TWO.replace("mesh_id: 0", "mesh_id: -1"), "mesh_id: Input should be greater than or equal to 0"),
        (TWO.replace("rank: 1,", "rank: one,"), "rank_bindings.0.rank: Input should be a valid integer, got 'one'"),
        (TWO.replace("LEVEL: global", "LEVEL: 1"), "global_env.LEVEL: Input should be a valid string, got 1"),
        ("[1, 2]", "Input should be a valid dictionary"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(folder: Path, text: str, words: str) -> None:
    with pytest.raises(LaunchError, match=f"Configuration error: .*{words}"):
        read_bindings(written(folder, text))


def test_a_missing_file_and_an_unchecked_descriptor(folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"Configuration file not found: nowhere\.yaml"):
        read_bindings(Path("nowhere.yaml"))
    elsewhere = read_bindings(written(folder, TWO.replace("graph.", "remote.")), check_mesh_graph=False)
    assert elsewhere.ranks[0].mesh_graph_desc_path == folder / "remote.textproto"


def test_a_mapping_numbers_ranks_on_and_tells_sub_contexts(folder: Path) -> None:
    written(folder, TWO)
    (folder / "map.yaml").write_text("subcontext_id_to_rank_bindings: {0: bindings.yaml, 1: bindings.yaml}")

    bindings = read_mapping(Path("map.yaml"))

    assert [(b.rank, b.subcontext_id) for b in bindings.ranks] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert bindings.global_env["TT_RUN_SUBCONTEXT_SIZES"] == "2,2"
    assert rank_environment(bindings.ranks[3], bindings, {}, folder)["TT_RUN_SUBCONTEXT_ID"] == "1"
    (folder / "map.yaml").write_text("subcontext_id_to_rank_bindings: {1: bindings.yaml}")
    with pytest.raises(
        LaunchError, match=r"keys must be dense and monotonic starting at 0 \(expected \[0\], got \[1\]\)"
    ):
        read_mapping(Path("map.yaml"))


def test_every_rank_is_told_its_mock_cluster(folder: Path) -> None:
    bindings = read_bindings(written(folder, TWO))
    (folder / "mock.yaml").write_text("rank_to_cluster_mock_cluster_desc: {0: graph.textproto, 1: mock.yaml}")

    told = with_mock_clusters(bindings, Path("mock.yaml"))

    env = rank_environment(told.ranks[1], told, {}, folder)
    assert env["TT_METAL_MOCK_CLUSTER_DESC_PATH"] == str(folder / "mock.yaml")
    (folder / "mock.yaml").write_text("rank_to_cluster_mock_cluster_desc: {0: graph.textproto}")
    with pytest.raises(LaunchError, match=r"Mock cluster mapping ranks \[0\] do not match"):
        with_mock_clusters(bindings, Path("mock.yaml"))


def test_a_misspelt_name_is_mentioned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "graph").touch()
    text = f"rank_bindings: [{{rank: 0, mesh_id: 0, env_overides: {{}}}}]\nmesh_graph_desc_path: {tmp_path}/graph\n"
    (tmp_path / "bindings.yaml").write_text(text)

    read_bindings(tmp_path / "bindings.yaml")

    said = capsys.readouterr().err
    assert "rank_bindings.0: 'env_overides' is not used. Did you mean env_overrides?" in said


def test_ranks_may_have_a_mesh_of_their_own_each() -> None:
    assert [(b.rank, b.mesh_id, b.mesh_host_rank) for b in mesh_each(2).ranks] == [(0, 0, 0), (1, 1, 0)]
