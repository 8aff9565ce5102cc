"""Operations of state-space models (Mamba), whose state has 32 values per channel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor as Lanes

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import require
from ttmesh.chip.numerics import fpu
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.device_programs import like_written, no_programs
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.goldens import model_blocks as goldens
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

LATENT = 32
HIDDEN = 5120  # channels of the model TT-NN made it for; with 32 times as many columns b is already per state


def _check_mul(call: Call) -> None:
    shapes = [spec.padded_shape for spec in call.specs[:2]]
    for shape, name in zip(shapes, "ab", strict=True):
        batches = shape[0] == 1 and shape[1] == 1
        require(batches, f"Batch not supported for input {name}!", "[1, 1, rows, width]", "Split the batch.")
    (_, _, rows, a), (_, _, other_rows, b) = shapes
    require(rows == other_rows, "Num of users must match in both of the input!", f"{rows} rows", "Check the rows.")
    require(a != b, "Use eltwise mul for same size inputs!", "different widths", "Use ttnn.multiply.")
    widths = (f"{LATENT} or {LATENT * HIDDEN}", "Pad it with ttnn.pad.")
    require(a in (LATENT, LATENT * HIDDEN), "Input a width must be 32 or 32*5120!", *widths)
    require(b in (HIDDEN, LATENT * HIDDEN), "Input b width must be 32 or 32*5120!", *widths)


@op("ttnn.experimental.repeat_and_interleave_eltwise_mul", golden=goldens.repeat_and_interleave_mul, check=_check_mul)
def repeat_and_interleave_eltwise_mul(a: Lanes, b: Lanes) -> Lanes:
    """Every channel of b times a state vector of a, which all channels share or which each channel has."""
    left = torch.unflatten(a.float(), -1, (-1, LATENT))
    right = torch.unflatten(b.float(), -1, (-1, LATENT if b.shape[-1] == LATENT * HIDDEN else 1))
    return (left * right).flatten(-2)


def _check_reduce(call: Call) -> None:
    width = call.specs[0].shape[-1]
    require(width % LATENT == 0, f"the last dim is {width}", f"a multiple of {LATENT}", "Pad it with ttnn.pad.")


@op(
    "ttnn.experimental.hc_sum_reduce",
    golden=goldens.hc_sum_reduce,
    check=_check_reduce,
)
def hc_sum_reduce(input: Lanes) -> Lanes:
    """The sum of every 32 columns."""
    return fpu.total(torch.unflatten(input, -1, (-1, LATENT)), (-1,))


def _check_scan(call: Call) -> None:
    a, bx = call.specs[:2]
    wrong = "Expected input tensors to have the same data type"
    require(a.dtype is bx.dtype, wrong, str(a.dtype), "Convert one with ttnn.typecast.")
    same = tuple(a.padded_shape) == tuple(bx.padded_shape)
    require(same, "Expected input tensors to have the same shape", str(a.shape), "Reshape one.")
    shape, fix = a.padded_shape, "Reshape both."
    require(len(shape) == 4, "Expected input tensors to be rank 4", "four dims", fix)
    require(shape[0] == 1 and shape[1] == 1, "Dimension 0 and 1 should be size 1", "[1, 1, rows, width]", fix)
    config = call["memory_config"]
    wrong = "Only L1 buffers can have an associated circular buffer!"
    in_l1 = config is None or config.buffer_type is BufferType.L1
    require(in_l1, wrong, "memory_config in L1", "Leave memory_config out.")


def _scan_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, inferred[0][0])]


@device_operation("ttnn.experimental.prefix_scan", out=_scan_spec, check=_check_scan)
def _scan(a: Lanes, bx: Lanes, h_prev: Lanes) -> Lanes:
    """h[t] = a[t] · h[t - 1] + bx[t], row by row."""
    a, bx, state = a.float(), bx.float(), h_prev.float()
    rows = []
    for row in range(bx.shape[-2]):
        state = a[..., row : row + 1, :] * state + bx[..., row : row + 1, :]
        rows.append(state)
    return torch.cat(rows, dim=-2)


@device_operation("ttnn.experimental.prefix_scan state", out=like_written, programs=no_programs, writes="h_prev")
def _store_state(h_prev: Lanes, scanned: Lanes) -> Lanes:
    return scanned[..., -1:, :]


@composite("ttnn.experimental.prefix_scan", golden=goldens.prefix_scan)
def prefix_scan(a: Tensor, bx: Tensor, h_prev: Tensor, memory_config: MemoryConfig | None, dtype: Any) -> Tensor:
    """h[t] = a[t] · h[t - 1] + bx[t]; the last state is written to h_prev."""
    result: Tensor = _scan(a=a, bx=bx, h_prev=h_prev, memory_config=memory_config, dtype=dtype)
    _store_state(h_prev=h_prev, scanned=result)
    return result
