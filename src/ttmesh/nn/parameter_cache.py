"""Parameter trees on disk: a folder per tree, a file per tensor, a version beside them."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ttmesh.base.errors import MeshError
from ttmesh.nn.weights.parameter_tree import ModuleArgs, ParameterDict, ParameterList
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.serialization import dump_tensor, load_tensor

VERSION = "version.txt"
LIST_MARK = "is_list"


def load_or_build(folder: Path, version: str, build: Callable[[], ParameterDict]) -> ParameterDict:
    """The cached tree when its version fits, else a new one, which is cached."""
    stamp = folder / VERSION
    if stamp.is_file() and stamp.read_text() == version:
        return ParameterDict(_loaded(folder))
    parameters = build()
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))  # complete before it takes the old one's place
    _dumped(fresh, parameters)
    (fresh / VERSION).write_text(version)
    if folder.exists():
        shutil.rmtree(folder)
    fresh.rename(folder)
    return parameters


def _dumped(folder: Path, parameters: Any) -> None:
    folder.mkdir(exist_ok=True)
    pairs = enumerate(parameters) if isinstance(parameters, ParameterList) else parameters.items()
    if isinstance(parameters, ParameterList):
        (folder / LIST_MARK).touch()
    for key, value in pairs:
        if isinstance(value, (ParameterDict, ParameterList)):
            _dumped(folder / str(key), value)
        elif isinstance(value, Tensor):
            dump_tensor(folder / f"{key}.tensorbin", value)
        elif isinstance(value, torch.Tensor):
            torch.save(value, folder / f"{key}.pt")
        elif isinstance(value, ModuleArgs):
            (folder / f"{key}.args").write_bytes(pickle.dumps(value))
        else:
            raise MeshError(
                f"{key} is a {type(value).__name__}",
                expected="tensors, trees or module arguments",
                fix="Do not cache it.",
            )


def _loaded(folder: Path) -> Any:
    found: dict[Any, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.name in (VERSION, LIST_MARK):
            continue
        key: Any = int(path.stem) if path.stem.isdigit() else path.stem
        if path.is_dir():
            found[int(path.name) if path.name.isdigit() else path.name] = _loaded(path)
        elif path.suffix == ".tensorbin":
            found[key] = load_tensor(path)
        elif path.suffix == ".pt":
            found[key] = torch.load(path)
        else:
            found[key] = pickle.loads(path.read_bytes())
    if (folder / LIST_MARK).exists():
        return ParameterList([found[i] for i in sorted(found)])
    return ParameterDict(found)
