"""matmul, linear, addmm and matmul with several weights; accumulated in float32, or as TTMESH_NUMERICS says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.chip.formats.tiles import Tile
from ttmesh.chip.numerics import fpu, ideal_matmul
from ttmesh.ops.catalogue.definition import composite, op
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.ops.configs.activations import Activation, apply, function_of
from ttmesh.ops.configs.matmul_program_configs import ProgramConfig
from ttmesh.ops.goldens import linear_algebra as goldens
from ttmesh.ops.lane_functions.gemm import matmul_lanes
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.ops.matmul.matmul_fpu import fpu_matmul_of, resolve_addmm
from ttmesh.ops.matmul.matmul_rules import (
    check_matmul,
    circular_buffers,
    given_spec,
    matmul_spec,
    output_tile,
    shape_of,
)
from ttmesh.ops.matmul.matmul_stages import addmm_stages, matmul_stages
from ttmesh.tensor import operators
from ttmesh.tensor.calls.operation import Call, Case
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor


def transpose_if(values: torch.Tensor, transpose: bool) -> torch.Tensor:
    """The matrix or its transpose."""
    return values.transpose(-1, -2) if transpose else values


def widen_for_result(values: torch.Tensor, dtype: DataType | None) -> torch.Tensor:
    """Convert to float32 if the result is float32: a bfloat16 matmul would round earlier."""
    return values.float() if dtype is DataType.FLOAT32 else values


def activations_of(activation: Activation | None, program_config: ProgramConfig | None) -> list[Activation]:
    """What is applied to the result: the program config's own function wins."""
    fused = getattr(program_config, "fused_activation", None)
    chosen = activation if fused is None else fused
    return [] if chosen is None else [chosen]


# -- matmul and linear -------------------------------------------------------------------------------------------------


def _choose_arithmetic(case: Case) -> Callable[..., torch.Tensor] | None:
    """A function for this call: ideal arithmetic, or the chip's in the numerics mode that was set when it was made."""
    ideal, mode = _specialise_ideal(case), numerics_mode.current()
    if mode == numerics_mode.IDEAL:
        return ideal
    chosen = activations_of(case["activation"], case["program_config"])
    on_fpu = fpu_matmul_of(case, function_of(chosen[0]) if chosen else None, exact=mode == numerics_mode.EXACT)
    if on_fpu is None:
        return ideal
    fallback = ideal or _make_ideal(case)

    def compute(*operands: torch.Tensor) -> torch.Tensor:
        return fallback(*operands) if operands[0].is_meta or fpu.differentiates(*operands) else on_fpu(*operands)

    return compute


