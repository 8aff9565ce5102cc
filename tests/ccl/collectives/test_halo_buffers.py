"""A halo buffer holds the neighbours' edges in order, and around a shard it makes what neighbor_pad_async makes."""

from __future__ import annotations

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes, semaphore

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import float32
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

LOCAL = (1, 2, 4, 6, 8)
ROWS, COLUMNS = 1, 2
STICKS = 2 * (2 * ROWS * 6 + 2 * COLUMNS * (4 + 2 * ROWS))


def exchanged(
    mesh: MeshDevice, tensor: Tensor, *, mode: str = "zeros", sticks: int = STICKS, inside: int = 0
) -> Tensor:
    buffer = on(mesh, torch.zeros(1, 1, sticks, 8), float32)
    return ttnn.experimental.neighbor_pad_halo(
        tensor, buffer, ROWS, COLUMNS, 0, 1, ttnn.Topology.Linear, *(semaphore(mesh) for _ in range(3)), 3,
        COLUMNS, COLUMNS, 1, 1, padding_mode=mode, input_pad_h=inside, input_pad_w=inside,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_scattered_edges_are_the_padded_part(mode: str) -> None:
    with opened((2, 4)) as mesh:
        tensor = on(mesh, random_lanes((2, 4), LOCAL, float32), float32)
        padded = ttnn.experimental.neighbor_pad_async(
            tensor, [2, 3], [ROWS, COLUMNS], [ROWS, COLUMNS], mode, [0, 1], [], [], topology=ttnn.Topology.Linear
        )
        sent = mesh.traffic.counters.loads()
        mesh.traffic.counters.reset()

        halo = exchanged(mesh, tensor, mode=mode)
        around = ttnn.experimental.halo_scatter(halo, tensor, ROWS, COLUMNS)

        assert torch.equal(lanes_of(around), lanes_of(padded))
        assert mesh.traffic.counters.loads() == sent
        room = on(mesh, lanes_of(padded) * 0, float32)
        inside = lanes_of(room).clone()
        inside[:, :, :, :, ROWS:-ROWS, COLUMNS:-COLUMNS] = lanes_of(tensor)
        filled = on(mesh, inside, float32)
        ttnn.experimental.halo_scatter(halo, filled, ROWS, COLUMNS, border_only=True)
        assert torch.equal(lanes_of(filled), lanes_of(padded))


@pytest.mark.usefixtures("collectives_on_some_chips")
def test_sections_lie_above_below_left_right() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), LOCAL, float32)

        halo = lanes_of(exchanged(mesh, on(mesh, values, float32)))

        above, below = halo[1, 2, :12].reshape(2, 6, 8), halo[0, 2, 12:24].reshape(2, 6, 8)
        left = halo[0, 2, 24:48].reshape(2, 6, COLUMNS, 8)
        assert torch.equal(above, values[0, 2, 0, :, -1])
        assert torch.equal(below, values[1, 2, 0, :, 0])
        assert torch.equal(left[:, ROWS:-ROWS], values[0, 1, 0, :, :, -COLUMNS:])
        assert torch.equal(left[:, -1], values[1, 1, 0, :, 0, -COLUMNS:])  # the corner comes from the diagonal


@pytest.mark.usefixtures("collectives_on_some_chips")
def test_the_inside_of_a_padded_part_gives_the_same_edges() -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), LOCAL, float32)
        padded = torch.nn.functional.pad(values, (0, 0, 1, 1, 1, 1), value=7.0)

        plain, inner = exchanged(mesh, on(mesh, values, float32)), exchanged(mesh, on(mesh, padded, float32), inside=1)

        assert torch.equal(lanes_of(plain), lanes_of(inner))


@pytest.mark.usefixtures("collectives_on_some_chips")
def test_a_buffer_that_is_too_small_is_refused() -> None:
    with opened((2, 4)) as mesh:
        tensor = on(mesh, random_lanes((2, 4), LOCAL, float32), float32)

        with pytest.raises(RuntimeError, match=f"halo_buffer holds 5 pages but .* sections need {STICKS}"):
            exchanged(mesh, tensor, sticks=5)
