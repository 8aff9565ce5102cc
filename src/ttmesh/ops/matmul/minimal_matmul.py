"""ttnn.experimental.minimal_matmul: a matmul with bias and an activation or a gate, optionally split into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import normalize_dim
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.configs.activations import Activation, apply
from ttmesh.ops.configs.block_buffers import check_buffers
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.matmul.matmul import widen_for_result
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

TILE = 32  # columns
Activations = torch.Tensor | Sequence[torch.Tensor]


def _minimal_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape, layout=Layout.TILE) for shape, _ in inferred]


def _compute_minimal(
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Activation | None,
    gated: bool,
    lane_axes: int,
) -> torch.Tensor:
    result = matmul_lanes(values, weight, lane_axes)
    if bias is not None:
        left, right = equalize_ranks([result, bias], lane_axes)
        result = left + right
    if gated:
        gate, up = torch.unflatten(result, -1, (-1, 2, TILE)).unbind(-2)
        return (torch.nn.functional.silu(gate.float()) * up).flatten(-2)
    return result if activation is None else apply(result, [activation])


def _check_minimal(call: Call) -> None:
    joined = isinstance(call["input_tensor"], list | tuple)
    if joined:
        count = len(call["input_tensor"])
        wrong = f"minimal_matmul: list input must be exactly 2 tensors [prefix, suffix] for fused concat over K, got {count}"
        require(count == 2, wrong, "one tensor, or a list of two", "Join the others with ttnn.concat first.")
    x, *suffix, weight = call.specs[: 2 + joined]
    check_buffers(call, x, weight, rows=0 if call["bias_tensor"] is None else 1)
    wrong = "minimal_matmul expects rank >= 2 tensors"
    require(min(len(x.shape), len(weight.shape)) >= 2, wrong, "matrices", "Use ttnn.reshape.")
    wrong = "minimal_matmul weight must have 1 in all dims < -2"
    require(set(weight.shape[:-2]) <= {1}, wrong, "one matrix of weights", "Use ttnn.matmul for batches of weights.")
    if suffix:
        _check_suffix(x, suffix[0], weight)
    else:
        wrong = f"minimal_matmul inner dimensions must match, got K={x.shape[-1]} and K_w={weight.shape[-2]}"
        require(x.shape[-1] == weight.shape[-2], wrong, "as many rows of weights", "Transpose one of them.")
    if call["fuse_swiglu"]:
        _check_gate(call, weight.shape[-1])
    if call["bias_tensor"] is not None:
        _check_bias(call["bias_tensor"].spec, weight.shape[-1])


def _check_suffix(x: TensorSpec, suffix: TensorSpec, weight: TensorSpec) -> None:
    """Of activations in two parts, which TT-NN joins over K while it reads them."""
    name, same = "minimal_matmul fused concat", "two parts that differ in K only"
    fix = "Join them with ttnn.concat, and pass the result."
    require(suffix.layout is Layout.TILE, f"{name} requires TILE layout for second input", same, fix)
    formats = (
        f"second-input dtype (DataType::{suffix.dtype.name}) must match activation dtype (DataType::{x.dtype.name})"
    )
    require(suffix.dtype is x.dtype, f"{name}: {formats}", same, fix)
    ranks = f"second-input rank ({len(suffix.shape)}) must match input rank ({len(x.shape)})"
    require(len(suffix.shape) == len(x.shape), f"{name}: {ranks}", same, fix)
    for dim, (size, other) in enumerate(zip(x.shape[:-1], suffix.shape[:-1], strict=True)):
        wrong = f"inputs must differ only on the K (last) axis; dim {dim} differs (input={size}, second={other})"
        require(size == other, f"{name}: {wrong}", same, fix)
    first, second, rows = x.padded_shape[-1], suffix.padded_shape[-1], weight.padded_shape[-2]
    wrong = (
        f"prefix_padded_K({first}) + suffix_padded_K({second}) must equal weight_padded_K({rows}) — "
        "use prepare_weight_for_concatenated_input to build the weight."
    )
    require(first + second == rows, f"{name}: {wrong}", "weights with whole tiles of rows for each part", fix)


def _check_gate(call: Call, columns: int) -> None:
    wrong = "minimal_matmul cannot combine fuse_swiglu with a unary fused_activation"
    require(call["fused_activation"] is None, wrong, "no fused_activation", "Leave fused_activation out.")
    wrong = f"minimal_matmul fuse_swiglu requires weight width N={columns} to be a multiple of 2*TILE_WIDTH={2 * TILE}"
    require(columns % (2 * TILE) == 0, wrong, "alternating tiles of gate and up", "Pad both to whole tiles.")


def _check_bias(bias: TensorSpec, columns: int) -> None:
    wrong, fix = "minimal_matmul bias must be 1 in all dims except the last", "Pass a bias of [1, N]."
    require(set(bias.shape[:-1]) <= {1}, wrong, "one row", fix)
    wrong = f"minimal_matmul bias last dimension must equal N ({columns}), got {bias.shape[-1]}"
    require(bias.shape[-1] == columns, wrong, f"{columns} columns", fix)


def _join_parts(values: Activations, rows: int) -> torch.Tensor:
    """Activations in two parts, each of whole tiles of K, as the weights' rows are; what follows `rows` is padding."""
    if isinstance(values, torch.Tensor):
        return values
    return torch.cat([pad(part, (0, -part.shape[-1] % TILE)) for part in values], dim=-1)[..., :rows]


