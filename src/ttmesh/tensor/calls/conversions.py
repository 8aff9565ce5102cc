"""The same values in another layout, format or memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.argument_types import name_wrong_types
from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import BLOCK_FLOATS, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, require
from ttmesh.chip.formats.storage import to_lane
from ttmesh.mesh.functions.queue_functions import takes_queue
from ttmesh.tensor import operators
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.gate import DeviceOperation, TensorFunction
from ttmesh.tensor.calls.operation import Call, Operation
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.row_shards import spec_in_rows
from ttmesh.tensor.spec.spec_checks import check_dtype, check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

Inferred = Sequence[tuple[tuple[int, ...], torch.dtype]]


@TensorFunction
def to_layout(
    tensor: Tensor,
    layout: Layout,
    dtype: DataType | None = None,
    memory_config: MemoryConfig | None = None,
    sub_core_grids: CoreRangeSet | None = None,
    pad_value: float = 0.0,
) -> Tensor:
    """The tensor in tiles or in rows. No effect here: sub_core_grids (which cores do the work)."""
    tensor.check_allocated()
    if tensor.layout is layout:
        return tensor
    if layout not in (Layout.TILE, Layout.ROW_MAJOR):
        raise MeshError(
            f"ttnn::to_layout: Unsupported layout conversion from {tensor.layout} to {layout}!",
            expected="TILE or ROW_MAJOR",
            fix="Pass ttnn.TILE_LAYOUT or ttnn.ROW_MAJOR_LAYOUT.",
        )
    if tensor.device() is not None:
        if layout is Layout.ROW_MAJOR and not _rows_can_hold(tensor.dtype, dtype):
            raise MeshError(
                "dtype cannot be different from tensor dtype when converting to ROW_MAJOR_LAYOUT on device (allowed "
                "exception: BFLOAT8_B -> BFLOAT16, which untilize handles natively)!",
                expected=f"dtype {tensor.dtype}",
                fix="Use typecast.",
            )
        asked = {
            "tensor": tensor,
            "layout": layout,
            "dtype": dtype,
            "memory_config": memory_config,
            "pad_value": pad_value,
        }
        return _TO_LAYOUT(**asked)  # type: ignore[no-any-return]
    wanted = tensor.dtype if dtype is None else dtype
    if wanted in BLOCK_FLOATS:
        return tensor  # TT-NN silently keeps host block floats in tiles; programs rely on it
    config = memory_config or _memory_for(tensor.spec, layout)
    spec = TensorSpec(tensor.shape, wanted, layout, memory_config=config, pad_value=_padding(layout, pad_value))
    return _on_host(tensor, spec)


@takes_queue
@name_wrong_types
def to_dtype(tensor: Tensor, dtype: DataType) -> Tensor:
    """A host tensor in another format; block floats become tiles."""
    if tensor.device() is not None:
        raise MeshError(
            "ttnn::to_dtype: the tensor is on a device",
            expected="a host tensor",
            fix="Use typecast on a device, or from_device() first.",
        )
    if tensor.dtype is dtype:
        return tensor
    layout = Layout.TILE if dtype in BLOCK_FLOATS else tensor.layout
    if layout is not tensor.layout:
        rows, width = prod(tensor.shape[:-1]), tensor.shape[-1] if len(tensor.shape) else 1
        padded = TensorSpec(tensor.shape, dtype, layout).padded_shape
        wrong = (
            f"to_dtype: Converting layout to Layout::TILE implicitly changed physical shape from ({rows}, {width}) to "
            f"({prod(padded[:-1])}, {padded[-1]}) due to alignment constraints. This is currently unsupported."
        )
        aligned = (rows, width) == (prod(padded[:-1]), padded[-1])
        require(aligned, wrong, "whole tiles", "Convert it with ttnn.to_layout first.")
    tile = tensor.tile if layout is Layout.TILE and tensor.layout is Layout.TILE else None
    return _on_host(tensor, TensorSpec(tensor.shape, dtype, layout, tile=tile, memory_config=tensor.memory_config()))


@TensorFunction
def to_memory_config(
    tensor: Tensor,
    memory_config: MemoryConfig,
    dtype: DataType | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """A device tensor in another memory configuration; the tensor itself if it has that one already."""
    if tensor.device() is None:
        raise MeshError(
            "Device Operations expect device tensors as inputs: ttnn::to_memory_config got one on the host",
            expected="a device tensor",
            fix="Use to_device().",
        )
    tensor.check_allocated()
    if tensor.memory_config() == memory_config and output_tensor is None:  # whatever format is asked for, as in TT-NN
        return tensor
    wrong = "Only tile layout supports dtype conversion"
    converts = dtype is not None and dtype is not tensor.dtype
    if converts and dtype is not None:
        check_dtype(dtype, tensor.layout, None)
    require(not converts or tensor.layout is Layout.TILE, wrong, "TILE_LAYOUT", "Use ttnn.typecast.")
    asked = {"tensor": tensor, "memory_config": memory_config, "dtype": dtype, "output_tensor": output_tensor}
    return _TO_MEMORY_CONFIG(**asked)  # type: ignore[no-any-return]


def _rows_can_hold(have: DataType, asked: DataType | None) -> bool:
    return asked in (None, have) or (have is DataType.BFLOAT8_B and asked is DataType.BFLOAT16)


def _memory_for(spec: TensorSpec, layout: Layout) -> MemoryConfig:
    """The memory a tensor keeps when its layout changes; shards that no longer fit become interleaved."""
    config = spec.memory_config
    if config.interleaved or layout is Layout.ROW_MAJOR:
        return config
    check_shard_tiles(config, layout, None)
    return config


def _layout_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    (spec,), layout = call.specs, call["layout"]
    held = _memory_for(spec, layout)
    if layout is Layout.ROW_MAJOR:
        return [spec_in_rows(spec, call["memory_config"] or held)]
    padding = _padding(layout, call["pad_value"])
    return [
        TensorSpec(
            spec.shape,
            call["dtype"] or spec.dtype,
            layout,
            memory_config=call["memory_config"] or held,
            pad_value=padding,
        )
    ]


def _padding(layout: Layout, value: float) -> float:
    return value if layout is Layout.TILE else 0


def _memory_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    spec = call.specs[0]
    if call["output_tensor"] is not None:
        given: TensorSpec = call["output_tensor"].spec
        return [given]
    tile = spec.tile if spec.layout is Layout.TILE else None
    dtype = call["dtype"] or spec.dtype
    return [TensorSpec(spec.shape, dtype, spec.layout, tile=tile, memory_config=call["memory_config"])]


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _layout_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The program that composites convert with too."""
    c = Composition()
    return c, [
        c.run("tilize" if call["layout"] is Layout.TILE else "untilize", results[0], PlannedTensor(call.specs[0]))
    ]


