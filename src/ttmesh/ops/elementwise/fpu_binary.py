"""Sums, differences and fast products by the FPU's arithmetic, where TT-NN does not take the vector unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, MathFidelity, bfloat16, float32
from ttmesh.chip.formats.kernels.fpu_elements import make_small_adder
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.chip.numerics.fpu_elementwise import make_adder, multiply_elements
from ttmesh.chip.numerics.packer import pack_lanes
from ttmesh.chip.numerics.unpacker import unpack
from ttmesh.ops.configs.activations import apply
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.operation import Case, Specialise

FORMATS = BLOCK_FLOATS | {bfloat16, float32}
OP_TYPES = ("ADD", "SUB", "RSUB", "MUL")
Compute = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def specialise_addition(op_type: str, ideal: Specialise) -> Specialise:
    """Specialise an addition to ideal arithmetic, or to the chip's in the numerics mode that was set when it was made."""
    if op_type not in OP_TYPES:
        return ideal

    def specialise(case: Case) -> Lane | None:
        function = ideal(case)
        if numerics_mode.current() == numerics_mode.IDEAL:
            return function
        config = resolve(case, op_type)
        return function if config is None else _on_fpu(case, op_type, config, function)

    return specialise


def _on_fpu(case: Case, op_type: str, config: FpuConfig, ideal: Lane | None) -> Lane:
    """The call on lanes; a number becomes a tile of bfloat16, activations come before and after as in TT-NN's program."""
    axes, before, behind = case.lane_axes, case["input_tensor_a_activations"], case["activations"]
    second = case["input_tensor_b_activations"]
    combine = _combine(op_type, config if not behind else replace(config, out_dtype=float32))

    def compute(a: torch.Tensor, b: Any) -> torch.Tensor:
        if ideal is not None and (a.is_meta or a.requires_grad):
            return ideal(a, b)  # type: ignore[no-any-return]
        other = b if isinstance(b, torch.Tensor) else torch.full((), float(b), dtype=torch.bfloat16, device=a.device)
        if isinstance(b, torch.Tensor):
            a, other = equalize_ranks([a, b], axes)
        left = apply(a.float(), before).to(a.dtype) if before else a
        right = apply(other.float(), second).to(other.dtype) if second and isinstance(b, torch.Tensor) else other
        if op_type == "RSUB":
            left, right = right, left
        result = combine(left, right)
        return pack_lanes(apply(result.float(), behind), config.out_dtype) if behind else result

    plain = not (before or second or behind or config.fp32_dest) and config.out_dtype is bfloat16
    same_shape = len(case.specs) == 2 and case.specs[0].shape == case.specs[1].shape
    if op_type in ("ADD", "SUB") and plain and same_shape:
        return make_small_adder(compute, negate=op_type == "SUB")
    return compute


def _combine(op_type: str, config: FpuConfig) -> Compute:
    if op_type != "MUL":
        return make_adder(config, negate=op_type != "ADD")

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left, right = (unpack(values, float32, fp32_dest=config.fp32_dest) for values in (a, b))
        return pack_lanes(multiply_elements(left, right, config), config.out_dtype).to(lane_dtype(config.out_dtype))

    return multiply


def resolve(case: Case, op_type: str) -> FpuConfig | None:
    """What the FPU does for this call; None where the vector unit computes: float32 pairs, integers, most products."""
    if not 1 <= len(case.specs) <= 2 or len(case.results) != 1 or case.tensors[0] != "input_tensor_a":
        return None
    a, out = case.specs[0].dtype, case.results[0].dtype
    number = len(case.specs) == 1
    b = case.specs[-1].dtype  # a number is compared as if it had the tensor's format, and comes as bfloat16
    if not {a, b, out} <= FORMATS or a is b is float32 or case["input_tensor_a"] is not None:
        return None
    if op_type == "MUL" and not case["fast_and_approximate_mode"]:
        return None
    wide = float32 in (a, b, out)
    config = FpuConfig(case.arch, MathFidelity.HiFi4, fp32_dest=wide, a_dtype=a, b_dtype=b, out_dtype=out)
    return replace(config, b_dtype=bfloat16) if number else config
