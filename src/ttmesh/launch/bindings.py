"""Which mesh and which place in it each rank gets: rank-binding files as tt-run reads them (tt-metal e4f9f0b)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from ttmesh.base.errors import MeshError, near

MAPPING_KEY = "subcontext_id_to_rank_bindings"
FILE_KEYS = ("rank_bindings", "global_env", "mesh_graph_desc_path")
RANK_KEYS = ("rank", "mesh_id", "mesh_host_rank", "env_overrides", "mesh_graph_desc_path")
MOCK_KEY = "rank_to_cluster_mock_cluster_desc"


class LaunchError(MeshError):
    """The launch was described wrongly; nothing has been started."""


@dataclass(frozen=True)
class RankBinding:
    """One rank: its mesh, its place in it, and what only it finds in its environment."""

    rank: int
    mesh_id: int = 0
    mesh_host_rank: int | None = None
    env_overrides: Mapping[str, str] = field(default_factory=dict)
    mesh_graph_desc_path: Path | None = None
    mock_cluster_desc_path: Path | None = None
    subcontext_id: int | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)  # where nobody says otherwise


@dataclass(frozen=True)
class Bindings:
    """Every rank, in order, and what all of them find in their environment."""

    ranks: tuple[RankBinding, ...]
    global_env: Mapping[str, str] = field(default_factory=dict)


def one_mesh(ranks: int) -> Bindings:
    """So many ranks that present one mesh together."""
    return Bindings(tuple(RankBinding(rank, mesh_host_rank=rank) for rank in range(ranks)))


def mesh_each(ranks: int) -> Bindings:
    """So many ranks with a mesh of their own each."""
    return Bindings(tuple(RankBinding(rank, mesh_id=rank, mesh_host_rank=0) for rank in range(ranks)))


def read_bindings(path: Path, *, check_mesh_graph: bool = True) -> Bindings:
    """A rank-binding file: `rank_bindings`, `global_env`, `mesh_graph_desc_path`."""
    data = _mapping(_load(resolve(path, "Configuration file")), "the file")
    _mention_unknown(data, FILE_KEYS, str(path))
    if "rank_bindings" not in data or not data["rank_bindings"]:
        raise _wrong("rank_bindings: Field required", "a list with one entry per rank")
    if "mesh_graph_desc_path" not in data:
        raise _wrong("mesh_graph_desc_path: Field required", "the path of the mesh graph descriptor")
    entries = data["rank_bindings"]
    if not isinstance(entries, list):
        raise _wrong(f"rank_bindings: Input should be a valid list, got {entries!r}", "one entry per rank")
    mesh_graph = resolve(Path(str(data["mesh_graph_desc_path"])), "Mesh graph descriptor", must_exist=check_mesh_graph)
    ranks = [_binding(entry, index, mesh_graph) for index, entry in enumerate(entries)]
    numbers = sorted(binding.rank for binding in ranks)
    if len(set(numbers)) != len(numbers):
        raise _wrong("Duplicate ranks found in bindings", "every rank once")
    if numbers != list(range(len(numbers))):
        raise _wrong(f"Ranks must be contiguous from 0. Got: {numbers}", f"0 to {len(numbers) - 1}")
    ordered = tuple(sorted(ranks, key=lambda binding: binding.rank))
    return Bindings(ordered, _texts(data.get("global_env"), "global_env"))


def read_mapping(path: Path, *, check_mesh_graph: bool = True) -> Bindings:
    """Several rank-binding files as one job: ranks are numbered on, each file is a sub-context."""
    resolved = resolve(path, "Rank bindings mapping file")
    files = read_paths(resolved, MAPPING_KEY)
    return merged([read_bindings(file, check_mesh_graph=check_mesh_graph) for file in files])


def read_paths(resolved: Path, key: str) -> list[Path]:
    """The files that a mapping names by sub-context id: beside it, or where files are looked for."""
    data = _mapping(_load(resolved), "the file")
    if key not in data:
        raise _wrong(f"Rank bindings mapping must contain '{key}'", "sub-context id: path")
    if not data[key]:
        raise _wrong(f"'{key}' must not be empty", "sub-context id: path")
    overlays = _mapping(data[key], key)
    keys = list(overlays)
    if keys != list(range(len(keys))):
        raise _wrong(
            f"'{key}' keys must be dense and monotonic starting at 0 (expected {list(range(len(keys)))}, got {keys})",
            "0, 1, 2, …",
        )
    beside = [resolved.parent / str(overlay) for overlay in overlays.values()]
    return [
        there if there.is_file() else Path(str(overlay))
        for there, overlay in zip(beside, overlays.values(), strict=True)
    ]


def merged(parts: list[Bindings]) -> Bindings:
    """Several sets of bindings as one job: ranks are numbered on, each set is a sub-context."""
    ranks: list[RankBinding] = []
    env: dict[str, str] = {}
    for number, part in enumerate(parts):
        for name, value in part.global_env.items():
            if env.setdefault(name, value) != value:
                raise _wrong(f"global_env conflict on key {name!r} between sub-contexts", "one value for all")
        offset = len(ranks)
        ranks += [replace(b, rank=offset + b.rank, subcontext_id=number) for b in part.ranks]
    env["TT_RUN_SUBCONTEXT_SIZES"] = ",".join(str(len(part.ranks)) for part in parts)
    return Bindings(tuple(ranks), env)


def with_mock_clusters(bindings: Bindings, path: Path) -> Bindings:
    """The same ranks, each told its mock cluster descriptor."""
    resolved = resolve(path, "Mock cluster rank binding configuration")
    data = _load(resolved)
    if isinstance(data, dict) and MOCK_KEY in data:
        named = _mapping(data[MOCK_KEY], MOCK_KEY)
        paths = {
            _number(r, MOCK_KEY): resolve(Path(str(p)), f"Mock cluster descriptor for rank {r}")
            for r, p in named.items()
        }
    else:
        paths = {0: resolved}
    if sorted(paths) != [b.rank for b in bindings.ranks]:
        raise _wrong(
            f"Mock cluster mapping ranks {sorted(paths)} do not match merged rank bindings "
            f"{[b.rank for b in bindings.ranks]}",
            "a descriptor for every rank",
        )
    return replace(bindings, ranks=tuple(replace(b, mock_cluster_desc_path=paths[b.rank]) for b in bindings.ranks))


def resolve(path: Path, description: str, *, must_exist: bool = True) -> Path:
    """An absolute path; a relative one is looked for in TT_METAL_HOME, then where the launcher was started."""
    expanded = path.expanduser()
    home = os.environ.get("TT_METAL_HOME")
    places = [Path.cwd()] if not home else [Path(home).expanduser(), Path.cwd()]
    for candidate in [expanded] if expanded.is_absolute() else [place / expanded for place in places]:
        if candidate.is_file():
            return candidate.resolve()
    if must_exist:
        searched = "" if expanded.is_absolute() else f" (searched in: {[str(p) for p in places]})"
        raise _wrong(f"{description} not found: {path}{searched}", "a file that exists")
    return (Path.cwd() / expanded).resolve()


def _binding(entry: object, index: int, mesh_graph: Path) -> RankBinding:
    where = f"rank_bindings.{index}"
    data = _mapping(entry, where)
    _mention_unknown(data, RANK_KEYS, where)
    for name in ("rank", "mesh_id"):
        if data.get(name) is None:
            raise _wrong(f"{where}.{name}: Field required", "rank and mesh_id in every entry")
    host_rank = data.get("mesh_host_rank")
    own_graph = data.get("mesh_graph_desc_path")
    return RankBinding(
        rank=_number(data["rank"], f"{where}.rank"),
        mesh_id=_number(data["mesh_id"], f"{where}.mesh_id"),
        mesh_host_rank=None if host_rank is None else _number(host_rank, f"{where}.mesh_host_rank"),
        env_overrides=_texts(data.get("env_overrides"), f"{where}.env_overrides"),
        mesh_graph_desc_path=resolve(Path(str(own_graph)), "Per-rank mesh graph descriptor")
        if own_graph
        else mesh_graph,
    )


def _mention_unknown(data: Mapping[object, object], known: tuple[str, ...], where: str) -> None:
    """tt-run passes over names it does not know; so does this, but a misspelt one is worth a line."""
    for name in data:
        if name not in known:
            print(f"[ttmesh launch] {where}: {name!r} is not used. {near(str(name), known)}", file=sys.stderr)


def _load(path: Path) -> object:
    read: Callable[[str], object] = yaml.safe_load
    try:
        return read(path.read_text())
    except yaml.YAMLError as cause:
        raise _wrong(f"{path} is not YAML: {' '.join(str(cause).split())}", "a YAML file") from cause


def _mapping(value: object, where: str) -> dict[object, object]:
    if not isinstance(value, dict):
        raise _wrong(f"{where}: Input should be a valid dictionary, got {value!r}", "names and values")
    return value


def _number(value: object, where: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise _wrong(f"{where}: Input should be a valid integer, got {value!r}", "a number") from None
    if number < 0:
        raise _wrong(f"{where}: Input should be greater than or equal to 0, got {number}", "0 or more")
    return number


def _texts(value: object, where: str) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, text in _mapping({} if value is None else value, where).items():
        if not isinstance(text, str):
            raise _wrong(f"{where}.{name}: Input should be a valid string, got {text!r}", "text; quote numbers")
        texts[str(name)] = text
    return texts


def _wrong(text: str, expected: str) -> LaunchError:
    return LaunchError(f"Configuration error: {text}", expected=expected, fix="Correct the rank-binding file.")
