"""Tensor dims of collectives, and TT-NN's errors for a dim that a tensor does not have."""

from __future__ import annotations

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import ShapeError
from ttmesh.tensor.tensor import Tensor

_ADDS_RANK_TWICE = ("all_gather_async", "all_gather_async_reversed", "ring_attention_all_gather_async")
_GATHERS_ROWS = ("all_gather_async", "all_gather_async_reversed")  # by a composition with a rule of its own
_PADDED_RANK = 4  # TT-NN keeps shapes of fewer dims padded to four, and counts from their end


def index_text(index: int, rank: int) -> str:
    """TT-NN's text of an index that a shape does not have."""
    return f"ShapeBase[] index out of range. {index} not in [-{max(_PADDED_RANK, rank)}, {rank})"


def find_tensor_dim(name: str, tensor: Tensor, dim: int) -> int:
    """A tensor dim as a nonnegative number; raises in the words of the collective for one out of range."""
    rank, short = len(tensor.shape), name.rpartition(".")[2]
    if short in _GATHERS_ROWS and tensor.layout is Layout.ROW_MAJOR and not -rank <= dim < rank:
        short = "reduce_scatter"
    if -rank <= dim < rank or (short in _ADDS_RANK_TWICE and -2 * rank <= dim < 0):
        return dim % rank
    raise ShapeError(_describe(short, rank, dim), expected=f"{-rank} to {rank - 1}", fix="Choose a dim of the tensor.")


def _describe(name: str, rank: int, dim: int) -> str:
    counted = dim if dim >= 0 else dim + rank
    if name in _ADDS_RANK_TWICE:
        return f"Dimension input should be in between -{rank} and {rank - 1}, but has {dim}"
    if name == "reduce_scatter":
        return f"Index is out of bounds for the rank, should be between 0 and {rank - 1} however is {counted % 2**64}"
    if name == "all_gather":
        return f"Invalid gather dim {dim} for {rank}D input tensor"
    if dim >= 0:
        return index_text(dim, rank)
    if name == "mesh_partition":
        return "dim must be less than the rank of the input tensor"
    if name == "reduce_scatter_minimal_direct":
        return f"scatter dim {counted} out of range for rank {rank}"
    return f"Invalid scatter dim {counted % 2**32} for rank {rank} tensor"
