"""Parameter trees on disk: one file per tree, tensors and JSON, so that reading one cannot run foreign code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ttmesh.base import dtypes
from ttmesh.base.atomic_files import SUFFIX as UNFINISHED
from ttmesh.base.dtypes import PrintedEnum
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.nn.weights import parameter_tree
from ttmesh.nn.weights.parameter_tree import ModuleArgs, ParameterDict, ParameterList
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.safetensors_files import read_tensors, write_tensors
from ttmesh.tensor.transfer.tensor_descriptions import describe, parse_json, restore

FILE = "parameters.safetensors"
VERSION, TREE = "version", "tree"  # metadata keys in the file
ENUMS = {name: kind for name, kind in vars(dtypes).items() if isinstance(kind, type) and issubclass(kind, PrintedEnum)}
ARGS = {
    name: kind for name, kind in vars(parameter_tree).items() if isinstance(kind, type) and issubclass(kind, ModuleArgs)
}


class CacheError(MeshError):
    """A cached tree of parameters that cannot be read, or a folder with other files in it."""


def load_or_build(
    folder: Path, version: str, build: Callable[[], ParameterDict], *, device: MeshDevice | None = None
) -> ParameterDict:
    """The cached tree if its version matches, otherwise a new one, which is then cached.

    `device` replaces the device that cached module arguments refer to.
    """
    _refuse_foreign_files(folder)
    path = folder / FILE
    if path.exists():
        tensors, texts = read_tensors(path)
        if texts.get(VERSION) == version:
            return _read(path, tensors, texts.get(TREE, ""), device)
    parameters = build()
    _write(path, version, parameters)
    return parameters


def _refuse_foreign_files(folder: Path) -> None:
    """Raise if the folder holds files that ttmesh did not write, so that none of them is overwritten."""
    if not folder.is_dir():
        return
    foreign = sorted(p.name for p in folder.iterdir() if p.name != FILE and not p.name.endswith(UNFINISHED))
    if foreign:
        raise CacheError(
            f"the model cache {folder} holds {foreign[0]!r}, which is not a file of ttmesh's cache",
            expected=f"{FILE} alone, or a folder that does not exist yet",
            fix="Remove the folder (an earlier version or TT-NN may have written it), or choose another model_cache_path.",
        )


def _write(path: Path, version: str, parameters: ParameterDict) -> None:
    tensors: dict[str, torch.Tensor] = {}
    rank_blocks: list[Any] = []
    tree = _describe_tree(parameters, tensors, rank_blocks, "parameters")
    rank_block = next(iter(rank_blocks), None)
    try:
        if rank_block is None or rank_block.is_first:  # of ranks that share a mesh, the first one writes
            path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(path, tensors, {VERSION: version, TREE: json.dumps(tree)})
    except OSError as problem:
        raise CacheError(
            f"the model cache {path} cannot be written: {problem}",
            expected="a writable folder with enough space",
            fix="Choose another CONFIG.model_cache_path.",
        ) from None
    if rank_block is not None:
        rank_block.host.barrier()


def _describe_tree(value: Any, tensors: dict[str, torch.Tensor], rank_blocks: list[Any], where: str) -> dict[str, Any]:
    """A tree as JSON; its tensors are numbered in the order in which they are visited."""
    if isinstance(value, (ParameterDict, ParameterList)):
        pairs = enumerate(value) if isinstance(value, ParameterList) else value.items()
        inside = [
            [k, _describe_tree(v, tensors, rank_blocks, f"{where}.{k}")] for k, v in pairs if _check_key(k, where)
        ]
        return {"list" if isinstance(value, ParameterList) else "dict": inside}
    if isinstance(value, Tensor):
        host = value.cpu()
        lanes = host.all_lanes()
        if host.rank_block is not None:
            rank_blocks.append(host.rank_block)
            host = Tensor.on_host(host.kind, lanes, host.mesh_shape)
        name = str(len(tensors))
        tensors[name] = lanes
        return {"tensor": name, "described": describe(host)}
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {"torch": name, "parameter": value.requires_grad if isinstance(value, torch.nn.Parameter) else None}
    if isinstance(value, ModuleArgs) and type(value).__name__ in ARGS:
        return {"args": type(value).__name__, "values": _describe_value(dict(value), where)}
    raise _make_uncacheable_error(where, value)


def _describe_value(value: Any, where: str) -> Any:
    """A module argument as JSON: numbers, strings, enum values, tuples, lists, dicts, and a marker for the device."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, MeshDevice):
        return {"device": True}
    if isinstance(value, PrintedEnum) and ENUMS.get(type(value).__name__) is type(value):
        return {"choice": [type(value).__name__, value.name]}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [_describe_value(v, where) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[k, _describe_value(v, f"{where}.{k}")] for k, v in value.items() if _check_key(k, where)]}
    raise _make_uncacheable_error(where, value)