@op("ttnn.experimental.minimal_matmul", golden=goldens.minimal_matmul, out=_minimal_spec, check=_check_minimal)
def minimal_matmul(
    input_tensor: Activations,
    weight_tensor: torch.Tensor,
    bias_tensor: torch.Tensor | None,
    fused_activation: Activation | None,
    fuse_swiglu: bool,
    dtype: DataType | None,
    lane_axes: int,
) -> torch.Tensor:
    """The matmul plus bias, then an activation, or silu(gate) * up where tiles of gate and up alternate.

    Of a list of two tensors the second goes on where the first ends in K.
    """
    joined = _join_parts(input_tensor, weight_tensor.shape[-2])
    values, weight = widen_for_result(joined, dtype), widen_for_result(weight_tensor, dtype)
    return _compute_minimal(values, weight, bias_tensor, fused_activation, fuse_swiglu, lane_axes)


@device_operation("ttnn.experimental.minimal_matmul", out=_minimal_spec, check=_check_minimal)
def _multiply_and_split(
    input_tensor: torch.Tensor,
    weight_tensor: torch.Tensor,
    bias_tensor: torch.Tensor | None,
    fused_activation: Activation | None,
    fuse_swiglu: bool,
    dtype: DataType | None,
    chunks: int,
    lane_axes: int,
) -> list[torch.Tensor]:
    values, weight = widen_for_result(input_tensor, dtype), widen_for_result(weight_tensor, dtype)
    result = _compute_minimal(values, weight, bias_tensor, fused_activation, fuse_swiglu, lane_axes)
    return list(torch.chunk(result, chunks, dim=-1))


@composite("ttnn.experimental.minimal_matmul_split", golden=goldens.minimal_matmul_split)
def minimal_matmul_split(
    input_tensor: Tensor,
    weight_tensor: Tensor,
    chunks: int,
    dim: int,
    bias_tensor: Tensor | None,
    fused_activation: Activation | None,
    config: Any,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
    compute_kernel_config: Any,
    fuse_swiglu: bool,
) -> list[Tensor]:
    """The matmul split into equal chunks along its last dim."""
    columns = weight_tensor.shape[-1]
    wrong = f"Output width N={columns} must be divisible by chunks={chunks}"
    require(columns % chunks == 0, wrong, f"a divisor of {columns}", "Choose a number of chunks that divides N.")
    wrong = (
        f"minimal_matmul fuse_swiglu requires per-chunk weight width N/chunks={columns // chunks} to be a multiple of "
        f"2*TILE_WIDTH={2 * TILE}"
    )
    has_full_pairs = columns // chunks % (2 * TILE) == 0
    require(not fuse_swiglu or has_full_pairs, wrong, "an even number of tiles per chunk", "Choose fewer chunks.")
    require(
        normalize_dim(dim, len(input_tensor.shape)) == -1,
        "minimal_matmul_split splits the last dim only",
        "dim=-1",
        "Move that dim to the end with ttnn.transpose.",
    )
    arguments = {
        "input_tensor": input_tensor,
        "weight_tensor": weight_tensor,
        "bias_tensor": bias_tensor,
        "fused_activation": fused_activation,
        "config": config,
        "memory_config": memory_config,
        "dtype": dtype,
        "compute_kernel_config": compute_kernel_config,
        "fuse_swiglu": fuse_swiglu,
        "chunks": chunks,
    }
    results: list[Tensor] = _multiply_and_split(**arguments)
    return results
