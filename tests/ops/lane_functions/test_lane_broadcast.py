"""Lane helpers: operands of different rank and placement come together without copies."""

from __future__ import annotations

import torch

from ttmesh.ops.lane_functions.lane_broadcast import (
    align_and_flatten,
    align_mesh_dims,
    common_mesh_dims,
    equalize_ranks,
    flatten_lanes,
    fold_into_batch,
    to_negative_dim,
    unflatten_lanes,
    unfold_from_batch,
)


def test_local_ranks_are_aligned_behind_the_mesh_dims() -> None:
    a, b = torch.zeros(2, 4, 3, 5, 7), torch.zeros(1, 4, 7)

    wide, narrow = equalize_ranks([a, b], 2)

    assert wide is a
    assert narrow.shape == (1, 4, 1, 1, 7)
    assert (wide + narrow).shape == (2, 4, 3, 5, 7)


def test_mesh_dims_of_replicated_and_sharded_operands_meet() -> None:
    tensors = [torch.zeros(1, 4, 3), torch.zeros(2, 1, 3)]

    assert common_mesh_dims(tensors, 2) == (2, 4)
    assert [tuple(t.shape) for t in align_mesh_dims(tensors, 2)] == [(2, 4, 3), (2, 4, 3)]
    assert align_mesh_dims(tensors, 2)[0].data_ptr() == tensors[0].data_ptr()


def test_flat_and_unflat_are_inverse() -> None:
    x = torch.arange(2 * 4 * 3).reshape(2, 4, 3)

    (only,), dims = align_and_flatten([x], 2)

    assert only.shape == (8, 3)
    assert torch.equal(unflatten_lanes(only, dims), x)
    assert flatten_lanes(x[0], 1) is not None


def test_folded_joins_the_first_local_dim() -> None:
    x = torch.arange(2 * 4 * 3 * 5).reshape(2, 4, 3, 5)

    assert fold_into_batch(x, 2).shape == (24, 5)
    assert torch.equal(unfold_from_batch(fold_into_batch(x, 2), (2, 4)), x)


def test_local_dims_become_negative() -> None:
    x = torch.zeros(2, 4, 3, 5)

    assert [to_negative_dim(dim, x, 2) for dim in (0, 1, -1)] == [-2, -1, -1]
