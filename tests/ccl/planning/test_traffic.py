"""Every collective, by every algorithm, along every axis and over grids, sends what its closed form says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pytest
from ccl_meshes import on, opened, random_lanes
from closed_forms import LINES, Loads, on_grid, on_line

from ttmesh.base.dtypes import DataType, bfloat16, float32
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.base.link_notation import HOST
from ttmesh.ccl.collectives.all_to_all import all_to_all
from ttmesh.ccl.collectives.broadcast import broadcast
from ttmesh.ccl.collectives.reduce_gather import all_gather, all_reduce, reduce_scatter
from ttmesh.ccl.planning.algorithm_choice import algorithm, names
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ccl.planning.group_plan import find_groups
from ttmesh.ccl.planning.transfer_plan import ChipGroup
from ttmesh.fabric.fabric_config import FabricConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

MESHES = ((1, 2), (1, 8), (2, 4), (8, 4))
LOCAL = (1, 64, 32)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
Call = Callable[[Tensor, int | None, str | None, str], object]
CALLS: dict[str, Call] = {
    "all_reduce": lambda t, axis, name, mode: all_reduce(t, cluster_axis=axis, algorithm=name, mode=mode),
    "reduce_scatter": lambda t, axis, name, mode: reduce_scatter(t, 1, cluster_axis=axis, algorithm=name, mode=mode),
    "all_gather": lambda t, axis, name, mode: all_gather(t, 0, cluster_axis=axis, algorithm=name, mode=mode),
    "broadcast": lambda t, axis, name, mode: broadcast(
        t, MeshCoordinate(0, 1), cluster_axis=axis, algorithm=name, mode=mode
    ),
    "all_to_all": lambda t, axis, name, mode: all_to_all(t, 0, 1, cluster_axis=axis, algorithm=name, mode=mode),
}


@pytest.fixture(params=MESHES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def mesh(request: pytest.FixtureRequest) -> Iterator[MeshDevice]:
    with opened(request.param, config=FabricConfig.FABRIC_2D) as device:
        yield device


def over_links(mesh: MeshDevice, lines: Sequence[Sequence[int]], loads: Loads) -> Loads:
    total: Loads = Counter()
    for chips in lines:
        for (source, target), size in loads.items():
            for hop in pairwise(mesh.traffic.routes.route(chips[source], chips[target])):
                total[hop] += size
    return total


def over_host(lines: Sequence[Sequence[int]], loads: Loads) -> Loads:
    total: Loads = Counter()
    for chips in lines:
        for (source, target), size in loads.items():
            total[chips[source], HOST] += size
            total[HOST, chips[target]] += size
    return total


def expected(name: str, collective: str, group: ChipGroup, size: int, root: int) -> Loads:
    if name == "mesh2d":
        return on_grid(collective, group.shape, group.closes, size, root)
    return on_line(name, collective, group.size, size, root)


def counted(mesh: MeshDevice, call: Call, tensor: Tensor, axis: int | None, name: str | None, mode: str) -> Loads:
    mesh.traffic.counters.reset()
    call(tensor, axis, name, mode)
    return Counter(mesh.traffic.counters.loads())


def test_every_algorithm_has_its_closed_form() -> None:
    assert {*LINES, "mesh2d"} == {*names()}


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda dtype: dtype.name)
def test_links_and_host_carry_the_closed_form(mesh: MeshDevice, dtype: DataType, collective: str) -> None:
    tensor = on(mesh, random_lanes(mesh.shape.to_tuple(), LOCAL, dtype), dtype)
    size, call = tensor.spec.packed_size_bytes, CALLS[collective]
    both = all(n > 1 for n in mesh.shape.to_tuple())
    for axis in [axis for axis in (0, 1) if mesh.shape[axis] > 1] + [None] * both:
        where = find_groups(Request("test", mesh, (tensor,), (), {}), axis)
        root = 0 if axis == 0 else 1  # of chip (0, 1)
        able = [
            name
            for name in names()
            if algorithm(name).unsupported_reason(where.group) is None
            and (axis is not None or not algorithm(name).LINE_ONLY)
        ]
        assert able, "some algorithm serves every group"
        for name in able:
            loads = expected(name, collective, where.group, size, root)
            assert counted(mesh, call, tensor, axis, name, "fabric") == over_links(mesh, where.chip_ids, loads), name
            assert counted(mesh, call, tensor, axis, name, "host") == over_host(where.chip_ids, loads), name


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_host_reads_and_writes_every_member_once(mesh: MeshDevice, collective: str) -> None:
    tensor = on(mesh, random_lanes(mesh.shape.to_tuple(), LOCAL, bfloat16), bfloat16)
    n, size, chips = mesh.shape[1], tensor.spec.packed_size_bytes, mesh.physical_ids
    written = {"reduce_scatter": size // n, "all_gather": size * n}.get(collective, size)
    senders = [chips[r * n + 1] for r in range(mesh.shape[0])] if collective == "broadcast" else chips

    sent = counted(mesh, CALLS[collective], tensor, 1, None, "host")

    receivers = [chip for chip in chips if collective != "broadcast" or chip not in senders]
    assert sent == {**{(chip, HOST): size for chip in senders}, **{(HOST, chip): written for chip in receivers}}