def _shard_width(spec: TensorSpec) -> int | None:
    shards = spec.memory_config.shard_spec
    return None if shards is None else shards.shape[1]


def _memory_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]]:
    """The same for memory: into shards, out of them, or a copy; rows go to shards of another kind through DRAM."""
    c, spec = Composition(), call.specs[0]
    before, after = spec.memory_config.is_sharded(), results[0].memory_config.is_sharded()
    kinds = spec.memory_config.memory_layout, results[0].memory_config.memory_layout
    if (
        before
        and after
        and spec.layout is Layout.ROW_MAJOR
        and kinds[0] is not kinds[1]
        and TensorMemoryLayout.ND_SHARDED not in kinds
        and _shard_width(spec) != _shard_width(results[0])
    ):
        plain = c.run("sharded_to_interleaved", spec.with_memory_config(DRAM_MEMORY_CONFIG), PlannedTensor(spec))
        made = c.run("interleaved_to_sharded", results[0], plain)
        c.free(plain)
        return c, [made]
    name = {(True, False): "sharded_to_interleaved", (False, True): "interleaved_to_sharded"}.get(
        (before, after), "copy"
    )
    return c, [c.run(name, results[0], PlannedTensor(spec))]


# Built here and not by `device_operation`, which belongs to ops: transfers, a layer below it, change layouts and memory.
_TO_LAYOUT = DeviceOperation(
    Operation("ttnn.to_layout", _same, _layout_spec, stages=_layout_stages, lane_arguments=frozenset({"tensor"}))
)
_TO_MEMORY_CONFIG = DeviceOperation(
    Operation("ttnn.to_memory_config", _same, _memory_spec, stages=_memory_stages, lane_arguments=frozenset({"tensor"}))
)


def _on_host(tensor: Tensor, spec: TensorSpec) -> Tensor:
    lanes = tensor.lanes if spec.dtype is tensor.dtype else to_lane(tensor.lanes, spec.dtype)
    return tensor.make_host_tensor(spec, lanes)


operators.fill(to_layout=to_layout)
