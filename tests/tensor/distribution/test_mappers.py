"""Mappers cut tensors as TT-NN's do, and composers put them back."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.base.placement import Replicate, Shard
from ttmesh.tensor.distribution.composers import (
    ConcatMesh2dToTensor,
    ConcatMeshToTensor,
    ListMeshToTensor,
    MeshComposerConfig,
    create_mesh_composer,
)
from ttmesh.tensor.distribution.mappers import (
    MeshMapperConfig,
    ReplicateTensorToMesh,
    ShardTensor2dMesh,
    ShardTensorToMesh,
    create_mesh_mapper,
    shard_tensor_to_mesh_mapper,
    unwrap_mapper,
)
from ttmesh.tensor.spec.distribution_shape import compute_distribution_to_mesh_mapping

MESHES = list(itertools.product(range(1, 5), repeat=2))


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@st.composite
def placed(draw: st.DrawFn) -> tuple[MeshShape, list[Replicate | Shard], torch.Tensor]:
    """A mesh up to 4x4, a placement per axis and a tensor that it divides."""
    mesh = MeshShape(draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    rank = draw(st.integers(1, 5))
    dims = draw(st.permutations(range(rank)))
    kinds = [draw(st.booleans()), draw(st.booleans()) and rank > 1]
    negative = draw(st.booleans())
    placements: list[Replicate | Shard] = []
    shape = [draw(st.integers(1, 3)) for _ in range(rank)]
    for axis, cut in enumerate(kinds):
        dim = dims[min(axis, rank - 1)]
        if cut:
            shape[dim] *= mesh[axis]
        placements.append(Shard(dim - rank if negative else dim) if cut else Replicate())
    return mesh, placements, numbered(*shape)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(placed())
def test_composing_what_was_mapped_gives_the_tensor_back(case) -> None:
    mesh, placements, tensor = case
    mapped = create_mesh_mapper(mesh, MeshMapperConfig(placements)).map(tensor)
    kept = MeshShape([n if isinstance(p, Shard) else 1 for n, p in zip(mesh, placements, strict=True)])
    free = iter(
        dim
        for dim in range(tensor.dim() + 2)
        if dim not in [p.dim % tensor.dim() for p in placements if isinstance(p, Shard)]
    )
    dims = [p.dim if isinstance(p, Shard) else next(free) for p in placements]
    if any(dim >= tensor.dim() for dim in dims):
        return  # TT-NN's composers cannot name a dim for the axis that is not cut
    composer = create_mesh_composer(mesh, MeshComposerConfig(dims, kept))

    back = composer.compose(mapped.values, mesh, mapped.presence)

    assert torch.equal(back, tensor)
    assert back.data_ptr() != tensor.data_ptr()


def joined(lanes: torch.Tensor, mesh: MeshShape, placements: list[Replicate | Shard]) -> torch.Tensor:
    """What a composer makes of the first copy of every part."""
    cuts = [(axis, p.dim) for axis, p in enumerate(placements) if isinstance(p, Shard)]
    rank = lanes.dim() - mesh.dims()
    dims = [dim for _, dim in cuts]
    spare = [dim for dim in range(rank) if dim not in dims]
    kept = [n if axis in dict(cuts) else 1 for axis, n in enumerate(mesh)]
    if len(spare) < mesh.dims() - len(cuts):  # a vector has no second dim to name: TT-NN composes it as a line
        axis, dim = cuts[0] if cuts else (0, 0)
        line = lanes.expand(*mesh, *lanes.shape[2:]).select(1 - axis, 0).unsqueeze(0)[:, : kept[axis]]
        return ConcatMeshToTensor(dim=dim).compose(line, MeshShape(1, kept[axis]))
    named = [dict(cuts).get(axis, None) for axis in range(mesh.dims())]
    every = [spare.pop(0) if dim is None else dim for dim in named]
    return create_mesh_composer(mesh, MeshComposerConfig(every, MeshShape(kept))).compose(lanes, mesh)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_placement_on_every_mesh_composes_back(mesh) -> None:
    shape = MeshShape(*mesh)
    for rank in range(1, 6):
        choices = [Replicate(), *(Shard(dim) for dim in range(rank))]
        for first, second in itertools.product(choices, repeat=2):
            if first == second != Replicate():
                continue  # TT-NN refuses to cut one dim twice
            sizes = [2] * rank
            for placement, extent in zip((first, second), mesh, strict=True):
                if isinstance(placement, Shard):
                    sizes[placement.dim] *= extent
            tensor = numbered(*sizes)

            mapped = create_mesh_mapper(shape, MeshMapperConfig([first, second])).map(tensor)

            assert mapped.presence is None
            assert torch.equal(joined(mapped.values, shape, [first, second]), tensor), (rank, first, second)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("rank", range(1, 6))
def test_cutting_one_dim_over_all_devices_and_concatenating_gives_the_tensor_back(mesh, rank) -> None:
    shape = MeshShape(*mesh)
    for dim in range(-rank, rank):
        sizes = [2] * rank
        sizes[dim] = 2 * shape.mesh_size()
        tensor = numbered(*sizes)

        mapped = ShardTensorToMesh(shape, dim).map(tensor)

        assert mapped.values.shape == (*mesh, *[2] * rank)
        assert torch.equal(ConcatMeshToTensor(shape, dim).compose(mapped.values, shape), tensor)
        assert torch.equal(ConcatMeshToTensor(dim=dim).compose(mapped.values, shape), tensor)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_cutting_two_dims_gives_row_r_and_column_c_their_block(mesh) -> None:
    shape = MeshShape(*mesh)
    tensor = numbered(3 * mesh[0], 2, 5 * mesh[1])

    mapped = ShardTensor2dMesh(shape, mesh_shape=mesh, dims=(0, 2)).map(tensor)

    for r, c in itertools.product(range(mesh[0]), range(mesh[1])):
        assert torch.equal(mapped.values[r, c], tensor[3 * r : 3 * r + 3, :, 5 * c : 5 * c + 5])
    back = ConcatMesh2dToTensor(shape, mesh_shape=mesh, dims=(0, 2)).compose(mapped.values, shape)
    assert torch.equal(back, tensor)


def test_mapping_copies_nothing_until_asked() -> None:
    tensor = numbered(8, 16)

    for mapper in (ShardTensorToMesh(MeshShape(2, 4), 1), unwrap_mapper(ReplicateTensorToMesh(MeshShape(2, 4)))):
        assert mapper.map(tensor).values.data_ptr() == tensor.data_ptr()


def test_replicating_keeps_one_lane() -> None:
    tensor = numbered(3, 5)

    mapped = unwrap_mapper(ReplicateTensorToMesh(MeshShape(2, 4))).map(tensor)

    assert mapped.values.shape == (1, 1, 3, 5)
    assert mapped.presence is None
    assert mapped.topology.distribution_shape() == MeshShape([8])
    assert mapped.topology.placements() == [Replicate()]
    assert len(mapped.topology.mesh_coords()) == 8


def test_shard_tensor_to_mesh_has_a_distribution_of_one_axis() -> None:
    mapped = ShardTensorToMesh(MeshShape(2, 4), 1).map(numbered(2, 8))

    assert mapped.topology.distribution_shape() == MeshShape([8])
    assert repr(mapped.topology.placements()) == "[PlacementShard(1)]"
    assert mapped.topology.mesh_coords()[5] == MeshCoordinate(1, 1)


def test_fewer_chunks_than_devices_fill_fewer_devices() -> None:
    mapped = ShardTensorToMesh(MeshShape(2, 4), 0).map(numbered(3, 2))

    assert mapped.presence == {(0, 0), (0, 1), (0, 2)}
    assert mapped.topology.distribution_shape() == MeshShape([3])
    assert torch.equal(mapped.values[0, 2], numbered(3, 2)[2:])
    assert not mapped.values[1].any()
    assert torch.equal(
        ConcatMeshToTensor(dim=0).compose(mapped.values, MeshShape(2, 4), mapped.presence), numbered(3, 2)
    )


def test_ceil_chunks_may_leave_devices_empty() -> None:
    mapped = ShardTensorToMesh(MeshShape(1, 8), 0).map(numbered(10))  # chunks of two, five of them

    assert mapped.values.shape == (1, 8, 2)
    assert len(mapped.presence) == 5


def test_unequal_chunks_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"Shard shape mismatch: expected Shape\(\[2, 7\]\) but got Shape\(\[1, 7\]\)"
    ):
        ShardTensorToMesh(MeshShape(1, 4), 0).map(numbered(7, 7))


def test_a_grid_that_cannot_be_filled_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match="ND sharding requires the number of chunks 6 to match the mesh dimension size 8"
    ):
        ShardTensor2dMesh(MeshShape(2, 4), (2, 4), (0, 1)).map(numbered(2, 3))


def test_shard_dims_must_be_unique_and_exist() -> None:
    with pytest.raises(RuntimeError, match="dims must be unique"):
        ShardTensor2dMesh(MeshShape(2, 4), (2, 4), (1, -1)).map(numbered(8, 8))
    with pytest.raises(RuntimeError, match=r"Invalid dimension index; got dims: \[2\], tensor dimension: 2"):
        ShardTensorToMesh(MeshShape(2, 4), 2).map(numbered(8, 8))


def test_an_override_that_fits_is_a_submesh_at_an_offset() -> None:
    mesh = MeshShape(2, 4)
    config = MeshMapperConfig([Shard(0), Shard(1)], MeshShape(2, 2), MeshCoordinate(0, 2))
    tensor = numbered(4, 4)

    mapped = create_mesh_mapper(mesh, config).map(tensor)

    assert mapped.presence == {(0, 2), (0, 3), (1, 2), (1, 3)}
    assert torch.equal(mapped.values[1, 3], tensor[2:, 2:])
    composer = create_mesh_composer(mesh, MeshComposerConfig([0, 1], MeshShape(2, 2), MeshCoordinate(0, 2)))
    assert torch.equal(composer.compose(mapped.values, mesh, mapped.presence), tensor)


def test_an_override_that_does_not_fit_fills_in_row_major_order() -> None:
    mesh = MeshShape(2, 4)
    tensor = numbered(8, 6)

    mapped = create_mesh_mapper(mesh, MeshMapperConfig([Shard(0), Shard(1)], MeshShape(4, 2))).map(tensor)

    assert mapped.presence is None
    assert torch.equal(mapped.values[1, 0], tensor[4:6, :3])  # the fifth part: row 2, column 0
    back = create_mesh_composer(mesh, MeshComposerConfig([0, 1], MeshShape(4, 2))).compose(mapped.values, mesh)
    assert torch.equal(back, tensor)


def test_offsets_that_cannot_be_used_are_refused() -> None:
    mesh, placements = MeshShape(2, 4), [Shard(0), Shard(1)]
    with pytest.raises(RuntimeError, match="mesh_offset_override is only supported when the distribution fits"):
        create_mesh_mapper(mesh, MeshMapperConfig(placements, MeshShape(4, 2), MeshCoordinate(0, 1)))
    with pytest.raises(RuntimeError, match="does not fit within the mesh device shape"):
        create_mesh_mapper(mesh, MeshMapperConfig(placements, MeshShape(2, 2), MeshCoordinate(0, 3)))
    with pytest.raises(RuntimeError, match="must have the same dimensionality"):
        create_mesh_mapper(mesh, MeshMapperConfig(placements, MeshShape(2, 2), MeshCoordinate([1])))


def test_shapes_that_exceed_the_mesh_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"The size of the supplied mesh shape MeshShape\(\[4, 4\]\) does not match"):
        create_mesh_mapper(MeshShape(2, 4), MeshMapperConfig([Shard(0), Shard(1)], MeshShape(4, 4)))
    with pytest.raises(RuntimeError, match="does not match the number of placements in the config MeshMapperConfig"):
        create_mesh_mapper(MeshShape(2, 4), MeshMapperConfig([Shard(0)]))


def test_a_cluster_axis_cuts_one_axis_only() -> None:
    mapped = shard_tensor_to_mesh_mapper(MeshShape(2, 4), 0, cluster_axis=1).map(numbered(8, 3))

    assert mapped.values.shape == (1, 4, 2, 3)
    with pytest.raises(RuntimeError, match="Cluster axis 2 is out of range for mesh device with 2 dimensions"):
        shard_tensor_to_mesh_mapper(MeshShape(2, 4), 0, cluster_axis=2)


def test_composers_concatenate_replicated_lanes_too() -> None:
    tensor = numbered(2, 3)
    mapped = unwrap_mapper(ReplicateTensorToMesh(MeshShape(2, 2))).map(tensor)

    back = ConcatMeshToTensor(MeshShape(2, 2), 1).compose(mapped.values, MeshShape(2, 2))

    assert torch.equal(back, torch.cat([tensor] * 4, dim=1))


def test_a_list_composer_gives_a_tensor_per_device() -> None:
    mapped = ShardTensorToMesh(MeshShape(2, 2), 0).map(numbered(4, 3))

    parts = ListMeshToTensor().compose(mapped.values, MeshShape(2, 2))

    assert [part.tolist() for part in parts] == [[row] for row in numbered(4, 3).tolist()]


def test_composing_a_grid_with_absent_parts_is_refused() -> None:
    values = torch.zeros(2, 2, 3, 3)
    composer = ConcatMesh2dToTensor(MeshShape(2, 2), (2, 2), (0, 1))

    with pytest.raises(RuntimeError, match="ND composition requires the number of tensors 3 to match the mesh shape"):
        composer.compose(values, MeshShape(2, 2), frozenset({(0, 0), (0, 1), (1, 0)}))


def test_configs_take_rows_and_columns_and_print_as_in_ttnn() -> None:
    by_dims = MeshMapperConfig(row_dim=1, col_dim=None, mesh_shape_override=MeshShape(2, 4))

    assert by_dims.placements == [Shard(1), Replicate()]
    assert MeshMapperConfig(None, 3).placements == [Replicate(), Shard(3)]
    assert repr(by_dims) == (
        "MeshMapperConfig(placements: [PlacementShard(1), PlacementReplicate()], mesh_shape_override=MeshShape([2, 4]))"
    )
    assert repr(MeshComposerConfig([0, 1])) == "MeshComposerConfig(dims: [0, 1])"
    assert MeshComposerConfig(row_dim=0, col_dim=1).dims == [0, 1]
    with pytest.raises(TypeError, match="at most once"):
        MeshMapperConfig([Shard(0)], rows=3)


def test_distribution_coordinates_map_directly_or_in_row_major_order() -> None:
    assert compute_distribution_to_mesh_mapping(MeshShape(1, 2), MeshShape(2, 4)) == [
        MeshCoordinate(0, 0),
        MeshCoordinate(0, 1),
    ]
    assert compute_distribution_to_mesh_mapping(MeshShape([5]), MeshShape(2, 4))[-1] == MeshCoordinate(1, 0)


def test_a_distribution_may_have_more_axes_than_the_mesh() -> None:
    mesh, over = MeshShape(2, 4), MeshShape(2, 2, 2)
    tensor = numbered(4, 2, 4, 7)

    mapped = create_mesh_mapper(mesh, MeshMapperConfig([Replicate(), Shard(2), Shard(1)], over)).map(tensor)

    assert mapped.values.shape == (2, 4, 4, 1, 2, 7)
    assert mapped.topology.distribution_shape() == over
    back = create_mesh_composer(mesh, MeshComposerConfig([0, 2, 1], over)).compose(mapped.values, mesh)
    assert torch.equal(back, torch.cat([tensor, tensor]))


def test_a_composer_may_join_a_part_of_the_mesh_only() -> None:
    mesh = MeshShape(2, 4)
    tensor = numbered(1, 2, 1, 3)
    mapped = create_mesh_mapper(mesh, MeshMapperConfig([Shard(1), Replicate()])).map(tensor)

    whole = create_mesh_composer(mesh, MeshComposerConfig([-1, 0])).compose(mapped.values, mesh)
    column = create_mesh_composer(mesh, MeshComposerConfig([-1, 0], MeshShape(2, 1))).compose(mapped.values, mesh)

    assert whole.flatten().tolist() == [0, 1, 2, 3, 4, 5] * 4
    assert column.flatten().tolist() == [0, 1, 2, 3, 4, 5]
