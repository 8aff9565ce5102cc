"""Which mesh, and which block of it, each rank gets: rank-binding files as tt-run reads them (tt-metal e4f9f0b)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from ttmesh.base.documents import DocumentError, Mismatched, convert, read_yaml, shorten
from ttmesh.base.errors import MeshError, suggest_names

MAPPING_KEY = "subcontext_id_to_rank_bindings"
MOCK_KEY = "rank_to_cluster_mock_cluster_desc"
MAX_RANKS = 4096  # of one launch; more would fill the process table before the first one ran
# tt-run's text for each type that msgspec expects.
PHRASES = {
    "`int`": "a valid integer",
    "`str`": "a valid string",
    "`array`": "a valid list",
    "`object`": "a valid dictionary",
    "`int` >= 0": "greater than or equal to 0",
}

Place = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


class LaunchError(MeshError):
    """The description of a launch is invalid; nothing has been started."""


@dataclass(frozen=True)
class RankBinding:
    """One rank: its mesh, its number among that mesh's ranks, and its own environment variables."""

    rank: int
    mesh_id: int = 0
    mesh_host_rank: int | None = None
    env_overrides: Mapping[str, str] = field(default_factory=dict)
    mesh_graph_desc_path: Path | None = None
    mock_cluster_desc_path: Path | None = None
    subcontext_id: int | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)  # lowest precedence


@dataclass(frozen=True)
class Bindings:
    """Every rank in order, and the environment variables of all of them."""

    ranks: tuple[RankBinding, ...]
    global_env: Mapping[str, str] = field(default_factory=dict)


def one_mesh(ranks: int) -> Bindings:
    """Bindings of ranks that share one mesh."""
    return Bindings(tuple(RankBinding(rank, mesh_host_rank=rank) for rank in range(ranks)))


def mesh_each(ranks: int) -> Bindings:
    """Bindings of ranks with one mesh each."""
    return Bindings(tuple(RankBinding(rank, mesh_id=rank, mesh_host_rank=0) for rank in range(ranks)))


class RankEntry(msgspec.Struct, frozen=True):
    """One entry of `rank_bindings`, as in the file."""

    rank: Place
    mesh_id: Place
    mesh_host_rank: Place | None = None
    env_overrides: dict[str, str] | None = None
    mesh_graph_desc_path: str | None = None


class BindingFile(msgspec.Struct, frozen=True):
    """The content of a rank-binding file."""

    rank_bindings: list[RankEntry]
    mesh_graph_desc_path: str
    global_env: dict[str, str] | None = None


def read_bindings(path: Path, *, check_mesh_graph: bool = True) -> Bindings:
    """A rank-binding file: `rank_bindings`, `global_env`, `mesh_graph_desc_path`."""
    document = _load(resolve(path, "Configuration file"))
    file = _fit(document, BindingFile)
    assert isinstance(document, dict), "it fits a struct"
    _mention_unknown(document, BindingFile, str(path))
    for index, entry in enumerate(document["rank_bindings"]):
        _mention_unknown(entry, RankEntry, f"rank_bindings.{index}")
    if not file.rank_bindings:
        raise _make_error("rank_bindings: Field required", "a list with one entry per rank")
    mesh_graph = resolve(Path(file.mesh_graph_desc_path), "Mesh graph descriptor", must_exist=check_mesh_graph)
    ranks = [_binding(entry, mesh_graph) for entry in file.rank_bindings]
    check_count(len(ranks))
    numbers = sorted(binding.rank for binding in ranks)
    if len(set(numbers)) != len(numbers):
        raise _make_error("Duplicate ranks found in bindings", "every rank once")
    if numbers != list(range(len(numbers))):
        raise _make_error(f"Ranks must be contiguous from 0. Got: {shorten(numbers)}", f"0 to {len(numbers) - 1}")
    ordered = tuple(sorted(ranks, key=lambda binding: binding.rank))
    return Bindings(ordered, file.global_env or {})


def check_count(ranks: int) -> None:
    """Raise if one launch cannot start this many ranks."""
    if not 1 <= ranks <= MAX_RANKS:
        raise LaunchError(
            f"cannot launch {shorten(ranks)} ranks",
            expected=f"1 to {MAX_RANKS}",
            fix="Pass a number in this range.",
        )


def read_mapping(path: Path, *, check_mesh_graph: bool = True) -> Bindings:
    """Several rank-binding files as one job: ranks are numbered consecutively, each file is a sub-context."""
    resolved = resolve(path, "Rank bindings mapping file")
    files = read_paths(resolved, MAPPING_KEY)
    return merge_bindings([read_bindings(file, check_mesh_graph=check_mesh_graph) for file in files])


