"""Sums and differences of two tensors by the matrix engine's arithmetic, where TT-NN does not take the vector unit."""

from __future__ import annotations

import torch

from ttmesh.base import numerics_mode
from ttmesh.base.dtypes import BLOCK_FLOATS, bfloat16, float32
from ttmesh.chip.numerics.engine_config import EngineConfig
from ttmesh.chip.numerics.fpu_elementwise import add_lanes
from ttmesh.ops.lane_functions.lane_broadcast import equalize_ranks
from ttmesh.tensor.calls.lane_calls import Lane
from ttmesh.tensor.calls.launch_op import Case, Specialise

FORMATS = BLOCK_FLOATS | {bfloat16, float32}
OP_TYPES = ("ADD", "SUB", "RSUB")


def in_mode(op_type: str, ideal: Specialise) -> Specialise:
    """Computes ideally, or by the chip's arithmetic in the mode that the call was made in."""
    if op_type not in OP_TYPES:
        return ideal

    def specialise(case: Case) -> Lane | None:
        function = ideal(case)
        if numerics_mode.current() == numerics_mode.IDEAL or function is None:
            return function
        config, axes = resolve(case), case.lane_axes
        if config is None:
            return function

        def compute(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            if a.is_meta or a.requires_grad or b.requires_grad:
                return function(a, b)  # type: ignore[no-any-return]
            left, right = equalize_ranks([a, b], axes)
            if op_type == "RSUB":
                left, right = right, left
            return add_lanes(left, right, config, negate=op_type != "ADD")

        return compute

    return specialise


def resolve(case: Case) -> EngineConfig | None:
    """What the engine does for this call; None where the vector unit adds: float32 pairs, integers, numbers."""
    if len(case.specs) != 2 or len(case.results) != 1:
        return None
    a, b, out = case.specs[0].dtype, case.specs[1].dtype, case.results[0].dtype
    if not {a, b, out} <= FORMATS or a is b is float32:
        return None
    if case["input_tensor_a"] is not None or case.tensors[0] != "input_tensor_a":
        return None
    return EngineConfig(case.arch, fp32_dest=float32 in (a, b, out), a_dtype=a, b_dtype=b, out_dtype=out)
