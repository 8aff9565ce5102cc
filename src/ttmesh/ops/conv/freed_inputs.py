"""A convolution that frees its input does so before its result is allocated, which then lies where the input was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


@contextmanager
def read_freed_input(x: Tensor, rows: TensorSpec, *, moves: bool) -> Iterator[Tensor]:
    """A tensor to read the input's values from, whose memory is free already.

    Args:
        x: the input; it is freed.
        rows: every core's rows with those of its neighbours, which are allocated while the input is still there.
        moves: whether they are moved to where the input was. They are then part of the convolution's own memory;
            otherwise they are held here, where they were allocated, until the result is.
    """
    mesh = x.device()
    assert mesh is not None, "its input lies on chips"
    heap, room = mesh.heap, footprint_of(rows, mesh.heap.map)
    held = heap.take_temporary(room, "ttnn.conv2d")
    cell, kind = x.buffer.cell, x.kind
    x.deallocate(force=True)
    if moves:
        heap.free_temporary(room, held)
    values = Buffer(cell, heap)
    try:
        yield Tensor.on_device(kind, values, mesh)
    finally:
        values.forget()
        if not moves:
            heap.free_temporary(room, held)
