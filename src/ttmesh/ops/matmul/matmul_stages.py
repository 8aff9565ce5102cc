"""Stages of matmul and linear: a bias or an activation that the matmul does not take is a separate program."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import Any

from ttmesh.base.dtypes import BufferType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.program_keys import binary_key
from ttmesh.ops.configs.matmul_program_configs import MatmulMultiCoreProgramConfig
from ttmesh.ops.matmul.matmul_rules import find_config
from ttmesh.ops.stages.movement_stages import transpose
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.calls.plan_keys import key_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

OPTIONS = ("transpose_a", "transpose_b", "program_config", "compute_kernel_config", "core_grid", "activation", "dtype")
NO_ACTIVATION = (None, "")


def matmul_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The matmul, then the addition of the bias, then the activation."""
    c, final = Composition(), results[0]
    a, b = (PlannedTensor(spec) for spec in call.specs[:2])
    if not prod(a.spec.shape) or not prod(b.spec.shape) or len(b.spec.shape) < 2:
        return None
    bias = call["bias"].spec if isinstance(call["bias"], Tensor) else None
    adds = bias is not None and adds_bias_after(call, bias)
    applies = call["activation"] not in NO_ACTIVATION and call["core_grid"] is None
    operands = [_transpose_first(c, x, call, letter) for x, letter in ((a, "a"), (b, "b"))]
    if bias is not None and operands[1] is not b:
        _check_transposed_bias(b.spec, bias)
    transposed = [new for new, old in zip(operands, (a, b), strict=True) if new is not old]
    a, b = operands
    inputs = (a, b) if bias is None or adds else (a, b, PlannedTensor(bias))
    options = tuple(key_of(call[name]) for name in OPTIONS)
    given = bool(call.outputs) and call.outputs[0] is not None
    now = c.run("matmul", final, *inputs, options=options)
    if adds and bias is not None:
        c.launch(("add", _kind(final), _kind(bias), bias.shape[-2:-1], bias.shape[-1] == 1))
        now = now if given else c.replace(now, c.allocate(final))
    if applies:
        c.launch(_activation_key(call["activation"], final))
        now = now if given else c.replace(now, c.allocate(final))
    for stage in transposed:
        c.free(stage)
    return c, [now]


def addmm_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """The product, scaled in place, and the other matrix, scaled into new memory, added in place."""
    c, final = Composition(), results[0]
    added, a, b = (PlannedTensor(spec) for spec in call.specs)
    number, config = ("number", None), final.memory_config
    made = c.run("matmul", final, a, b, options=tuple(key_of(call[name]) for name in OPTIONS))
    if call["alpha"] != 1.0:
        c.launch(binary_key("MUL", (final,), final.dtype, config, number))
    if call["beta"] == 0.0:
        return c, [made]
    term = added
    if call["beta"] != 1.0:
        c.launch(binary_key("MUL", (added.spec,), added.spec.dtype, added.spec.memory_config, number))
        term = c.allocate(added.spec)
    c.launch(binary_key("ADD", (final, term.spec), final.dtype, config))
    c.free(term)
    return c, [made]


def _transpose_first(c: Composition, x: PlannedTensor, call: Call, letter: str) -> PlannedTensor:
    """An operand that TT-NN transposes by a program, if it chooses the matmul that does not transpose itself."""
    if not call[f"transpose_{letter}"] or not isinstance(find_config(call), MatmulMultiCoreProgramConfig):
        return x
    return transpose(c, x, -1, -2, x.spec.memory_config)


def _check_transposed_bias(b: TensorSpec, bias: TensorSpec) -> None:
    """TT-NN measures the bias with the weights as they were before it transposed them, and refuses other widths."""
    width = bias.shape[-1] if bias.shape else 1
    require(
        width in (1, b.shape[-1]) or b.shape[-1] == 1,
        f"Broadcast error: Invalid dimension; the bias has {width} columns, the weights before transpose_b {b.shape[-1]}",
        "operands and result in DRAM, or core_grid=, where transpose_b takes a bias",
        "Transpose the weights with ttnn.transpose first.",
    )


def _all_in_dram(call: Call) -> bool:
    memory = call["memory_config"] or DRAM_MEMORY_CONFIG
    configs = (call.specs[0].memory_config, call.specs[1].memory_config, memory)
    return all(m.interleaved and m.buffer_type is BufferType.DRAM for m in configs)


def _activation_key(activation: Any, spec: TensorSpec) -> Hashable:
    """The program of an activation: ttnn.relu and its like launch the same (see unary_programs)."""
    if activation in ("relu", "silu", "sigmoid"):
        shards = spec.memory_config.shard_spec
        volume = None if shards is None else prod(shards.shape)
        return (f"ttnn.{activation}", (None, None), (), None, spec.dtype, spec.layout, spec.memory_config, None,
                spec.memory_config, volume)  # fmt: skip
    return "unary", key_of(activation), *_kind(spec)


def _kind(spec: TensorSpec) -> Any:
    """What tells element-wise programs apart: volumes do not count."""
    return spec.dtype, spec.layout, spec.memory_config


def adds_bias_after(call: Call, bias: TensorSpec) -> bool:
    """Whether TT-NN adds the bias in a separate program (tt-metal e4f9f0b, confirmed on 0.81.1)."""
    a, b = call.specs[:2]
    config = type(call["program_config"]).__name__
    if config == "MatmulMultiCoreReuseProgramConfig" and _covers_block(call, bias):
        return False
    if prod(b.shape[:-2]) > 1 or prod(bias.shape[:-2]) > 1 or config == "MatmulMultiCoreReuseProgramConfig":
        return True
    height = a.tile.tile_shape[1 if call["transpose_a"] else 0] if a.layout is Layout.TILE else 32
    if (bias.padded_shape[-2] if len(bias.padded_shape) > 1 else 1) != height:
        return True
    if call["program_config"] is not None:
        return config == "MatmulMultiCoreProgramConfig"
    if call["core_grid"] is not None:
        return False
    memory = call["memory_config"] or DRAM_MEMORY_CONFIG
    if memory.buffer_type is not BufferType.DRAM:
        return True
    if a.memory_config.is_sharded():
        return False
    return not _all_in_dram(call)


def _covers_block(call: Call, bias: TensorSpec) -> bool:
    """Whether a bias has all rows and columns of the result and one core computes a whole matrix: then it is fused."""
    a, b, config = *call.specs[:2], call["program_config"]
    if call["transpose_a"] or call["transpose_b"] or len(bias.shape) < 2 or prod(bias.shape[:-2]) > 1:
        return False
    rows, columns = a.padded_shape[-2], b.padded_shape[-1]
    whole = config.per_core_N * b.tile.tile_shape[1] == columns and config.per_core_M * a.tile.tile_shape[0] >= rows
    return whole and tuple(bias.shape[-2:]) == (rows, columns)
