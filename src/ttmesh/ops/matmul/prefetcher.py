"""The DRAM prefetcher: emulated matmuls read weights from DRAM, so it checks its arguments and copies nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.definition import op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WEIGHTS = (DataType.BFLOAT4_B, DataType.BFLOAT8_B, DataType.BFLOAT16)


def _check(call: Call) -> None:
    buffer, specs = call["global_cb"], call.specs
    require(
        len(specs) > 0,
        "Must have at least one input tensor",
        "weights and their addresses",
        "Pass the weights, then the tensor of addresses.",
    )
    require(
        call["num_layers"] > 0,
        "Prefetcher must run for at least 1 layer",
        "num_layers >= 1",
        "Pass the number of layers.",
    )
    require(
        buffer is not None,
        "Global circular buffer must be provided",
        "global_cb=",
        "Make one with ttnn.create_global_circular_buffer.",
    )
    mapping, shard = buffer.sender_receiver_core_mapping(), specs[0].memory_config.shard_spec
    readers = len(mapping) if shard is None else shard.grid.num_cores()
    counts = {len(receivers.ranges()) for _, receivers in mapping[:readers]}  # TT-NN compares numbers of ranges
    require(
        len(counts) == 1,
        "Global circular buffer must have same number of receivers for each sender core",
        "as many ranges of receivers for every sender that reads a bank of the weights",
        f"Change the mapping, whose first {readers} senders have {sorted(counts)} ranges.",
    )
    for spec in specs[:-1]:
        _check_weight(spec, mapping[0][1].num_cores())
    _check_addresses(specs[-1])


def _check_weight(spec: TensorSpec, receivers: int) -> None:
    config = spec.memory_config
    sharded = config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED
    require(spec.layout is Layout.TILE, "All tensors must be tilized", "TILE_LAYOUT", "Use ttnn.to_layout.")
    require(
        sharded,
        "Input tensors must be width sharded",
        "WIDTH_SHARDED in DRAM",
        f"The memory is {config.memory_layout}.",
    )
    require(
        config.buffer_type is BufferType.DRAM,
        "Input tensors must be in DRAM",
        "WIDTH_SHARDED in DRAM",
        f"The memory is {config.buffer_type}.",
    )
    shard = config.shard_spec
    assert shard is not None, "width-sharded memory has a shard spec"
    require(
        shard.shape[1] % receivers == 0,
        f"All tensors' padded shard size (in last dim) {shard.shape[1]} must be divisible by the number of receiver "
        f"cores per sender {receivers}.",
        f"a multiple of {receivers}",
        "Pad the weights.",
    )
    require(
        spec.dtype in WEIGHTS,
        "Input tensors must be of type Bfp4_b, Bfp8_b, or Float16_b",
        "bfloat4_b, bfloat8_b or bfloat16",
        f"They are {spec.dtype}.",
    )


def _check_addresses(spec: TensorSpec) -> None:
    config = spec.memory_config
    for ok, wrong in (
        (spec.layout is Layout.ROW_MAJOR, "Tensor containing addresses must be row major"),
        (
            config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED,
            "Tensor containing addresses must be height sharded",
        ),
        (config.buffer_type is BufferType.L1, "Tensor containing addresses must be in L1"),
        (spec.dtype is DataType.UINT32, "Tensor containing addresses must be of type UInt32"),
    ):
        require(
            ok,
            wrong,
            "uint32 in ROW_MAJOR layout, HEIGHT_SHARDED in L1",
            "Convert the last tensor, which holds the addresses.",
        )


def _output_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    first = call.specs[0]
    return [TensorSpec((32, 32), first.dtype, first.layout, memory_config=DRAM_MEMORY_CONFIG)]


@op("ttnn.dram_prefetcher", out=_output_spec, check=_check)
def dram_prefetcher(tensors: Sequence[torch.Tensor], lane_axes: int) -> torch.Tensor:
    """A placeholder tile, as in TT-NN; the matmuls that follow read the weights from DRAM."""
    return tensors[0].new_zeros([1] * lane_axes + [32, 32])
