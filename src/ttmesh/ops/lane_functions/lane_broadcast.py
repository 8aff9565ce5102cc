"""Broadcasting of lanes: equal local ranks, equal mesh dims, or one flat batch dim."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

TILE = 32


def equalize_ranks(tensors: Sequence[torch.Tensor], lane_axes: int) -> list[torch.Tensor]:
    """The tensors with equal local ranks, by dims of length 1 inserted after the mesh dims, ready to broadcast."""
    rank = max(tensor.dim() for tensor in tensors)
    return [_with_rank(tensor, rank, lane_axes) for tensor in tensors]


def pad_to_tiles(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with zeros after its rows and columns, up to whole tiles."""
    rows, columns = (-extent % TILE for extent in tensor.shape[-2:])
    return torch.nn.functional.pad(tensor, (0, columns, 0, rows)) if rows or columns else tensor


def common_mesh_dims(tensors: Sequence[torch.Tensor], lane_axes: int) -> tuple[int, ...]:
    """The mesh dims after broadcasting: 1 along axes on which all tensors are replicated."""
    return tuple(max(lengths) for lengths in zip(*(tensor.shape[:lane_axes] for tensor in tensors), strict=True))


def align_mesh_dims(tensors: Sequence[torch.Tensor], lane_axes: int) -> list[torch.Tensor]:
    """Views of the tensors with equal mesh dims, for operations that do not broadcast."""
    dims = common_mesh_dims(tensors, lane_axes)
    return [
        tensor if tensor.shape[:lane_axes] == dims else tensor.expand(*dims, *tensor.shape[lane_axes:])
        for tensor in tensors
    ]


def flatten_lanes(tensor: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Merge the mesh dims into one: [lanes, *local]; a view unless the tensor is expanded along some mesh dims only."""
    return tensor.flatten(0, lane_axes - 1) if lane_axes > 1 else tensor


def unflatten_lanes(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The inverse of `flatten_lanes`, for results whose local shape may be another one."""
    return tensor.reshape(*dims, *tensor.shape[1:])


def align_and_flatten(tensors: Sequence[torch.Tensor], lane_axes: int) -> tuple[list[torch.Tensor], tuple[int, ...]]:
    """The tensors aligned and flattened, and the mesh dims for `unflatten_lanes`."""
    dims = common_mesh_dims(tensors, lane_axes)
    return [flatten_lanes(tensor, lane_axes) for tensor in align_mesh_dims(tensors, lane_axes)], dims


def fold_into_batch(tensor: torch.Tensor, lane_axes: int) -> torch.Tensor:
    """Merge the mesh dims and the first local dim: [lanes * n, ...], for torch functions with one batch dim."""
    return tensor.flatten(0, lane_axes)


def unfold_from_batch(tensor: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """The inverse of `fold_into_batch`."""
    return tensor.reshape(*dims, tensor.shape[0] // prod(dims), *tensor.shape[1:])


def to_negative_dim(dim: int, tensor: torch.Tensor, lane_axes: int) -> int:
    """A local dim (negative ones allowed) as the negative dim that lanes need."""
    rank = tensor.dim() - lane_axes
    assert -rank <= dim < rank, f"dim {dim} of a tensor of rank {rank} would reach the mesh axes"
    return dim if dim < 0 else dim - rank


def _with_rank(tensor: torch.Tensor, rank: int, lane_axes: int) -> torch.Tensor:
    missing = rank - tensor.dim()
    if not missing:
        return tensor
    return tensor.reshape(*tensor.shape[:lane_axes], *[1] * missing, *tensor.shape[lane_axes:])
