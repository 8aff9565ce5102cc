"""ttnn.fold: blocks of pixels become channels."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.stages.conversion_stages import fold_stages
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec


def _parse_padding(padding: Sequence[int]) -> tuple[int, int, int, int, int, int]:
    """Padding at the top, bottom, left, right, and before and after the channels."""
    p = [int(number) for number in padding]
    if len(p) == 2:
        return p[0], p[0], p[1], p[1], 0, 0
    if len(p) == 4:
        return p[0], p[1], p[2], p[3], 0, 0
    require(len(p) == 6, f"Fold: padding has {len(p)} numbers", "2, 4 or 6", "Give 2, 4 or 6 numbers.")
    return p[0], p[1], p[2], p[3], p[4], p[5]


def space_to_depth(values: torch.Tensor, block_h: int, block_w: int) -> torch.Tensor:
    """[.., H, W, C] → [.., H / block_h, W / block_w, block_h * block_w * C]."""
    h, w, c = values.shape[-3:]
    blocks = values.reshape(*values.shape[:-3], h // block_h, block_h, w // block_w, block_w, c)
    return blocks.transpose(-4, -3).reshape(*values.shape[:-3], h // block_h, w // block_w, block_h * block_w * c)


def _fold(
    values: torch.Tensor, stride_h: int, stride_w: int, padding: Sequence[int], collapse: bool, lane_axes: int
) -> torch.Tensor:
    top, bottom, left, right, front, back = _parse_padding(padding)
    padded = torch.nn.functional.pad(values, (front, back, left, right, top, bottom))
    result = space_to_depth(padded, stride_h, stride_w)
    if not collapse:
        return result
    return result.reshape(*result.shape[:lane_axes], 1, 1, -1, result.shape[-1])


def _check_fold(call: Call) -> None:
    shape, stride_h, stride_w = call.specs[0].shape, call["stride_h"], call["stride_w"]
    require(len(shape) == 4, "Fold op only supports 4D tensors", "[N, H, W, C]", "Reshape it to four dims.")
    wrong = f"Fold: stride_h ({stride_h}) and stride_w ({stride_w}) must be > 0."
    require(stride_h > 0 and stride_w > 0, wrong, "positive strides", "Use strides of at least 1.")
    wrong = (
        "Fold: collapse_output=True is not supported with use_transpose_as_fold=True (legacy path bypasses prim::fold). "
        "Drop use_transpose_as_fold to use collapse_output."
    )
    require(
        not (call["use_transpose_as_fold"] and call["collapse_output"]),
        wrong,
        "use_transpose_as_fold or collapse_output",
        "Leave one of the two out.",
    )
    top, bottom, left, right, before, _ = _parse_padding(call["padding"])
    in_front = call.specs[0].layout is Layout.TILE and not call["use_transpose_as_fold"] and (top or left or before)
    wrong = "ttnn.pad: on device tile padding does not support front padding"
    require(not in_front, wrong, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
    rows, columns = (shape[2], shape[3]) if call["use_transpose_as_fold"] else (shape[1], shape[2])
    height, width = rows + top + bottom, columns + left + right
    wrong = f"Fold: Input height ({height}) must be divisible by stride_h ({stride_h})."
    require(height % stride_h == 0, wrong, f"a multiple of {stride_h}", "Pad the height.")
    wrong = f"Fold: Input width ({width}) must be divisible by stride_w ({stride_w})."
    require(width % stride_w == 0, wrong, f"a multiple of {stride_w}", "Pad the width.")


def _fold_shards(call: Call) -> MemoryConfig | None:
    """Shards after folding: the same cores, with rows that are fewer and longer by the pixels of a block."""
    spec = call.specs[0]
    config, shards = spec.memory_config, spec.memory_config.shard_spec
    keeps_order = not (call["use_transpose_as_fold"] or any(call["padding"] or ()))
    if shards is None or not config.is_sharded() or spec.layout is not Layout.ROW_MAJOR or not keeps_order:
        return None
    pixels = call["stride_h"] * call["stride_w"]
    height, width = shards.shape
    if height % pixels:
        return None
    shape = (height // pixels, width * pixels)
    return MemoryConfig(config.memory_layout, config.buffer_type, ShardSpec(shards.grid, shape, shards.orientation))


def _fold_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    dtype = DataType.BFLOAT16 if call.specs[0].dtype in BLOCK_FLOATS else None
    memory = call["override_memory_config"] or _fold_shards(call)
    return [make_output_spec(call, inferred[0][0], dtype=dtype, layout=Layout.ROW_MAJOR, memory_config=memory)]


@op("ttnn.fold", golden=goldens.fold, check=_check_fold, out=_fold_spec, stages=fold_stages)
def fold(
    input: torch.Tensor,
    stride_h: int,
    stride_w: int,
    use_transpose_as_fold: bool,
    output_shape: Sequence[int] | None,
    padding: Sequence[int],
    collapse_output: bool,
    lane_axes: int,
) -> torch.Tensor:
    """Blocks of an image [N, H, W, C] (or [N, C, H, W] with use_transpose_as_fold) become channels."""
    images = input.movedim(-3, -1) if use_transpose_as_fold else input
    result = _fold(images, stride_h, stride_w, padding, collapse_output, lane_axes)
    if output_shape is None:
        return result
    n, h, w, c = output_shape
    if use_transpose_as_fold:
        return result[..., :h, :w, :c]
    return result.reshape(*result.shape[:lane_axes], n, h, w, -1)[..., :c]
