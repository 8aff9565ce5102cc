"""Rules for what comes out of an operation: the spec rules most families share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import ShapeError
from ttmesh.tensor.launch import Call, SpecRule
from ttmesh.tensor.memory_config import MemoryConfig
from ttmesh.tensor.spec import TensorSpec

Inferred = Sequence[tuple[tuple[int, ...], torch.dtype]]


def like_first(call: Call, inferred: Inferred) -> list[TensorSpec]:
    """The first tensor's format, layout and memory, unless dtype=, memory_config= or an output tensor say otherwise."""
    return [out_spec(call, shape, result=i) for i, (shape, _) in enumerate(inferred)]


def like(position: int = 0, *, dtype: DataType | None = None, layout: Layout | None = None) -> SpecRule:
    """The tensor argument at this position decides, except for what is given here."""

    def rule(call: Call, inferred: Inferred) -> list[TensorSpec]:
        return [
            out_spec(call, shape, source=position, dtype=dtype, layout=layout, result=i)
            for i, (shape, _) in enumerate(inferred)
        ]

    return rule


def out_spec(
    call: Call,
    shape: Sequence[int],
    *,
    source: int = 0,
    dtype: DataType | None = None,
    layout: Layout | None = None,
    memory_config: MemoryConfig | None = None,
    result: int = 0,
) -> TensorSpec:
    """One output spec: what the caller asked for, else what the rule says, else what the source tensor has."""
    given = call.outputs[result] if result < len(call.outputs) else None
    if given is not None:
        if tuple(given.shape) != tuple(shape):
            raise ShapeError(
                f"{call.name}: the output tensor has shape {given.shape!r}, the result {list(shape)}",
                expected="equal shapes",
                fix="Allocate the output with the result's shape.",
            )
        return given.spec
    spec = call.specs[source]
    chosen = call["dtype"] or call["output_dtype"] or dtype or spec.dtype
    config = call["memory_config"] or call["output_memory_config"] or memory_config or inherited(spec, shape)
    return TensorSpec(
        shape,
        chosen,
        layout if layout is not None else spec.layout,
        tile=spec.tile if spec.layout is Layout.TILE else None,
        memory_config=config,
    )


def inherited(spec: TensorSpec, shape: Sequence[int]) -> MemoryConfig:
    """The source's memory; a sharded one only when the shape stays, else the same memory interleaved."""
    config = spec.memory_config
    if config.interleaved or tuple(spec.shape) == tuple(shape):
        return config
    return MemoryConfig(buffer_type=config.buffer_type)
