"""Rank bindings that follow from a mesh graph descriptor alone: a rank per host of every mesh (tt-run -m, -M)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from ttmesh.launch.bindings import Bindings, LaunchError, RankBinding, merged, read_paths, resolve

MAPPING_KEY = "subcontext_id_to_mesh_graph_descriptor"
Message = dict[str, list[Any]]  # a textproto message: every field as the list of its values

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|[{}\[\]:,;<>]|#[^\n]*')


@dataclass(frozen=True)
class Mesh:
    """One mesh of the graph: its id, the chips along each axis, and the hosts that divide them."""

    mesh_id: int
    devices: tuple[int, ...]
    hosts: tuple[int, ...]


def bindings_of(path: Path, *, check: bool = True) -> Bindings:
    """The ranks of a mesh graph descriptor: meshes by id, the hosts of each in row-major order.

    tt-run asks the hardware which host has which chips; here every rank gets the chips of its block.
    """
    resolved = resolve(path, "Mesh graph descriptor", must_exist=check)
    ranks: list[RankBinding] = []
    for mesh in meshes_in(resolved.read_text(encoding="utf-8"), str(path)):
        system = {"TTMESH_SYSTEM": "x".join(map(str, mesh.devices))} if len(mesh.devices) == 2 else {}
        for host, _ in enumerate(product(*map(range, mesh.hosts))):
            ranks.append(RankBinding(len(ranks), mesh.mesh_id, host, mesh_graph_desc_path=resolved, defaults=system))
    return Bindings(tuple(ranks))


def bindings_of_mapping(path: Path) -> Bindings:
    """Several descriptors as one job: ranks are numbered on, each descriptor is a sub-context."""
    resolved = resolve(path, "Mesh graph descriptor mapping")
    return merged([bindings_of(part) for part in read_paths(resolved, MAPPING_KEY)])


def meshes_in(text: str, name: str) -> list[Mesh]:
    """The meshes that a descriptor instantiates, by their ids."""
    read = _message(iter([t for t in TOKEN.findall(text) if t[0] not in "#,;"]), name, closes="")
    described = {_text(d, "name"): d for d in read.get("mesh_descriptors", [])}
    graphs = {_text(d, "name"): d for d in read.get("graph_descriptors", [])}
    if not read.get("top_level_instance"):
        raise _wrong(name, "has no top_level_instance")
    found = list(_instances(read["top_level_instance"][0], described, graphs, name))
    ids = [mesh.mesh_id for mesh in found]
    if len(set(ids)) != len(ids):  # graphs inside graphs count their meshes from 0 each
        return [Mesh(number, mesh.devices, mesh.hosts) for number, mesh in enumerate(found)]
    return sorted(found, key=lambda mesh: mesh.mesh_id)


def _instances(
    instance: Message, described: dict[str, Message], graphs: dict[str, Message], name: str
) -> Iterator[Mesh]:
    for one in instance.get("mesh", []):
        wanted = _text(one, "mesh_descriptor")
        if wanted not in described:
            raise _wrong(name, f"instantiates mesh {wanted!r}, which it does not describe")
        devices, hosts = (_dims(described[wanted], key) for key in ("device_topology", "host_topology"))
        if not devices:
            raise _wrong(name, f"gives mesh {wanted!r} no device_topology")
        hosts = hosts or (1,) * len(devices)
        if len(hosts) != len(devices) or any(n % cuts for n, cuts in zip(devices, hosts, strict=True)):
            raise _wrong(name, f"divides {list(devices)} devices of mesh {wanted!r} over {list(hosts)} hosts")
        yield Mesh(int(one.get("mesh_id", [0])[0]), devices, hosts)
    for one in instance.get("graph", []):
        wanted = _text(one, "graph_descriptor")
        if wanted not in graphs:
            raise _wrong(name, f"instantiates graph {wanted!r}, which it does not describe")
        for inner in graphs[wanted].get("instances", []):
            yield from _instances(inner, described, graphs, name)
    if instance.get("switch"):
        raise _wrong(name, "has switches, which are not emulated")


def _message(tokens: Iterator[str], name: str, *, closes: str) -> Message:
    """The fields up to the closing brace: `key: value`, `key { … }`, `key: [ …, … ]`."""
    fields: Message = {}
    for key in tokens:
        if key == closes:
            return fields
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        if value in ("{", "<"):
            fields.setdefault(key, []).append(_message(tokens, name, closes="}" if value == "{" else ">"))
        elif value == "[":
            for item in tokens:
                if item == "]":
                    break
                inner = _message(tokens, name, closes="}") if item == "{" else item.strip('"')
                fields.setdefault(key, []).append(inner)
        elif value:
            fields.setdefault(key, []).append(value.strip('"'))
    if closes:
        raise _wrong(name, f"ends before a {closes!r}")
    return fields


def _text(message: Message, key: str) -> str:
    return str(message.get(key, [""])[0])


def _dims(message: Message, key: str) -> tuple[int, ...]:
    dims = tuple(int(n) for part in message.get(key, []) for n in part.get("dims", []))
    return dims if prod(dims) > 0 else ()


def _wrong(name: str, what: str) -> LaunchError:
    return LaunchError(f"{name} {what}", expected="a mesh graph descriptor (textproto)", fix="Correct the file.")
