"""How ranks divide a mesh: which block each of them gets, and what it holds of a submesh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ttmesh.base.errors import NotEmulatedError, RankError, ShapeError
from ttmesh.base.geometry import MeshShape
from ttmesh.mesh.device.opening import check_visible
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.mesh.ranks.rank_division import compute_rank_grid, divide_box, read_host_topologies


@pytest.mark.parametrize(
    ("shape", "ranks", "grid"),
    [
        ((2, 8), 2, (1, 2)),
        ((2, 8), 4, (1, 4)),
        ((8, 4), 2, (2, 1)),
        ((8, 8), 4, (2, 2)),
        ((4, 4), 2, (1, 2)),
        ((6, 4), 6, (3, 2)),
        ((1, 8), 8, (1, 8)),
        ((32,), 4, (4,)),
    ],
)
def test_the_longest_axis_is_cut(shape: tuple[int, ...], ranks: int, grid: tuple[int, ...]) -> None:
    assert compute_rank_grid(shape, ranks) == grid


def test_a_host_topology_decides(tmp_path: Path) -> None:
    text = tmp_path / "mesh.textproto"
    text.write_text(
        "mesh_descriptors {\n  device_topology { dims: [ 2, 8 ] }\n  host_topology   { dims: [ 2, 1 ] }\n}\n"
    )
    yaml = tmp_path / "mesh.yaml"
    yaml.write_text("Mesh: [{id: 0, device_topology: [2, 8], host_topology: [2, 2]}]\n")

    assert compute_rank_grid((2, 8), 2, read_host_topologies(str(text))) == (2, 1)
    assert compute_rank_grid((2, 8), 4, read_host_topologies(str(yaml))) == (2, 2)
    assert compute_rank_grid((2, 8), 8, read_host_topologies(str(yaml))) == (1, 8), (
        "one for another number of ranks says nothing"
    )


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="a mesh of 2x4 cannot be divided by 3 ranks into equal blocks"):
        compute_rank_grid((2, 4), 3)
    with pytest.raises(ShapeError, match=r"a mesh of 3x4 cannot be divided by host_topology \[2, 1\]"):
        compute_rank_grid((3, 4), 2, [(2, 1)])
    with pytest.raises(RankError, match="cannot be read"):
        read_host_topologies(str(tmp_path / "nowhere"))


def test_a_submesh_lies_on_the_ranks_whose_blocks_it_meets() -> None:
    assert divide_box((2, 8), (1, 2), (0, 2), (2, 4)) == ((0, 0), (1, 2), (2, 2))
    assert divide_box((2, 8), (1, 2), (0, 4), (1, 4)) == ((0, 1), (1, 1), (1, 4))
    assert divide_box((2, 8), (1, 2), (0, 3), (2, 4)) is None


def test_a_part_knows_its_chips_and_its_lanes() -> None:
    part = RankBlock((2, 8), (1, 2), (0, 1), (0, 1))
    lanes = torch.arange(16).reshape(2, 8, 1)

    assert part.has_chip((1, 4))
    assert not part.has_chip((1, 3))
    assert part.find_rank((1, 3)) == 0
    assert part.find_local_positions(frozenset({(0, 0), (1, 7)})) == {(1, 3)}
    assert part.select_local(range(16)) == (4, 5, 6, 7, 12, 13, 14, 15)
    assert part.narrow_to_block(lanes)[:, :, 0].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert part.narrow_to_block(lanes[:, :1]).shape == (2, 1, 1)
    with pytest.raises(RuntimeError, match=r"process that does not have it! .* is held by rank 0"):
        part.to_local((0, 3))


def test_a_mesh_shape_is_a_plain_value_without_communicators() -> None:
    assert MeshShape.__slots__ == ("_dims",)
    assert not MeshShape.__subclasses__()


def test_a_submesh_has_the_part_that_its_rank_has_of_it() -> None:
    first, second = (RankBlock((2, 8), (1, 2), (0, i), (0, 1)) for i in (0, 1))

    assert first.make_submesh_block((0, 0), (2, 4)) is None, "all of it is here"
    elsewhere = second.make_submesh_block((0, 0), (2, 4))
    assert elsewhere is not None
    assert (elsewhere.position, elsewhere.ranks, elsewhere.local_range) == (None, (0,), None)
    shared = second.make_submesh_block((0, 2), (2, 4))
    assert shared is not None
    assert (shared.position, shared.block_shape, shared.start, shared.ranks) == ((0, 1), (2, 2), (0, 2), (0, 1))
    with pytest.raises(NotEmulatedError, match=r"overlaps the ranks' blocks of .* unevenly"):
        second.make_submesh_block((0, 3), (2, 4))


def test_a_rank_must_see_the_chips_of_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TT_VISIBLE_DEVICES", "0,3")

    check_visible([0, 4, 3, 7])
    with pytest.raises(
        RankError, match=r"block of the mesh has chips \[0, 1, 4, 5\], of which TT_VISIBLE_DEVICES hides \[1, 5\]"
    ):
        check_visible([0, 1, 4, 5])
