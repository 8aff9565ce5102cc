"""clone, copy, assign, move, fill_implicit_tile_padding and plus_one."""

from __future__ import annotations

from typing import Any

import torch

from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, like_first
from ttmesh.ops.goldens import movement as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import reallocate


def _check_clone(call: Call) -> None:
    spec = call.specs[0]
    same = call["dtype"] in (None, spec.dtype)
    wrong = "Clone: data type conversion is only supported with tile layout"
    require(same or spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")
    held, asked, fix = spec.memory_config, call["memory_config"] or spec.memory_config, "Use ttnn.to_memory_config."
    wrong = (
        "Clone: mixed sharded/interleaved layout not currently supported. Both input and output must have the same "
        "layout."
    )
    require(held.is_sharded() is asked.is_sharded(), wrong, "one kind of memory", fix)
    if held.is_sharded():
        wrong = "Clone: input and output must have the same memory layout when both are sharded"
        require(held.memory_layout is asked.memory_layout, wrong, "the input's memory layout", fix)
        wrong = "Clone: output memory config must have shard spec when sharded"
        require(asked.shard_spec is not None or asked.nd_shard_spec is not None, wrong, "a shard_spec", fix)
        wrong = "Clone: input and output shard specs must be identical (same grid, shape, and orientation)"
        require(asked.shard_spec == held.shard_spec, wrong, "the input's shards", fix)


@op("ttnn.clone", golden=goldens.clone, check=_check_clone)
def clone(input: torch.Tensor) -> torch.Tensor:
    """A copy with its own memory."""
    return input


def _check_copy(call: Call) -> None:
    source, target = call.specs
    wrong = f"Input tensor shape {source.shape!r} does not match output tensor shape {target.shape!r}"
    require(
        tuple(source.shape) == tuple(target.shape), wrong, "equal shapes", "Allocate the output with the input's shape."
    )
    wrong = f"Input tensor layout ({source.layout}) must equal output tensor layout ({target.layout})"
    require(source.layout is target.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")
    wrong = "Only tile layout supports dtype conversion"
    require(
        source.dtype is target.dtype or source.layout is Layout.TILE,
        wrong,
        "TILE_LAYOUT",
        "Convert it with ttnn.to_layout.",
    )


def _target_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [call.specs[1]]


def _copy(input_a: torch.Tensor) -> torch.Tensor:
    return input_a


@op("ttnn.copy", golden=goldens.copy, check=_check_copy, writes="input_b", out=_target_spec)
def copy(input_a: torch.Tensor) -> torch.Tensor:
    """Write the first tensor's values into the second, which is returned."""
    return input_a


_ASSIGN_INTO = device_operation("ttnn.assign", out=_target_spec, check=_check_copy, writes="input_b")(_copy)


def _check_conversion(call: Call) -> None:
    spec = call.specs[0]
    converts = call["dtype"] not in (None, spec.dtype)
    wrong = "Only tile layout supports dtype conversion"
    require(not converts or spec.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Convert it with ttnn.to_layout.")


_ASSIGN = device_operation("ttnn.assign", out=like_first, check=_check_conversion)(lambda input_tensor: input_tensor)


@composite("ttnn.assign", golden=goldens.assign)
def assign(
    input_tensor: Tensor | None = None,
    memory_config: MemoryConfig | None = None,
    dtype: DataType | None = None,
    output_tensor: Tensor | None = None,
    input_a: Tensor | None = None,
    input_b: Tensor | MemoryConfig | None = None,
) -> Any:
    """A copy in other memory, or the first tensor's values written into the second."""
    if isinstance(input_b, MemoryConfig):  # two positional arguments fit both overloads
        input_tensor, memory_config, input_a = input_a, input_b, None
    if input_a is not None:
        return _ASSIGN_INTO(input_a=input_a, input_b=input_b)
    arguments = {
        "input_tensor": input_tensor,
        "memory_config": memory_config,
        "dtype": dtype,
        "output_tensor": output_tensor,
    }
    return _ASSIGN(**arguments)


@composite("ttnn.move", golden=goldens.move)
def move(input_tensor: Tensor, memory_config: MemoryConfig | None) -> Tensor:
    """The same values at another address; the input's memory is freed."""
    return reallocate(input_tensor, memory_config)


def _check_fill(call: Call) -> None:
    wrong = "FillPad should only be used for tile layout"
    require_layout(call.specs[0], Layout.TILE, wrong)


def _filled_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    (spec,) = like_first(call, inferred)
    return [spec.with_padding(call.specs[0].padded_shape, call["fill_value"])]


def _identity(input_tensor: torch.Tensor) -> torch.Tensor:
    return input_tensor


_FILLED, _FILLED_IN_PLACE = (
    device_operation("ttnn.fill_implicit_tile_padding", out=_filled_spec, check=_check_fill, writes=target)(_identity)
    for target in (None, "input_tensor")
)


@composite("ttnn.fill_implicit_tile_padding", golden=goldens.fill_implicit_tile_padding)
def fill_implicit_tile_padding(input_tensor: Tensor, fill_value: float, memory_config: MemoryConfig | None) -> Any:
    """Fill the padding of tiles, in place except for block floats; lanes hold no padding, so the spec records the value."""
    has_no_padding = tuple(input_tensor.shape[-2:]) == tuple(input_tensor.padded_shape[-2:])
    moved = memory_config is not None and memory_config != input_tensor.memory_config()
    in_rows = input_tensor.layout is Layout.ROW_MAJOR and any(extent % 32 for extent in input_tensor.shape[-2:])
    wrong = "FillPad should only be used for tile layout"
    require(not in_rows, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    if has_no_padding:
        return input_tensor
    if input_tensor.layout is Layout.TILE and input_tensor.dtype not in BLOCK_FLOATS and not moved:
        spec, kind, mesh = input_tensor.spec, input_tensor.kind, input_tensor.device()
        assert mesh is not None, "operations run on devices"
        _FILLED_IN_PLACE(input_tensor=input_tensor, fill_value=fill_value)
        filled_kind = kind_of(spec.with_padding(spec.padded_shape, fill_value), kind.topology, kind.presence)
        return Tensor.on_device(filled_kind, input_tensor.buffer, mesh)
    return _FILLED(input_tensor=input_tensor, fill_value=fill_value, memory_config=memory_config)


def _increment(values: torch.Tensor, skip_negative: bool) -> torch.Tensor:
    if not skip_negative:
        return values + 1
    return torch.where((values >= 0) & (values < 2**31 - 1), values + 1, values)


def _check_increment(call: Call) -> None:
    wrong = "Only INT32 and UINT32 is supported for inputs!"
    require_dtype(call.specs[0], (DataType.INT32, DataType.UINT32), wrong)


@op("ttnn.plus_one", golden=goldens.plus_one, writes="input_tensor", check=_check_increment)
def plus_one(input_tensor: torch.Tensor, skip_negative_entries: bool) -> torch.Tensor:
    """Add one to every element, in place; negative elements can be skipped."""
    return _increment(input_tensor, skip_negative_entries)
