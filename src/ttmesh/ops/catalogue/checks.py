"""Checks that many operations share, with TT-NN's error texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, one_of, require
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def require_layout(spec: TensorSpec | Tensor, layout: Layout, wrong: str) -> None:
    """Raise for a tensor in another layout."""
    require(spec.layout is layout, wrong, f"{layout.name}_LAYOUT", "Convert it with ttnn.to_layout.")


def require_tiles(call: Call, wrong: str) -> None:
    """Raise for a first tensor in ROW_MAJOR layout."""
    require_layout(call.specs[0], Layout.TILE, wrong)


def require_interleaved(spec: TensorSpec, wrong: str) -> None:
    """Raise for a sharded tensor."""
    require(spec.memory_config.interleaved, wrong, "interleaved memory", "Move it with ttnn.to_memory_config.")


def require_memory_layout(spec: TensorSpec, layout: TensorMemoryLayout, name: str) -> None:
    """Raise for a tensor that is sharded in another way."""
    wrong = f"{name} must be {layout.name} but got TensorMemoryLayout::{spec.memory_config.memory_layout.name}"
    fix = "Move it with ttnn.to_memory_config."
    require(spec.memory_config.memory_layout is layout, wrong, f"TensorMemoryLayout.{layout.name}", fix)


FREELY_CONVERTED = (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B)


def require_unary_output(call: Call) -> None:
    """Raise for a tensor of the caller in a format that a unary program does not write from its input's."""
    given = call.outputs[0] if call.outputs else None
    if given is None or not call.specs:
        return
    source, target = call.specs[0].dtype, given.dtype
    wrong = (
        f"Preallocated output dtype DataType::{target.name} is not compatible with input dtype DataType::{source.name}. "
        "Integer and float dtypes cannot be mixed; mixed floating-point output is limited to BFLOAT16, FLOAT32, and "
        "BFLOAT8_B"
    )
    taken = source is target or (source in FREELY_CONVERTED and target in FREELY_CONVERTED)
    require(taken, wrong, f"{source.name.lower()}, or both of these", "Allocate the output in another format.")


def require_dtype(spec: TensorSpec | Tensor, allowed: DataType | Collection[DataType], wrong: str) -> None:
    """Raise for formats that an operation does not accept."""
    formats = (allowed,) if isinstance(allowed, DataType) else allowed
    expected = allowed.name.lower() if isinstance(allowed, DataType) else one_of(allowed)
    require(spec.dtype in formats, wrong, expected, "Convert it with ttnn.typecast.")


def out_of_bounds(dim: int, rank: int) -> str:
    """TT-NN's words for an index of a shape that has no such dim: counted from the end, and unsigned."""
    shown = (dim + rank if dim < 0 else dim) % 2**64
    return f"Index is out of bounds for the rank, should be between 0 and {rank - 1} however is {shown}"


def normalize_dim(dim: int, rank: int, wrong: str | None = None) -> int:
    """Convert a dim (negative ones count from the end) to the negative dim that lanes need."""
    lowest, highest = (-rank, rank - 1) if rank else (-1, 0)
    require(  # for a rank-0 tensor, dim 0 would be a mesh axis of its lanes
        bool(rank) or wrong is not None,
        f"Index is out of bounds for the rank, should be between 0 and -1 however is {dim}",
        "a tensor with dims",
        "Reshape it to [1] first.",
    )
    wrong = wrong or f"Dimension out of range (expected to be in range of [{lowest},{highest}], but got {dim})"
    require(lowest <= dim <= highest, wrong, f"a dim in [{lowest}, {highest}]", "Check the rank.")
    return dim if dim < 0 else dim - max(rank, 1)


def normalize_dims(dim: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """The dims of a reduction as negative dims: one, several, or all for None and an empty list."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(-rank, 0))
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    dims = []
    for i, position in enumerate(given):
        adjusted = position + rank if position < 0 else position
        wrong = (
            f"Unsupported dim {adjusted} at index {i}. After possible adjustment, needs to be at least 0 and less than rank "
            f"{rank}, or exactly 0 for a rank 0 tensor."
        )
        dims.append(normalize_dim(position, rank, wrong))
    ordered = sorted(dims)
    for i, (a, b) in enumerate(pairwise(ordered)):
        wrong = (
            f"reduce dim list contains a duplicate axis after sorting (indices {i} and {i + 1}, value {a + max(rank, 1)}"
            ")"
        )
        require(a != b, wrong, "different dims", "Pass every dim once.")
    return tuple(ordered) if rank else ()


@contextmanager
def refuse_in_order() -> Iterator[None]:
    """What is refused inside is what TT-NN refuses first: programs before the operation's own."""
    try:
        yield
    except MeshError as refusal:
        refusal.in_order = True
        raise