def _check_key(key: Any, where: str) -> bool:
    if type(key) not in (int, str):
        raise _make_uncacheable_error(f"{where}, key {key!r}", key)
    return True


def _make_uncacheable_error(where: str, value: Any) -> MeshError:
    return MeshError(
        f"{where} is a {type(value).__name__}, which a model cache cannot hold",
        expected="tensors, trees, and module arguments of numbers, strings, enum values, tuples and dicts",
        fix="Leave out model_name, or turn CONFIG.enable_model_cache off.",
    )


def _read(path: Path, tensors: dict[str, torch.Tensor], text: str, device: MeshDevice | None) -> ParameterDict:
    try:
        found = _build_tree(parse_json(text), tensors, device)
        if not isinstance(found, ParameterDict):
            raise TypeError(f"a tree that begins with a {type(found).__name__}")
    except (KeyError, ValueError, TypeError, RuntimeError) as problem:
        reason = problem.wrong if isinstance(problem, MeshError) else f"{type(problem).__name__}: {problem}"
        raise CacheError(
            f"the model cache {path} is damaged ({reason[:300]})",
            expected="a file that ttmesh wrote",
            fix="Delete the file; the next run writes a new one.",
        ) from None
    return found


def _build_tree(described: Any, tensors: dict[str, torch.Tensor], device: MeshDevice | None) -> Any:
    match described:
        case {"dict": list(pairs)}:
            return ParameterDict({_read_key(key): _build_tree(value, tensors, device) for key, value in pairs})
        case {"list": list(pairs)}:
            return ParameterList([_build_tree(value, tensors, device) for _, value in pairs])
        case {"tensor": str(name), "described": dict(described_tensor)}:
            return restore(described_tensor, tensors[name], None)
        case {"torch": str(name), "parameter": None}:
            return tensors[name]
        case {"torch": str(name), "parameter": bool(trained)}:
            return torch.nn.Parameter(tensors[name], requires_grad=trained)
        case {"args": str(name), "values": dict(values)}:
            return ARGS[name](_build_value(values, device))
    raise ValueError(f"{str(described)[:80]} is not a node of a parameter tree")


def _build_value(described: Any, device: MeshDevice | None) -> Any:
    match described:
        case None | bool() | int() | float() | str():
            return described
        case {"device": True}:
            return device
        case {"choice": [str(kind), str(name)]}:
            return ENUMS[kind][name]
        case {"tuple": list(values)}:
            return tuple(_build_value(value, device) for value in values)
        case {"list": list(values)}:
            return [_build_value(value, device) for value in values]
        case {"dict": list(pairs)}:
            return {_read_key(key): _build_value(value, device) for key, value in pairs}
    raise ValueError(f"{str(described)[:80]} is not a module argument")


def _read_key(key: Any) -> int | str:
    if type(key) not in (int, str):
        raise TypeError(f"{str(key)[:80]} is not a key (int or str)")
    found: int | str = key
    return found
