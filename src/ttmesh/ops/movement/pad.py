"""ttnn.pad."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from ttmesh.base.dtypes import Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import composite, device_operation
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first
from ttmesh.ops.goldens import movement as goldens
from ttmesh.ops.stages.pad_stages import pad_stages, padded_spec
from ttmesh.tensor.calls.launch_op import separate
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def normalize_padding(padding: Sequence[Any], rank: int) -> tuple[tuple[int, int], ...]:
    """Padding before and after each dim; a list shorter than the rank is for the last dims."""
    pairs = [(0, int(amount)) if isinstance(amount, int) else (int(amount[0]), int(amount[1])) for amount in padding]
    wrong = "ttnn.pad: padding len can't be larger than input tensor rank"
    require(len(pairs) <= rank, wrong, f"at most {rank} pairs", "Pass one pair per dim.")
    return (*[(0, 0)] * (rank - len(pairs)), *pairs)


def _check_pad(call: Call) -> None:
    wrong = "ttnn.pad: on device tile padding does not support front padding"
    require(
        call.specs[0].layout is not Layout.TILE or all(before == 0 for before, _ in call["padding"]),
        wrong,
        "padding after the values only",
        "Convert with ttnn.to_layout to ROW_MAJOR first.",
    )


def _pad(input_tensor: torch.Tensor, padding: Sequence[tuple[int, int]], value: float) -> torch.Tensor:
    return torch.nn.functional.pad(input_tensor, [n for pair in reversed(padding) for n in pair], value=value)


def _pad_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """Shards stay on their cores; a tensor on the host has no memory to choose."""
    if call.mesh is None or not prod(inferred[0][0]):
        return like_first(call, inferred)
    made = padded_spec(call.specs[0], call["padding"], call["value"], call["memory_config"])
    return [made]


_PAD = device_operation("ttnn.pad", out=_pad_spec, check=_check_pad, stages=pad_stages, host=True)(_pad)


def _padding_between(shape: Sequence[int], padded: Sequence[int], start: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The padding that puts a shape at an offset inside a larger one."""
    require(
        len(padded) == len(shape) == len(start),
        "ttnn.pad: shapes must have the same rank",
        "equal ranks",
        "Reshape one with ttnn.unsqueeze_to_4D or ttnn.reshape.",
    )
    pairs = tuple(
        (offset, padded_length - offset - length)
        for length, padded_length, offset in zip(shape, padded, start, strict=True)
    )
    wrong = "Output size cannot fit input with offset"
    require(
        all(after >= 0 for _, after in pairs),
        wrong,
        f"a shape that holds {list(shape)} at {list(start)}",
        "Choose a larger output_padded_shape, or a smaller start.",
    )
    return pairs


@composite("ttnn.pad", golden=goldens.pad, direct=True)
def pad(
    input_tensor: Tensor,
    value: float,
    memory_config: MemoryConfig | None,
    padding: Sequence[Any] = (),
    output_padded_shape: Sequence[int] = (),
    input_tensor_start: Sequence[int] = (),
    sub_core_grids: Any = None,
    use_multicore: bool = True,
) -> Any:
    """The tensor padded with `value`: by pairs per dim, or to a larger shape from a start position."""
    if len(output_padded_shape):
        if input_tensor.device() is None:
            return input_tensor.pad(output_padded_shape, input_tensor_start, value)
        pairs = _padding_between(input_tensor.shape, output_padded_shape, input_tensor_start)
    else:
        pairs = normalize_padding(padding, len(input_tensor.shape))
    if not any(before or after for before, after in pairs):
        return separate(input_tensor)
    require(
        sub_core_grids is None or not input_tensor.is_sharded(),
        "ttnn.pad: sub_core_grids is not supported for sharded tensors",
        "an interleaved tensor, or no sub_core_grids",
        "Leave sub_core_grids out: the shards determine the cores.",
    )
    wrong = "ttnn.pad: sub_core_grids needs use_multicore=True"
    require(sub_core_grids is None or use_multicore, wrong, "use_multicore=True", "Leave use_multicore out.")
    arguments = {"input_tensor": input_tensor, "padding": pairs, "value": value, "memory_config": memory_config}
    return _PAD(**arguments)
