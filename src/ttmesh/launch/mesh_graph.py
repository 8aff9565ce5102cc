"""Rank bindings from a mesh graph descriptor: one rank per host of every mesh (tt-run -m, -M)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from ttmesh.base.documents import DocumentError, Mismatched, convert, read_text, shorten
from ttmesh.launch.bindings import (
    MAX_RANKS,
    Bindings,
    LaunchError,
    RankBinding,
    check_count,
    merge_bindings,
    read_paths,
    resolve,
)

MAPPING_KEY = "subcontext_id_to_mesh_graph_descriptor"
Message = dict[str, list[Any]]  # a textproto message: every field as the list of its values

MAX_DEPTH = 100  # nesting depth of messages, as in protobuf
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\w.+-]+|[{}\[\]:,;<>]|#[^\n]*')


class GraphTopology(msgspec.Struct, frozen=True):
    """A grid of devices or hosts."""

    dims: tuple[int, ...] = ()


class MeshDescriptor(msgspec.Struct, frozen=True):
    """A kind of mesh; here and below every field of a message is the list of its values."""

    name: tuple[str, ...] = ("",)
    device_topology: tuple[GraphTopology, ...] = ()
    host_topology: tuple[GraphTopology, ...] = ()


class MeshInstance(msgspec.Struct, frozen=True):
    """An instance of a mesh descriptor."""

    mesh_descriptor: tuple[str, ...] = ("",)
    mesh_id: tuple[int, ...] = (0,)


class GraphInstance(msgspec.Struct, frozen=True):
    """An instance of a graph descriptor."""

    graph_descriptor: tuple[str, ...] = ("",)


class Instance(msgspec.Struct, frozen=True):
    """An instance inside a graph or at the top level: a mesh or a graph."""

    mesh: tuple[MeshInstance, ...] = ()
    graph: tuple[GraphInstance, ...] = ()
    switch: tuple[Any, ...] = ()


class GraphDescriptor(msgspec.Struct, frozen=True):
    """A kind of graph."""

    name: tuple[str, ...] = ("",)
    instances: tuple[Instance, ...] = ()


class Descriptor(msgspec.Struct, frozen=True):
    """The fields of a mesh graph descriptor that ttmesh reads."""

    mesh_descriptors: tuple[MeshDescriptor, ...] = ()
    graph_descriptors: tuple[GraphDescriptor, ...] = ()
    top_level_instance: tuple[Instance, ...] = ()


@dataclass(frozen=True)
class GraphMesh:
    """One mesh of the graph: its id, the chips along each axis, and the hosts that divide them."""

    mesh_id: int
    devices: tuple[int, ...]
    hosts: tuple[int, ...]


def make_bindings(path: Path, *, check: bool = True) -> Bindings:
    """The ranks of a mesh graph descriptor: meshes by id, the hosts of each in row-major order.

    tt-run finds out from the hardware which host has which chips; here every rank gets the chips of its block.
    """
    resolved = resolve(path, "Mesh graph descriptor", must_exist=check)
    try:
        meshes = list_meshes(read_text(resolved), str(path))
    except DocumentError as error:
        raise _make_error(str(path), str(error)) from None
    check_count(sum(prod(mesh.hosts) for mesh in meshes))
    ranks: list[RankBinding] = []
    for mesh in meshes:
        system = {"TTMESH_SYSTEM": "x".join(map(str, mesh.devices))} if len(mesh.devices) == 2 else {}
        for host in range(prod(mesh.hosts)):
            ranks.append(RankBinding(len(ranks), mesh.mesh_id, host, mesh_graph_desc_path=resolved, defaults=system))
    return Bindings(tuple(ranks))


def make_mapped_bindings(path: Path) -> Bindings:
    """Several descriptors as one job: ranks are numbered consecutively, each descriptor is a sub-context."""
    resolved = resolve(path, "Mesh graph descriptor mapping")
    return merge_bindings([make_bindings(path) for path in read_paths(resolved, MAPPING_KEY)])


def list_meshes(text: str, name: str) -> list[GraphMesh]:
    """The meshes that a descriptor instantiates, by their ids."""
    fields = _message(iter([t for t in TOKEN.findall(text) if t[0] not in "#,;"]), name, closes="")
    try:
        read = convert(fields, Descriptor, strict=False)
    except Mismatched as error:
        found = error.mismatch
        raise _make_error(name, f"has {found.path} {shorten(found.value)}, expected {found.expected}") from None
    if not read.top_level_instance:
        raise _make_error(name, "has no top_level_instance")
    found_meshes = list(islice(_instances(read.top_level_instance[0], read, name, ()), MAX_RANKS + 1))
    if len(found_meshes) > MAX_RANKS:
        raise _make_error(name, f"instantiates more than {MAX_RANKS} meshes")
    ids = [mesh.mesh_id for mesh in found_meshes]
    if len(set(ids)) != len(ids):  # graphs inside graphs count their meshes from 0 each
        return [GraphMesh(number, mesh.devices, mesh.hosts) for number, mesh in enumerate(found_meshes)]
    return sorted(found_meshes, key=lambda mesh: mesh.mesh_id)


def _instances(instance: Instance, read: Descriptor, name: str, inside: tuple[str, ...]) -> Iterator[GraphMesh]:
    described = {d.name[0]: d for d in read.mesh_descriptors if d.name}
    graphs = {d.name[0]: d for d in read.graph_descriptors if d.name}
    for one in instance.mesh:
        wanted = _first(one.mesh_descriptor)
        if wanted not in described:
            raise _make_error(name, f"instantiates mesh {wanted!r}, which it does not describe")
        devices, hosts = (
            _dims(topology) for topology in (described[wanted].device_topology, described[wanted].host_topology)
        )
        if not devices:
            raise _make_error(name, f"gives mesh {wanted!r} no device_topology")
        hosts = hosts or (1,) * len(devices)
        if len(hosts) != len(devices) or any(n % count for n, count in zip(devices, hosts, strict=True)):
            raise _make_error(name, f"divides {list(devices)} devices of mesh {wanted!r} over {list(hosts)} hosts")
        yield GraphMesh(one.mesh_id[0] if one.mesh_id else 0, devices, hosts)
    for graph in instance.graph:
        wanted = _first(graph.graph_descriptor)
        if wanted not in graphs:
            raise _make_error(name, f"instantiates graph {wanted!r}, which it does not describe")
        if wanted in inside:
            raise _make_error(name, f"instantiates graph {wanted!r} inside itself")
        if len(inside) >= MAX_DEPTH:
            raise _make_error(name, f"has graphs inside graphs more than {MAX_DEPTH} deep")
        for inner in graphs[wanted].instances:
            yield from _instances(inner, read, name, (*inside, wanted))
    if instance.switch:
        raise _make_error(name, "has switches, which are not emulated")


def _message(tokens: Iterator[str], name: str, *, closes: str, depth: int = 0) -> Message:
    """The fields up to the closing brace: `key: value`, `key { … }`, `key: [ …, … ]`."""
    if depth > MAX_DEPTH:
        raise _make_error(name, f"has messages inside messages more than {MAX_DEPTH} deep")
    fields: Message = {}
    for key in tokens:
        if key == closes:
            return fields
        value = next(tokens, "")
        if value == ":":
            value = next(tokens, "")
        if value in ("{", "<"):
            inner = _message(tokens, name, closes="}" if value == "{" else ">", depth=depth + 1)
            fields.setdefault(key, []).append(inner)
        elif value == "[":
            for item in tokens:
                if item == "]":
                    break
                nested = item == "{"
                entry = _message(tokens, name, closes="}", depth=depth + 1) if nested else item.strip('"')
                fields.setdefault(key, []).append(entry)
        elif value:
            fields.setdefault(key, []).append(value.strip('"'))
    if closes:
        raise _make_error(name, f"ends before a {closes!r}")
    return fields


def _first(texts: tuple[str, ...]) -> str:
    return texts[0] if texts else ""


def _dims(topologies: tuple[GraphTopology, ...]) -> tuple[int, ...]:
    dims = tuple(n for topology in topologies for n in topology.dims)
    return dims if dims and min(dims) > 0 else ()


def _make_error(name: str, what: str) -> LaunchError:
    return LaunchError(f"{name} {what}", expected="a mesh graph descriptor (textproto)", fix="Correct the file.")