def read_paths(resolved: Path, key: str) -> list[Path]:
    """The files that a mapping names by sub-context id: relative to its folder, or on the search path."""
    data = _load(resolved)
    if not isinstance(data, dict):
        raise _make_error(f"the file: Input should be a valid dictionary, got {shorten(data)}", "names and values")
    if key not in data:
        raise _make_error(f"Rank bindings mapping must contain '{key}'", "sub-context id: path")
    if not data[key]:
        raise _make_error(f"'{key}' must not be empty", "sub-context id: path")
    overlays = _fit(data[key], dict[int, str])
    keys = list(overlays)
    if keys != list(range(len(keys))):
        expected = list(range(len(keys)))
        raise _make_error(
            f"'{key}' keys must be dense and monotonic starting at 0 "
            f"(expected {shorten(expected)}, got {shorten(keys)})",
            "0, 1, 2, …",
        )
    beside = [resolved.parent / overlay for overlay in overlays.values()]
    return [
        there if there.is_file() else Path(overlay) for there, overlay in zip(beside, overlays.values(), strict=True)
    ]


def merge_bindings(several: list[Bindings]) -> Bindings:
    """Several sets of bindings as one job: ranks are numbered consecutively, each set is a sub-context."""
    ranks: list[RankBinding] = []
    env: dict[str, str] = {}
    for number, bindings in enumerate(several):
        for name, value in bindings.global_env.items():
            if env.setdefault(name, value) != value:
                raise _make_error(f"global_env conflict on key {name!r} between sub-contexts", "one value for all")
        offset = len(ranks)
        ranks += [replace(b, rank=offset + b.rank, subcontext_id=number) for b in bindings.ranks]
    env["TT_RUN_SUBCONTEXT_SIZES"] = ",".join(str(len(bindings.ranks)) for bindings in several)
    return Bindings(tuple(ranks), env)


def with_mock_clusters(bindings: Bindings, path: Path) -> Bindings:
    """The same ranks, each with the path of its mock cluster descriptor."""
    resolved = resolve(path, "Mock cluster rank binding configuration")
    data = _load(resolved)
    if isinstance(data, dict) and MOCK_KEY in data:
        named = _fit(data[MOCK_KEY], dict[Place, str])
        paths = {rank: resolve(Path(p), f"Mock cluster descriptor for rank {rank}") for rank, p in named.items()}
    else:
        paths = {0: resolved}
    if sorted(paths) != [b.rank for b in bindings.ranks]:
        raise _make_error(
            f"Mock cluster mapping ranks {shorten(sorted(paths))} do not match merged rank bindings "
            f"{shorten([b.rank for b in bindings.ranks])}",
            "a descriptor for every rank",
        )
    return replace(bindings, ranks=tuple(replace(b, mock_cluster_desc_path=paths[b.rank]) for b in bindings.ranks))


def resolve(path: Path, description: str, *, must_exist: bool = True) -> Path:
    """An absolute path; a relative one is looked for in TT_METAL_HOME, then where the launcher was started."""
    expanded = Path(os.path.expanduser(path))  # pathlib's raises for a user that does not exist
    home = os.environ.get("TT_METAL_HOME")
    places = [Path.cwd()] if not home else [Path(os.path.expanduser(home)), Path.cwd()]
    for candidate in [expanded] if expanded.is_absolute() else [place / expanded for place in places]:
        if candidate.is_file():
            return candidate.resolve()
    if must_exist:
        searched = "" if expanded.is_absolute() else f" (searched in: {[str(p) for p in places]})"
        raise _make_error(f"{description} not found: {path}{searched}", "a file that exists")
    return (Path.cwd() / expanded).resolve()


def _binding(entry: RankEntry, mesh_graph: Path) -> RankBinding:
    own = entry.mesh_graph_desc_path
    return RankBinding(
        rank=entry.rank,
        mesh_id=entry.mesh_id,
        mesh_host_rank=entry.mesh_host_rank,
        env_overrides=entry.env_overrides or {},
        mesh_graph_desc_path=resolve(Path(own), "Per-rank mesh graph descriptor") if own else mesh_graph,
    )


def _mention_unknown(data: Mapping[object, object], known: type[msgspec.Struct], where: str) -> None:
    """Ignore unknown names, as tt-run does, but print a line, as they may be misspelt."""
    names = known.__struct_fields__
    for name in data:
        if name not in names:
            hint = suggest_names(str(name)[:100], names)
            print(f"[ttmesh launch] {where}: {shorten(name)} is not used. {hint}", file=sys.stderr)


def _load(path: Path) -> object:
    try:
        return read_yaml(path)
    except DocumentError as error:
        raise _make_error(f"{path} {error}", "a YAML file") from None


def _fit(document: object, wanted: Callable[..., T]) -> T:
    """The document as this type, or tt-run's error text; numbers may be quoted, as there."""
    try:
        return convert(document, wanted, strict=False)
    except Mismatched as error:
        found = error.mismatch
        path = re.sub(r"\[(\d+)\]", r".\1", found.path) or "the file"
        if found.missing:
            raise _make_error(
                f"{path}.{found.missing}".removeprefix("the file.") + ": Field required", "a value"
            ) from None
        kind = found.expected.partition(",")[0]
        phrase = PHRASES.get(kind.removesuffix(" | null"), kind)
        raise _make_error(f"{path}: Input should be {phrase}, got {shorten(found.value)}", phrase) from None


def _make_error(text: str, expected: str) -> LaunchError:
    return LaunchError(f"Configuration error: {text}", expected=expected, fix="Correct the rank-binding file.")
