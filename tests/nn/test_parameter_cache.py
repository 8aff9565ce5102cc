"""Cached parameter trees: tensors and JSON, whole or refused, and nothing in them is executed."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ttmesh.ttnn as ttnn
from ttmesh.base.errors import MeshError
from ttmesh.nn.parameter_cache import FILE, load_or_build
from ttmesh.nn.weights.parameter_tree import Conv2dArgs, ModuleArgs, ParameterDict, ParameterList
from ttmesh.tensor.transfer.safetensors_files import read_tensors


def build() -> ParameterDict:
    """A tree with everything that one may hold."""
    args = Conv2dArgs(kernel_size=(3, 3), dtype=ttnn.bfloat16, padding_mode="zeros", eps=0.5, blocks={}, rest=[1, None])
    layers = ParameterList([ParameterDict({"w": ttnn.from_torch(torch.full((3, 3), float(i)))}) for i in range(12)])
    return ParameterDict(
        {"layers": layers, "0": torch.ones(2), 0: torch.nn.Parameter(torch.zeros(2)), "ttnn_module_args": args}
    )


def refuse() -> ParameterDict:
    raise AssertionError("the cache should have been used")


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    load_or_build(tmp_path / "m", "1", build)

    found, made = load_or_build(tmp_path / "m", "1", refuse), build()

    assert [*found] == [*made]
    assert isinstance(found.ttnn_module_args, Conv2dArgs)
    assert found.ttnn_module_args == made.ttnn_module_args
    assert isinstance(found.layers, ParameterList)
    assert [ttnn.to_torch(layer.w)[0, 0].item() for layer in found.layers] == [*range(12)]
    assert isinstance(found[0], torch.nn.Parameter)
    assert not isinstance(found["0"], torch.nn.Parameter)
    assert [p.name for p in (tmp_path / "m").iterdir()] == [FILE]


def test_another_version_is_built_again(tmp_path: Path) -> None:
    load_or_build(tmp_path / "m", "1", build)

    load_or_build(tmp_path / "m", "2", lambda: ParameterDict({"x": torch.ones(1)}))

    assert [*load_or_build(tmp_path / "m", "2", refuse)] == ["x"]


class Evil:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["README", "weight.args", "weight.pt", "version.txt", "weight.tensorbin"])
def test_unknown_files_are_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    folder, ran = tmp_path / "m", tmp_path / "ran"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(Evil(ran)))

    with pytest.raises(MeshError, match=f"holds '{name}', which is not a file of ttmesh's cache"):
        load_or_build(folder, "1", build)

    assert not ran.exists()
    assert [p.name for p in folder.iterdir()] == [name]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"list": []}', "begins with a ParameterList"),
        ('{"dict": [["x", {"torch": "7", "parameter": null}]]}', "KeyError: '7'"),
        ('{"dict": [["x", {"tensor": "0", "described": {}}]]}', "has version None"),
        ('{"dict": [["x", {"pickle": "0"}]]}', "is not a node of a parameter tree"),
        ('{"dict": [["x", {"args": "Path", "values": {"dict": []}}]]}', "KeyError: 'Path'"),
        ('{"dict": [["x", {"args": "ModuleArgs", "values": {"dict": [["y", {"choice": ["os", "z"]}]]}}]]}', "KeyError"),
        ('{"dict": [[null, {"dict": []}]]}', "is not a key"),
        ('{"dict": 3}', "is not a node of a parameter tree"),
    ],
    ids=range(10),
)
def test_damaged_trees_are_refused(tmp_path: Path, tree: str, words: str) -> None:
    (tmp_path / "m").mkdir()
    save_file({"0": torch.ones(2)}, tmp_path / "m" / FILE, {"version": "1", "tree": tree})

    with pytest.raises(MeshError, match=f"is damaged .*{words}"):
        load_or_build(tmp_path / "m", "1", refuse)


def test_a_shortened_file_is_refused(tmp_path: Path) -> None:
    load_or_build(tmp_path / "m", "1", build)
    path = tmp_path / "m" / FILE
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(MeshError, match="cannot be read"):
        load_or_build(tmp_path / "m", "1", refuse)


def test_what_a_cache_cannot_hold_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    for value in ({1, 2}, ModuleArgs(config=object())):
        with pytest.raises(MeshError, match=r"parameters\.x.* is a (set|object), which a model cache cannot hold"):
            load_or_build(tmp_path / "m", "1", lambda value=value: ParameterDict({"x": value}))

    assert not (tmp_path / "m").exists()


def test_two_processes_may_fill_one_cache(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    failures: list[Exception] = []

    def fill() -> None:
        def build_together() -> ParameterDict:
            both.wait(60)
            return build()

        try:
            load_or_build(tmp_path / "m", "1", build_together)
        except Exception as problem:
            failures.append(problem)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert len(load_or_build(tmp_path / "m", "1", refuse).layers) == 12
    assert json.loads(read_tensors(tmp_path / "m" / FILE)[1]["tree"])