def _make_ideal(case: Case) -> Callable[..., torch.Tensor]:
    """A function that does what the lane function does with the options of this call."""
    transpose_a, transpose_b, dtype, axes = case["transpose_a"], case["transpose_b"], case["dtype"], case.lane_axes
    chosen = activations_of(case["activation"], case["program_config"])

    def compute(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result = matmul_lanes(
            widen_for_result(transpose_if(a, transpose_a), dtype),
            widen_for_result(transpose_if(b, transpose_b), dtype),
            axes,
        )
        if bias is not None:
            left, right = equalize_ranks([result, bias], axes)
            result = left + right
        return apply(result, chosen)

    return compute


def _specialise_ideal(case: Case) -> Callable[..., torch.Tensor] | None:
    """A faster function for matrices of one float format with a bias of one row; None for other calls."""
    a, b = case.specs[:2]
    has_matrices = len(a.shape) >= len(b.shape) >= 2 and case.tensors[:2] == ("input_tensor_a", "input_tensor_b")
    if not has_matrices or not case.one_format(DataType.BFLOAT16, DataType.FLOAT32):
        return None
    (height_b, width_b), axes = b.shape[-2:], case.lane_axes
    transpose_a, transpose_b = case["transpose_a"], case["transpose_b"]
    output_width = height_b if transpose_b else width_b
    bias_shape = case.specs[2].shape if len(case.specs) > 2 else None
    if bias_shape is not None and (
        bias_shape.volume() != output_width or len(bias_shape) > len(a.shape)
    ):  # more dims give the result more
        return None
    is_bfloat16, size_of_one_matrix = (
        a.dtype is DataType.BFLOAT16,
        height_b * width_b,
    )  # B's size if all devices and batches share it
    chosen = activations_of(case["activation"], case["program_config"])
    act = function_of(chosen[0]) if chosen else None

    def compute(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if is_bfloat16 and b.numel() == size_of_one_matrix:
            left, right = transpose_if(a, transpose_a), transpose_if(b.view(height_b, width_b), transpose_b)
            result = ideal_matmul.matmul(left, right)
        else:
            result = matmul_lanes(transpose_if(a, transpose_a), transpose_if(b, transpose_b), axes)
        if bias is not None and bias.numel() == output_width:
            result.add_(bias.reshape(-1))
        elif bias is not None:
            result = result + equalize_ranks([result, bias], axes)[1]
        return result if act is None else act(result)

    return compute


@op(
    "ttnn.matmul",
    golden=goldens.matmul,
    out=matmul_spec,
    check=check_matmul,
    scratch=circular_buffers,
    stages=matmul_stages,
    specialise=_choose_arithmetic,
)
def matmul(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    transpose_a: bool,
    transpose_b: bool,
    dtype: DataType | None,
    activation: Activation | None,
    program_config: ProgramConfig | None,
    lane_axes: int,
) -> torch.Tensor:
    """Matrix multiplication."""
    a, b = transpose_if(input_tensor_a, transpose_a), transpose_if(input_tensor_b, transpose_b)
    result = matmul_lanes(widen_for_result(a, dtype), widen_for_result(b, dtype), lane_axes)
    return apply(result, activations_of(activation, program_config))


def _check_linear(call: Call) -> None:
    check_matmul(call)
    if isinstance(call["bias"], Tensor):
        width, given = shape_of(call.specs[1], call["transpose_b"])[-1], [1, *call["bias"].shape]
        rank = max(len(call.specs[0].shape), len(given) - 1)
        require(
            given[-1] in (1, width),
            f"Broadcasting rule violation at dimension index -1 (output rank {rank}), dim a: {width}, dim b: {given[-1]}",
            f"a bias of {width} columns, as the second tensor has",
            "Give the bias one value per column of the result.",
        )
    if isinstance(call["bias"], Tensor) and len(call["bias"].shape) > 1:
        bias, height = call["bias"].spec, shape_of(call.specs[0], call["transpose_a"])[-2:][0]
        padded_height = div_up(height, 32) * 32
        wrong = (
            f"padded second last dimension of bias, {bias.padded_shape[-2]}, not equal to expected bias height, "
            f"{padded_height}"
        )
        require(height == 1 or bias.shape[-2] in (1, height), wrong, f"1 or {height} rows", "Give the bias one row.")


@op(
    "ttnn.linear",
    golden=goldens.linear,
    out=matmul_spec,
    check=_check_linear,
    scratch=circular_buffers,
    stages=matmul_stages,
    specialise=_choose_arithmetic,
)
def linear(
    input_tensor_a: torch.Tensor,
    input_tensor_b: torch.Tensor,
    bias: torch.Tensor | None,
    transpose_a: bool,
    transpose_b: bool,
    dtype: DataType | None,
    activation: Activation | None,
    program_config: ProgramConfig | None,
    lane_axes: int,
) -> torch.Tensor:
    """Matrix multiplication plus a bias, then an activation."""
    a, b = transpose_if(input_tensor_a, transpose_a), transpose_if(input_tensor_b, transpose_b)
    result = matmul_lanes(widen_for_result(a, dtype), widen_for_result(b, dtype), lane_axes)
    if bias is not None:
        left, right = equalize_ranks([result, bias], lane_axes)
        result = left + right
    return apply(result, activations_of(activation, program_config))


@composite("ttnn.matmul_batched_weights")
def matmul_batched_weights(
    input_tensor_a: Tensor,
    input_tensors_b: Sequence[Tensor],
    transpose_a: bool,
    transpose_b: bool,
    memory_config: MemoryConfig | None,
    dtype: DataType | None,
    program_config: ProgramConfig | None,
    activation: Activation | None,
    compute_kernel_config: Any,
    output_tile: Tile | None,
) -> list[Tensor]:
    """One tensor times each of several weights."""
    require(
        not transpose_a,
        "cannot transpose A in batched matmul",
        "transpose_a=False",
        "Transpose it with ttnn.transpose first.",
    )
    require(
        not transpose_b,
        "cannot transpose B in batched matmul",
        "transpose_b=False",
        "Transpose it with ttnn.transpose first.",
    )
    require(
        memory_config is not None, "memory_config must be provided", "memory_config=", "Pass the memory of the result."
    )
    require(
        program_config is not None,
        "program_config must be provided",
        "program_config=",
        "Pass the program configuration to use.",
    )
    return [
        matmul(
            input_tensor_a,
            weight,
            memory_config=memory_config,
            dtype=dtype,
            program_config=program_config,
            activation=activation,
            compute_kernel_config=compute_kernel_config,
            output_tile=output_tile,
        )
        for weight in input_tensors_b
    ]


# -- addmm -----------------------------------------------------------------------------------------------------


def _check_addmm(call: Call) -> None:
    added, a, b = call.specs
    require(
        call["alpha"] != 0, "alpha parameter cannot be 0", "another alpha", "Use ttnn.multiply with beta alone instead."
    )
    wrong = (
        "The width of the first tensor must be equal to the height of the second tensor. Mismatch: "
        f"width={a.shape[-1]} height={b.shape[-2]}"
    )
    require(a.shape[-1] == b.shape[-2], wrong, "equal inner dims", "Transpose an operand, or check its shape.")
    wrong = "input_tensor must have shape matching one of result of mat1_tensor @ mat2_tensor"
    fits = tuple(added.shape) == (a.shape[-2], b.shape[-1])
    require(fits or call["beta"] == 0, wrong, f"[{a.shape[-2]}, {b.shape[-1]}]", "Reshape it to that shape.")
    require(
        len(a.shape) == len(b.shape) == 2,
        "mat1_tensor and mat2_tensor must be 2D",
        "two matrices",
        "Reshape both to two dims.",
    )
    for name, spec in (("input_tensor", added), ("mat1_tensor", a), ("mat2_tensor", b)):
        wrong = f"only ttnn.bfloat16, ttnn.float32 and ttnn.bfloat8_b types are supported for {name}"
        require(
            spec.dtype in (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B),
            wrong,
            "floats",
            "Convert it with ttnn.typecast.",
        )


def _addmm_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        return [given_spec(given, inferred[0][0])]
    memory = call["memory_config"] or DRAM_MEMORY_CONFIG
    a, b = call.specs[1:]
    tile = output_tile(call, a, b)
    return [TensorSpec(inferred[0][0], call["dtype"] or a.dtype, Layout.TILE, tile=tile, memory_config=memory)]


@op("ttnn.addmm", golden=goldens.addmm, out=_addmm_spec, check=_check_addmm, stages=addmm_stages, fpu=resolve_addmm)
def addmm(
    input_tensor: torch.Tensor,
    mat1_tensor: torch.Tensor,
    mat2_tensor: torch.Tensor,
    alpha: float,
    beta: float,
    lane_axes: int,
) -> torch.Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    result = matmul_lanes(mat1_tensor, mat2_tensor, lane_axes)
    if fpu.is_emulated(mat1_tensor, mat2_tensor):
        scaled = fpu.keep(fpu.keep(result) * alpha)
        if beta == 0.0:
            return scaled
        added = fpu.keep(input_tensor.float() * beta)
        wide = input_tensor.dtype is mat1_tensor.dtype is torch.float32  # pairs of float32 take the vector unit
        return scaled + added if wide else fpu.add(scaled, added)
    if alpha != 1.0:
        result = result.float() * alpha
    if beta == 0.0:
        return result
    return result.float() + (input_tensor if beta == 1.0 else input_tensor.float() * beta)


operators.fill(matmul=matmul)
