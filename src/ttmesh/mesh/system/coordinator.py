"""Which chip coordinates a mesh: explicit physical ids, TT_COORDINATOR_DEVICE_ID, and the older mesh types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

from ttmesh.base.errors import CoordinatorError, ShapeError, one_of
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.link_notation import Links, pair
from ttmesh.chip.system import System
from ttmesh.mesh.system.system_mesh import get_line_coordinates, map_devices

DEVICE_PATH = re.compile(r"/dev/tenstorrent/(\d+)")


class MeshType(Enum):
    """How older programs describe the links of a mesh; checked when the mesh opens."""

    Ring = 0
    Line = 1


def put_coordinator_first(ids: Sequence[int], coordinator: int | None, available: Sequence[int]) -> tuple[int, ...]:
    """The ids with the coordinator first; if it is a new one, the last id is dropped."""
    if coordinator is None or len(ids) <= 1:  # a single device is opened by its own id
        return tuple(ids)
    if coordinator not in available:
        raise CoordinatorError(
            f"TT_COORDINATOR_DEVICE_ID={coordinator} names no visible device",
            expected=one_of(available),
            fix="Set it to one of these ids, or unset the variable.",
        )
    return (coordinator, *[i for i in ids if i != coordinator][: len(ids) - 1])


def parse_physical_ids(devices: Sequence[int | str], shape: MeshShape | None, system: System) -> tuple[int, ...]:
    """Explicit devices, as ids or /dev/tenstorrent/N paths, checked against the shape and the system."""
    if shape is None:
        raise ShapeError(
            "Mesh shape must be provided when physical device ids are supplied",
            expected="mesh_shape with physical_device_ids",
            fix=f"Pass mesh_shape=MeshShape(1, {len(devices)}).",
        )
    ids = tuple(parse_device_id(device) for device in devices)
    if len(ids) != shape.mesh_size():
        raise ShapeError(
            f"{len(ids)} physical device ids {list(ids)} were given for {shape!r}",
            expected=f"{shape.mesh_size()} of them, in row-major order",
            fix="Pass as many ids as the shape has devices.",
        )
    for i in ids:
        if i not in system.ids:
            raise ShapeError(
                f"Device index {i} out of range. There are {len(system.ids)} devices available in the system "
                f"{system.name}",
                expected=one_of(system.ids),
                fix="Pass ids of this system, or choose another one with TTMESH_SYSTEM.",
            )
    if len(set(ids)) != len(ids):
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise ShapeError(
            f"physical device ids {list(ids)} name {twice} more than once",
            expected="every id once",
            fix="Remove the repeated ids.",
        )
    return ids


def parse_device_id(device: int | str) -> int:
    """The id of a device given as a number, as digits or as /dev/tenstorrent/N."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    if isinstance(device, str):
        if device.isdecimal():
            return int(device)
        if path := DEVICE_PATH.fullmatch(device):
            return int(path[1])
    raise ShapeError(
        f"{device!r} is not a device",
        expected="an id such as 3, or a path such as /dev/tenstorrent/3",
        fix="Pass one of the two forms.",
    )


def locate_mesh(
    system: System,
    shape: MeshShape | None,
    *,
    offset: MeshCoordinate | None = None,
    devices: Sequence[int | str] = (),
    coordinator: int | None = None,
) -> tuple[MeshShape, tuple[int, ...]]:
    """The shape and the physical ids, row-major, of a mesh about to open; the first explicit device coordinates."""
    if not devices:
        mapped, ids = map_devices(system, shape, offset)
        return mapped, put_coordinator_first(ids, coordinator, system.ids)
    ids = parse_physical_ids(devices, shape, system)
    assert shape is not None, "physical_ids refuses a missing shape"
    if offset is not None:
        raise ShapeError(
            f"both offset {offset!r} and physical device ids {list(ids)} were given",
            expected="an offset or ids",
            fix="Leave out the offset: the ids already say where the mesh is.",
        )
    return shape, ids


def check_mesh_type(kind: MeshType, shape: MeshShape, ids: Sequence[int], links: Links) -> None:
    """Refuse a mesh type whose links do not exist: the hops of the line, and the one that closes a ring of three or more."""
    line = list(ids)
    if not shape.is_line_topology():
        line = [ids[coord.to_linear_index(shape)] for coord in get_line_coordinates(len(ids), shape)]
    hops = list(pairwise(line))
    if kind is MeshType.Ring and len(line) > 2:
        hops.append((line[-1], line[0]))
    missing = [hop for hop in hops if not links.get(pair(*hop))]
    if missing:
        raise ShapeError(
            f"MeshType.{kind.name} cannot be formed by devices {line}: no link between "
            + ", ".join(f"{a} and {b}" for a, b in missing),
            expected=f"a {kind.name.lower()} of linked devices",
            fix="Choose a shape or ids of linked neighbours, or leave mesh_type out.",
        )
