"""The device programs of a convolution, and the copies that TT-NN makes of an input in tiles."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from torch import Tensor as Lanes

from ttmesh.base.dtypes import Layout
from ttmesh.ops.catalogue.definition import device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.stages.movement_stages import reshape, reshape_stages, tile_spec
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import deallocate

OPTIONS = ("size", "kernel", "stride", "padding", "dilation", "groups", "transposed", "out_dtype", "out_memory")


def is_matmul(kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: Sequence[int]) -> bool:
    """A 1 x 1 kernel with stride 1 and no padding: TT-NN runs a matmul."""
    return tuple(kernel) == tuple(stride) == tuple(dilation) == (1, 1) and not any(padding)


def _is_matmul_call(call: Call) -> bool:
    return call["read_spec"] is None and call.specs[0].memory_config.interleaved


def conv_programs(call: Call) -> tuple[Hashable, ...]:
    """Into shards, the rows of neighbours, a move where they leave room, the convolution, and out of shards."""
    memory = call.specs[0].memory_config
    if _is_matmul_call(call):
        parts: tuple[str, ...] = ("matmul",)
    elif memory.is_sharded():
        parts = ("halo", "conv")
    else:
        parts = ("interleaved_to_sharded", "halo", "move", "conv")
        parts = parts if call["out_memory"].is_sharded() else (*parts, "sharded_to_interleaved")
    return tuple((call.name, part, call.specs, *(call[name] for name in OPTIONS)) for part in parts)


def conv_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Rows are tilized before a matmul; a convolution reads rows with those of other cores, in L1."""
    x, read = call.specs[0], call["read_spec"]
    c = Composition()
    if not _is_matmul_call(call):
        if read is None:
            return None
        rows = c.allocate(read)
        for program in conv_programs(call):
            c.launch(program)
        made = c.allocate(results[0])
        c.free(rows)
        return c, [made]
    if x.layout is not Layout.ROW_MAJOR:
        return None
    tiles = c.run("tilize", tile_spec(x.shape, x.dtype, x.memory_config), PlannedTensor(x))
    c.launch(conv_programs(call)[0])
    made = c.allocate(results[0])
    c.free(tiles)
    return c, [made]


def _shape_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [call.specs[0].with_shape(call["shape"])]


@device_operation("ttnn.conv2d input", out=_shape_spec, stages=reshape_stages)
def _reshape_input(input: Lanes, shape: tuple[int, ...], lane_axes: int) -> Lanes:
    return input.reshape(*input.shape[:lane_axes], *shape)


def copy_tiles(x: Tensor, size: Sequence[int]) -> Tensor | None:
    """Lay an input in tiles in DRAM out as images and back as rows, as TT-NN does to slice it; the images stay.

    Returns:
        the images, to be freed after the convolution; None where they are the input itself.
    """
    if x.layout is not Layout.TILE or not x.memory_config().is_dram() or x.memory_config().is_sharded():
        return None
    images = _copy(x, (*size[:3], x.shape[-1]))
    rows = _copy(images, (1, 1, prod(size[:3]), x.shape[-1]))
    if rows is not images:
        deallocate(rows)
    return None if images is x else images


def _copy(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The tensor in another shape; itself where TT-NN copies nothing."""
    stage = reshape(Composition(), PlannedTensor(x.spec), x.spec.with_shape(shape))
    if stage.allocation is None:
        return x
    result: Tensor = _reshape_input(input=x, shape=shape)
    return result
